"""Latency against load, drawn from results: one panel a workload, one line a policy.

    python -m benchmarks.policy_plots RESULT.json [RESULT.json ...] --image policies.svg

Means over the seeds; of the same cell in several results the last one counts. Needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from autellix.errors import UsageError
from benchmarks.figures import require_matplotlib
from benchmarks.metrics import Cell
from benchmarks.options import names_in, run_command
from benchmarks.tables import parser_of_results, put_together, read_result

POLICIES = "vllm-opt,mlfq,plas,default,srpt"
_COLUMNS = 4
_LEAST_LOAD = 0.5  # below, the lines of all policies are one
_STYLES = {
    "vllm-opt": ("#7f7f7f", "-"),
    "mlfq": ("#9467bd", "-"),
    "plas": ("#ff7f0e", "-"),
    "default": ("#1f77b4", "-"),
    "srpt": ("#2ca02c", ":"),
}


def main(arguments: Sequence[str]) -> None:
    """Draw the figure."""
    parser = parser_of_results("policy_plots", __doc__ or "", "sweep.json --image policies.svg")
    parser.add_argument("--image", type=Path, required=True, metavar="FILE", help=".svg or .png")
    parser.add_argument("--policies", default=POLICIES, help=f"split by commas [{POLICIES}]")
    options = parser.parse_args(arguments)
    require_matplotlib()
    image, policies = options.image, names_in(options.policies, "--policies")
    if image.suffix not in (".svg", ".png") or not image.parent.is_dir():
        raise UsageError(f"--image takes the name of an .svg or .png in a folder, got {image}")
    documents = [read_result(path) for path in options.files]
    cells = put_together([document for document in documents if "cells" in document])
    cells = [c for c in cells if c["policy"] in policies and (c["load"] or 0.0) >= _LEAST_LOAD]
    if not cells:
        raise UsageError(f"none of these results has a cell of {options.policies} at a load")
    draw(cells, policies, image)


def draw(cells: Sequence[Cell], policies: Sequence[str], image: Path) -> None:
    """One panel a workload, in the order in which they come, and the legend in the last place."""
    import matplotlib
    from matplotlib.figure import Figure

    workloads = list(dict.fromkeys(cell["workload"] for cell in cells))
    rows = -(-(len(workloads) + 1) // _COLUMNS)
    # Text stays text, and the same cells give the same file.
    settings: dict[str, Any] = {"svg.fonttype": "none", "svg.hashsalt": "autellix"}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(3 * _COLUMNS, 2.7 * rows), layout="constrained")
        panels = list(figure.subplots(rows, _COLUMNS, squeeze=False).flat)
        for panel, workload in zip(panels, workloads, strict=False):
            mine = [cell for cell in cells if cell["workload"] == workload]
            _panel(panel, mine, policies)
            panel.set_title(workload, fontsize="medium")
        for panel in panels[len(workloads) :]:
            panel.set_axis_off()
        panels[-1].legend(*panels[0].get_legend_handles_labels(), loc="center")
        figure.supxlabel("load", fontsize="medium")
        figure.supylabel("mean program token latency, ms a token", fontsize="medium")
        metadata = {"Date": None} if image.suffix == ".svg" else None
        figure.savefig(image, dpi=150, metadata=metadata)


def _panel(panel: Any, cells: Sequence[Cell], policies: Sequence[str]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    for policy in policies:
        by_load: dict[float, list[float]] = {}
        for cell in cells:
            if cell["policy"] == policy:
                mean_s = cell["mean_token_latency_s"]
                by_load.setdefault(cell["load"], []).append(1e3 * mean_s)
        loads = sorted(by_load)
        means = [fmean(by_load[load]) for load in loads]
        colour, style = _STYLES.get(policy, (None, "-"))
        panel.plot(loads, means, style, color=colour, marker="o", markersize=3, label=policy)
    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.grid(visible=True, which="major", alpha=0.3)


if __name__ == "__main__":
    run_command(main)
