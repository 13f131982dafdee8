"""Serve a workload under several policies and compare them.

    python -m benchmarks.replay --workload mixed --load 0.8,1.2 --json replay.json

Every policy sees the same programs at the same times. ``benchmarks.capacity`` says what load 1 is.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.experiment import Experiment
from benchmarks.figures import draw, require_matplotlib
from benchmarks.options import parser_of, run_command
from benchmarks.result_file import write_result


def main(arguments: Sequence[str]) -> None:
    """Run the cells, print and write them."""
    options = parser_of("replay", __doc__ or "", loads="1.2").parse_args(arguments)
    if options.plots:
        require_matplotlib()
    experiment = Experiment(options)
    runs = experiment.runs(lambda line: print(line, flush=True))
    if options.plots:
        draw(runs, options.plots, sweep=False)
    if options.json:
        write_result(options.json, experiment.document(runs, throughput_at_equal_latency=[]))
        experiment.store.remove()


if __name__ == "__main__":
    run_command(main)
