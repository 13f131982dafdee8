"""What could tell which call of a fan-out is on the critical path, in recorded programs.

    python -m benchmarks.fan_outs FILE [FILE ...] [--json RESULT]

A fan-out is calls of one program with the same parents. The critical one begins the longest chain,
counted in generated tokens. Nodes: whether calls of one fan-out are of several, where it is known
of all of them. Prompt: where the call with the longest one stands when the fan-out is ordered by
chains, from 0 for the longest to 1 for the shortest; 0.5 would be chance. Fan-outs whose chains are
all of one length have no such order.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from autellix.scheduler.sim_programs import SimProgram
from autellix.scheduler.sim_siblings import tokens_to_come
from benchmarks.options import run_command
from benchmarks.result_file import result_document, write_result
from benchmarks.workload_traces import read_trace


def fan_outs(program: SimProgram) -> Iterator[list[int]]:
    """Indices of calls with the same parents, where there are several."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, call in enumerate(program.calls):
        groups.setdefault(call.parents, []).append(index)
    return (group for group in groups.values() if len(group) > 1)


def place_of_longest_prompt(
    program: SimProgram, group: Sequence[int], chains: Sequence[int]
) -> float | None:
    """Where it stands among chains, 0 to 1; None where all chains are of one length."""
    longest = max(group, key=lambda index: program.calls[index].prompt_tokens)
    if len({chains[index] for index in group}) == 1:
        return None
    longer = sum(chains[index] > chains[longest] for index in group)
    alike = sum(chains[index] == chains[longest] for index in group) - 1
    return (longer + alike / 2) / (len(group) - 1)


def found_in(path: Path) -> dict[str, Any]:
    """The row of a file."""
    programs = read_trace(path).programs
    nodes: list[set[str]] = []
    ordered: list[float] = []
    for program in programs:
        chains = tokens_to_come(program)
        for group in fan_outs(program):
            nodes.append({program.calls[index].node for index in group})
            place = place_of_longest_prompt(program, group, chains)
            if place is not None:
                ordered.append(place)
    return {
        "file": path.name,
        "programs": len(programs),
        "fan_outs": len(nodes),
        "of_known_nodes": sum("" not in names for names in nodes),
        "of_several_nodes": sum("" not in names and len(names) > 1 for names in nodes),
        "place_of_longest_prompt": statistics.fmean(ordered) if ordered else None,
    }


def main(arguments: Sequence[str]) -> None:
    """Read the files, print and write the rows."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fan_outs", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="of recorded programs")
    parser.add_argument("--json", type=Path, metavar="RESULT", help="write the rows there")
    options = parser.parse_args(arguments)
    rows = []
    for path in options.files:
        rows.append(row := found_in(path))
        place = row["place_of_longest_prompt"]
        print(
            f"{row['file']:32} {row['programs']:5} programs {row['fan_outs']:6} fan-outs, "
            f"{row['of_several_nodes']} of {row['of_known_nodes']} of several nodes; "
            f"longest prompt at {'-' if place is None else format(place, '.2f')}",
            flush=True,
        )
    if options.json:
        write_result(options.json, result_document(cells=rows))


if __name__ == "__main__":
    run_command(main)
