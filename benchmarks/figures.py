"""Figures like the paper's, drawn with matplotlib (``pip install autellix[bench]``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

from autellix.errors import UsageError
from benchmarks.experiment import Run

_METRICS = {
    "latency": ("mean_token_latency_s", "mean program token latency (s/token)"),
    "latency_p95": ("p95_token_latency_s", "P95 program token latency (s/token)"),
    "latency_p99": ("p99_token_latency_s", "P99 program token latency (s/token)"),
}
_MOST_POINTS = 400


def require_matplotlib() -> None:
    """Find out before a long run.

    Raises:
        UsageError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise UsageError("--plots needs matplotlib; install it with: pip install 'autellix[bench]'")


def draw(runs: Sequence[Run], folder: Path, *, sweep: bool) -> None:
    """All figures; of several workloads each in a folder of its own.

    Args:
        sweep: latency against the rate too.
    """
    by_workload: dict[str, list[Run]] = {}
    for run in runs:
        by_workload.setdefault(run.cell["workload"], []).append(run)
    for name, mine in by_workload.items():
        place = folder if len(by_workload) == 1 else folder / re.sub(r"[^\w.-]+", "_", name)
        if sweep:
            _draw_latencies(mine, place)
        _draw_runs(mine, place)


def _draw_latencies(runs: Sequence[Run], folder: Path) -> None:
    """Latency against the rate: mean, P95, P99."""
    for name, (key, label) in _METRICS.items():

        def latencies(axes: Any, key: str = key) -> None:
            for policy in _policies(runs):
                grouped: dict[Any, list[Run]] = {}
                for run in runs:
                    if run.cell["policy"] == policy:
                        at = run.cell["load"] if run.cell["load"] is not None else run.cell["rate"]
                        grouped.setdefault(at, []).append(run)
                rates = [fmean(r.cell["rate"] for r in group) for group in grouped.values()]
                values = [fmean(r.cell[key] for r in group) for group in grouped.values()]
                axes.plot(rates, values, marker="o", markersize=3, label=policy)
            axes.set_yscale("log")

        _figure(folder / f"{name}.png", latencies, "programs/s", label)


def _draw_runs(runs: Sequence[Run], folder: Path) -> None:
    """Shares of wait and execution, wait by program length, calls under way, offline makespan.

    Of several rates the highest is drawn.
    """
    offline = [run for run in runs if run.cell["rate"] is None]
    first_seed = [run for run in runs if run.cell["seed"] == runs[0].cell["seed"]]
    highest = max((run.cell["rate"] or 0.0 for run in first_seed), default=0.0)
    shown = [run for run in first_seed if (run.cell["rate"] or 0.0) == highest]
    _figure(
        folder / "shares.png", lambda axes: _shares(axes, shown), "", "share of the calls' time"
    )
    _figure(
        folder / "wait_by_length.png",
        lambda axes: _wait_by_length(axes, shown),
        "calls of the program",
        "wait / service",
    )
    _figure(
        folder / "calls_under_way.png", lambda axes: _under_way(axes, shown), "s", "calls under way"
    )
    if offline:
        _figure(folder / "makespan.png", lambda axes: _makespan(axes, offline), "", "makespan (s)")


def _shares(axes: Any, runs: Sequence[Run]) -> None:
    names = [run.cell["policy"] for run in runs]
    waits = [run.cell["wait_share"] for run in runs]
    axes.bar(names, [1 - wait for wait in waits], label="execution")
    axes.bar(names, waits, bottom=[1 - wait for wait in waits], label="wait")
    axes.tick_params(axis="x", rotation=45)


def _wait_by_length(axes: Any, runs: Sequence[Run]) -> None:
    for run in runs:
        assert run.result is not None
        ordered = sorted(run.result.programs, key=lambda program: program.calls)
        size = max(1, len(ordered) // 10)
        groups = [ordered[i : i + size] for i in range(0, len(ordered), size)]
        lengths = [fmean(p.calls for p in group) for group in groups]
        ratios = [fmean(p.wait_s / p.service_s for p in group) for group in groups]
        axes.plot(lengths, ratios, marker="o", markersize=3, label=run.cell["policy"])
    axes.set_xscale("log")


def _under_way(axes: Any, runs: Sequence[Run]) -> None:
    for run in runs:
        changes = sorted([(s, 1) for s, _ in run.spans] + [(e, -1) for _, e in run.spans])
        times, numbers, live = [], [], 0
        every = max(1, len(changes) // _MOST_POINTS)
        for index, (at_s, change) in enumerate(changes):
            live += change
            if index % every == 0:
                times.append(at_s)
                numbers.append(live)
        axes.plot(times, numbers, label=run.cell["policy"], linewidth=1)


def _makespan(axes: Any, runs: Sequence[Run]) -> None:
    for policy in _policies(runs):
        value = fmean(r.cell["makespan_s"] for r in runs if r.cell["policy"] == policy)
        axes.bar([policy], [value])
    axes.tick_params(axis="x", rotation=45)


def _policies(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run.cell["policy"] for run in runs))


def _figure(path: Path, draw: Callable[[Any], None], x_label: str, y_label: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    draw(axes)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
