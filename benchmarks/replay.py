"""Serve a workload under several policies and compare them.

    python -m benchmarks.replay --workload mixed --load 0.8,1.2 --json replay.json

Every policy sees the same programs at the same times. ``benchmarks.capacity`` says what load 1 is.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.experiment import Experiment, add_options, run_command
from benchmarks.figures import draw_replay, require_matplotlib
from benchmarks.result_file import result_document, write_result


def main(arguments: Sequence[str]) -> None:
    """Run the cells, print and write them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replay", description=(__doc__ or "").partition("\n")[0]
    )
    add_options(parser, loads="1.2")
    options = parser.parse_args(arguments)
    if options.plots:
        require_matplotlib()
    experiment = Experiment(options)
    runs = experiment.runs(lambda line: print(line, flush=True))
    if options.plots:
        draw_replay(runs, options.plots)
    if options.json:
        document = result_document(
            capacity={str(seed): asdict(found) for seed, found in experiment.capacities.items()},
            cells=[run.cell for run in runs],
            throughput_at_equal_latency=[],
        )
        write_result(options.json, document)


if __name__ == "__main__":
    run_command(main)
