"""All cells of a result as Markdown tables.

    python -m benchmarks.tables benchmarks/results/sweep.json

For every workload and load: one row a policy, the means over the seeds. What is given beside a
policy's mean latency: against ``vllm`` (what caching and scheduling give together), against
``vllm-opt`` (what scheduling gives alone), as how many times lower. Where the baseline did not run
there is a dash. Of several results, a cell in a later one takes the place of the same cell in an
earlier one. Then the rates at equal latency, if a result has them, of all results together: a
baseline may be in another one. Of a result of
``benchmarks.agreement``: one row a load and policy, the real engine beside the simulator.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from autellix.errors import InputError
from benchmarks.metrics import Cell, throughput_at_equal_latency
from benchmarks.options import run_command

Row = Sequence[str]
BASELINES = ("vllm", "vllm-opt")
_SAME_CELL = ("workload", "seed", "policy", "load", "rate", "engine", "programs", "tier")


def main(arguments: Sequence[str]) -> None:
    """Print the tables."""
    parser = parser_of_results("tables", __doc__ or "", "benchmarks/results/sweep.json > tables.md")
    options = parser.parse_args(arguments)
    print(rendered([read_result(path) for path in options.files]))


def parser_of_results(name: str, doc: str, example: str) -> argparse.ArgumentParser:
    """The options of a command that reads results.

    Args:
        name, doc: of its module.
        example: what may follow its name.
    """
    command = f"python -m benchmarks.{name}"
    parser = argparse.ArgumentParser(
        prog=command,
        description=doc.partition("\n")[0],
        epilog=f"example: {command} {example}",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="results, put together")
    return parser


def rendered(documents: Sequence[dict[str, Any]]) -> str:
    """The tables of results put together."""
    parts = [_agreement_table(document["pieces"]) for document in documents if "pieces" in document]
    documents = [document for document in documents if "pieces" not in document]
    cells = put_together(documents)
    for name in dict.fromkeys(cell["workload"] for cell in cells):
        mine = [cell for cell in cells if cell["workload"] == name]
        parts.append(f"### {name}\n\n{_cells_table(mine)}")
    if any(document["throughput_at_equal_latency"] for document in documents):
        rows = throughput_at_equal_latency(cells)
        parts.append(f"### Rates at equal latency\n\n{_rates_table(rows)}")
    return "\n\n".join(parts)


def put_together(documents: Sequence[dict[str, Any]]) -> list[Cell]:
    """The cells of several results; of the same cell the last one counts."""
    found: dict[tuple[Any, ...], Cell] = {}
    for document in documents:
        for cell in document["cells"]:
            # The rate of a load tells engines of other sizes apart.
            found[tuple(cell.get(name) for name in _SAME_CELL)] = cell
    return list(found.values())


def read_result(path: Path) -> dict[str, Any]:
    """A result of replay, sweep or agreement.

    Raises:
        InputError: it cannot be read, or is none.
    """
    try:
        document = json.loads(path.read_text())
        if "pieces" in document:
            assert isinstance(document["pieces"], dict)
        else:
            assert all(cell.keys() >= {*_SAME_CELL[:5]} for cell in document["cells"])
            assert isinstance(document["throughput_at_equal_latency"], list)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError):
        raise InputError(
            f"{path} is no result of benchmarks.replay, benchmarks.sweep or benchmarks.agreement: "
            "it has no list of cells; write one with --json"
        ) from None
    return document


def _cells_table(cells: Sequence[Cell]) -> str:
    head = (
        "load",
        "policy",
        "mean ms/token",
        "P95",
        "P99",
        "vs vllm",
        "vs vllm-opt",
        "mean response s",
        "makespan s",
        "wait",
        "hits",
        "preemptions",
        "stable",
    )
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((_when(cell), cell["policy"]), []).append(cell)
    means = {
        (when, policy): fmean(c["mean_token_latency_s"] for c in group)
        for (when, policy), group in groups.items()
    }
    rows = []
    for (when, policy), group in groups.items():
        against = [_times_lower(means.get((when, b)), means[when, policy]) for b in BASELINES]
        rows.append((when, policy, *_latencies(group), *against, *_others(group)))
    return markdown_table(head, rows)


def _when(cell: Cell) -> str:
    if cell["load"] is not None:
        return f"{cell['load']:g}"
    return f"{cell['rate']:.4g}/s" if cell["rate"] is not None else "offline"


def _latencies(group: Sequence[Cell]) -> Row:
    keys = ("mean_token_latency_s", "p95_token_latency_s", "p99_token_latency_s")
    return tuple(_three(1e3 * fmean(cell[key] for cell in group)) for key in keys)


def _others(group: Sequence[Cell]) -> Row:
    def mean(key: str) -> float:
        return fmean(cell[key] for cell in group)

    known = [cell["stable"] for cell in group if cell["stable"] is not None]
    stable = "-" if not known else "yes" if all(known) else "no" if not any(known) else "partly"
    return (
        _three(mean("mean_response_s")),
        _three(mean("makespan_s")),
        f"{mean('wait_share'):.0%}",
        f"{mean('cache_hit_rate'):.0%}",
        f"{mean('preemptions'):,.0f}",
        stable,
    )


def _rates_table(rows: Sequence[dict[str, Any]]) -> str:
    head = ("workload", "latency", "policy", "rate /s", "baseline", "rate /s", "ratio", "stable")
    return markdown_table(
        head,
        [
            (
                row["workload"],
                f"{row['latency_factor']:g}x unloaded",
                row["policy"],
                _bound(row["policy_rate"], row["policy_bound"]),
                row["baseline"],
                _bound(row["baseline_rate"], row["baseline_bound"]),
                "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
                "yes" if row["stable"] else "no",
            )
            for row in rows
        ],
    )


def _agreement_table(pieces: dict[str, Any]) -> str:
    head = (
        "load",
        "policy",
        "mean response s, real",
        "simulated",
        "error",
        "P95, real",
        "simulated",
        "wait, real",
        "simulated",
        "preemptions, real",
        "simulated",
        "step times alone",
        "error at the run's own step speed",
    )
    rows = []
    for piece in sorted(pieces.values(), key=lambda piece: piece["load"]):
        for row in piece["rows"]:
            real, simulated = row["real"], row["simulated"]
            rows.append(
                (
                    f"{piece['load']:g}",
                    row["policy"],
                    f"{real['mean_response_s']:.2f}",
                    f"{simulated['mean_response_s']:.2f}",
                    f"{row['error']:+.1%}",
                    f"{real['p95_response_s']:.2f}",
                    f"{simulated['p95_response_s']:.2f}",
                    f"{real['wait_share']:.0%}",
                    f"{simulated['wait_share']:.0%}",
                    f"{real['preemptions']}",
                    f"{simulated['preemptions']}",
                    f"{row['steps_error']:+.1%}",
                    f"{row['error_at_own_speed']:+.1%}",
                )
            )
    return markdown_table(head, rows)


def markdown_table(head: Row, rows: Sequence[Row]) -> str:
    """One table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _times_lower(baseline: float | None, mean: float) -> str:
    return "-" if baseline is None else f"{baseline / mean:.2f}x"


def _bound(rate: float, is_bound: bool) -> str:
    return f">= {rate:.4g}" if is_bound else f"{rate:.4g}"


def _three(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0:
        return "0"
    digits = max(0, 2 - _exponent(value))
    return f"{value:,.{digits}f}"


def _exponent(value: float) -> int:
    return int(f"{value:e}".partition("e")[2])


if __name__ == "__main__":
    run_command(main)
