"""Latency of policies over a range of loads, and the rates at which they reach the same latency.

    python -m benchmarks.sweep --workload mixed --seed 1,2,3 --json sweep.json --plots figures

A load of 0.03, where hardly two programs meet, is always among the loads: the latencies at which
rates are compared are multiples of the one there.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.experiment import Experiment
from benchmarks.figures import draw, require_matplotlib
from benchmarks.metrics import UNLOADED, throughput_at_equal_latency
from benchmarks.options import parser_of, run_command
from benchmarks.result_file import write_result

LOADS = "0.1,0.2,0.35,0.5,0.65,0.8,0.9,0.95,1.0,1.1,1.2,1.35,1.5,2.0"


def main(arguments: Sequence[str]) -> None:
    """Run the cells, print and write them."""
    options = parser_of("sweep", __doc__ or "", loads=LOADS).parse_args(arguments)
    if options.plots:
        require_matplotlib()
    experiment = Experiment(options)
    if UNLOADED not in experiment.loads:
        experiment.loads = sorted([UNLOADED, *experiment.loads])
    runs = experiment.runs(lambda line: print(line, flush=True))
    rows = throughput_at_equal_latency([run.cell for run in runs])
    for row in rows:
        bound = ">= " if row["policy_bound"] else ""
        print(
            f"{row['workload']}: at {row['latency_factor']:g}x the unloaded latency "
            f"{row['policy']} "
            f"serves {bound}{row['policy_rate']:.4g} programs/s, {bound}"
            f"{row['ratio']:.2f} times {row['baseline']}"
        )
    if options.plots:
        draw(runs, options.plots, sweep=True)
    if options.json:
        document = experiment.document(runs, throughput_at_equal_latency=rows)
        write_result(options.json, document)
        experiment.store.remove()


if __name__ == "__main__":
    run_command(main)
