"""Results of ``benchmarks.balancing`` as Markdown tables.

    python -m benchmarks.balancing_table benchmarks/results/balancing_*.json

First the mean program token latency of every cell, milliseconds a token, and the share of prompts
that was cached. Then, for the first balancer, its rate at 1.5 and 2.5 times the unloaded latency
against the others' and against as many single replicas, each result for itself: its cells have the
same seeds. A bound says that one of the two did not get there at the loads that were run; a dash,
that neither did.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from autellix.errors import InputError
from autellix.scheduler.balancers import BALANCER_NAMES
from benchmarks.balancing import APART, equal_latency, scaling
from benchmarks.metrics import UNLOADED, Cell
from benchmarks.options import run_command
from benchmarks.tables import markdown_table

_FACTORS = (1.5, 2.5)
_WHICH = ("workload", "replicas", "load", "programs", "seed", "balancer")
_OTHERS = ("program", "least-used", "round-robin", APART)


def main(arguments: Sequence[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.balancing_table",
        description=(__doc__ or "").partition("\n")[0],
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    documents = [_read(path) for path in parser.parse_args(arguments).files]
    cells = [cell for document in documents for cell in document["cells"]]
    print(latencies(cells))
    print()
    print(rates([document["cells"] for document in documents]))


def latencies(cells: Sequence[Cell]) -> str:
    """One row a workload, number of replicas and load; the unloaded ones are left out."""
    cells = [cell for cell in cells if cell["replicas"] > 1 and cell["load"] != UNLOADED]
    # Several results may have the same cell; "apart" may have fewer seeds than they together.
    found = {cell["balancer"] for cell in cells}
    balancers = [name for name in BALANCER_NAMES if name in found]
    cells = list({tuple(cell[name] for name in _WHICH): cell for cell in cells}.values())
    groups: dict[tuple[str, int, float], dict[str, list[Cell]]] = {}
    for cell in cells:
        key = (cell["workload"], cell["replicas"], cell["load"])
        groups.setdefault(key, {}).setdefault(cell["balancer"], []).append(cell)
    rows = []
    for (workload, replicas, load), group in sorted(groups.items()):
        programs = next(iter(group.values()))[0]["programs"]
        shown = [_shown(group[name]) if name in group else "-" for name in balancers]
        rows.append((workload, str(replicas), f"{load:g}", f"{programs:,}", *shown))
    return markdown_table(("workload", "replicas", "load", "programs", *balancers), rows)


def _shown(cells: Sequence[Cell]) -> str:
    mean = fmean(1e3 * cell["mean_token_latency_s"] for cell in cells)
    hits = fmean(cell["cache_hit_rate"] for cell in cells)
    return f"{mean:.1f} ({hits:.0%})"


def rates(results: Sequence[Sequence[Cell]]) -> str:
    """One row a workload, number of replicas and latency, of the cells of each result.

    There is none where neither got there with any other, as at a single load.
    """
    against: dict[tuple[str, int, float], dict[str, str]] = {}
    for cells in results:
        for key, found in _rates(cells).items():
            against.setdefault(key, {}).update(found)
    head = ("workload", "replicas", "latency", *_OTHERS, "single replicas")
    rows = [
        (name, str(replicas), f"{factor:g}x", *(found.get(o, "-") for o in (*_OTHERS, "alone")))
        for (name, replicas, factor), found in sorted(against.items())
        if {*found.values()} != {"-"}
    ]
    return markdown_table(head, rows)


def _rates(cells: Sequence[Cell]) -> dict[tuple[str, int, float], dict[str, str]]:
    first = cells[0]["balancer"]
    against: dict[tuple[str, int, float], dict[str, str]] = {}
    for row in equal_latency(cells):
        if row["balancer"] == first and row["latency_factor"] in _FACTORS:
            ratio = _ratio(row["ratio"], row["policy_bound"], row["baseline_bound"])
            against.setdefault(_key(row), {})[row["baseline"]] = ratio
    for row in scaling(cells):
        if row["balancer"] == first and _key(row) in against:
            alone = "-" if row["bound"] else _ratio(row["scaling"], False, False)
            against[_key(row)]["alone"] = alone
    return against


def _key(row: dict[str, Any]) -> tuple[str, int, float]:
    return row["workload"], row["replicas"], row["latency_factor"]


def _ratio(ratio: float | None, bound: bool, other_bound: bool) -> str:
    if ratio is None:
        return "-"
    if bound and other_bound:
        return "-"
    return f"{'>= ' if bound else '<= ' if other_bound else ''}{ratio:.2f}"


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
        if not {"cells", "equal_latency", "scaling"} <= document.keys():
            raise ValueError
    except (OSError, ValueError, AttributeError) as cause:
        raise InputError(f"{path} is no result of benchmarks.balancing: {cause}") from None
    return document


if __name__ == "__main__":
    run_command(main)
