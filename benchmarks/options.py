"""Options that ``benchmarks.replay`` and ``benchmarks.sweep`` have in common, and how they fail."""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autellix.errors import AutellixError, UsageError
from autellix.scheduler.balancers import BALANCER_NAMES, DEFAULT_BALANCER
from autellix.scheduler.sim_host import TIERS
from autellix.scheduler.sim_orders import SIM_POLICIES
from benchmarks.workloads import NAMES

MOST_LOAD = 3.0
REAL = "vllm"

_EXAMPLES = """examples:
  python -m benchmarks.{name} --workload mixed --load 0.8,1.2 --json out.json
  python -m benchmarks.{name} --workload bfcl --workload lats --seed 1,2,3 --jobs 2 --json out.json
  python -m benchmarks.{name} --workload trace:programs.jsonl.gz --engine sim:measured.json
  python -m benchmarks.{name} --engine vllm --policies vllm-opt,plas,atlas --programs 60 --load 1.2
"""


def parser_of(name: str, description: str, *, loads: str) -> argparse.ArgumentParser:
    """The parser of a command.

    Args:
        loads: the default of ``--load``.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=description.partition("\n")[0],
        epilog=_EXAMPLES.format(name=name),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    names = ", ".join(NAMES)
    workload = f"{names}, or trace:FILE[.gz][,FILE...]; repeatable [mixed]"
    add("--workload", action="append", metavar="NAME", help=workload)
    add("--engine", default="sim:a100-llama3-8b", help="sim:PRESET, sim:FILE.json or vllm")
    every = f"names, split by commas [{','.join(SIM_POLICIES)}; vllm: without srpt]"
    add("--policies", metavar="LIST", help=every)
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--load", default=loads, help="rate / capacity, split by commas, at most 3")
    when.add_argument("--rate", help="programs a second, split by commas")
    when.add_argument("--offline", action="store_true", help="all programs are there at the start")
    when.add_argument("--closed-loop", type=int, metavar="N", help="N programs under way")
    add("--programs", type=int, default=300, help="programs a cell")
    add("--seed", default="1", help="seeds, split by commas")
    add("--seats", type=int, help="most calls in a step, instead of the engine's own")
    add("--kv-tokens", type=int, metavar="N", help="KV capacity, instead of the engine's own")
    add("--replicas", type=int, default=1)
    add("--balancer", default=DEFAULT_BALANCER, help=", ".join(BALANCER_NAMES))
    add(
        "--host-gib", type=float, default=0.0, metavar="N", help="host memory for KV, GiB a replica"
    )
    tiers = "what the host keeps: every program's KV, as vLLM does, or preempted calls' alone"
    add("--tier", choices=TIERS, default="programs", help=f"{tiers} [programs]")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a scheduler setting")
    add("--strict", action="store_true", help="stop at the first bad line of a trace")
    add("--seconds", type=float, default=120.0, help="vllm: most seconds of a policy in a cell")
    add("--factor", type=float, help="vllm: scale programs by this instead of by --seconds")
    add("--jobs", type=int, default=1, help="processes; the cells are the same")
    add("--json", type=Path, metavar="FILE", help="write the cells there; goes on where it stopped")
    add("--plots", type=Path, metavar="DIR", help="draw figures there (needs matplotlib)")
    return parser


def run_command(main: Callable[[Sequence[str]], None]) -> None:
    """Run a command; what is wrong with its options is said in a paragraph, with exit code 2."""
    fewer_collections()
    try:
        main(sys.argv[1:])
    except AutellixError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:  # what is printed is read no further, as by `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None


def fewer_collections() -> None:
    """Let Python look for cycles seldom.

    Simulations make millions of small objects and no cycles: looking for some takes a fifth of
    the time.
    """
    if platform.python_implementation() == "CPython":  # PyPy's collector has no thresholds
        gc.set_threshold(200_000, 50, 50)


def names_in(text: str, option: str) -> list[str]:
    """Names split by commas.

    Raises:
        UsageError: there is none.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError(f"{option} must name at least one, got {text!r}")
    return names


def whole_numbers_in(text: str, option: str) -> list[int]:
    """Whole numbers split by commas.

    Raises:
        UsageError: something else is there.
    """
    try:
        return [int(name) for name in names_in(text, option)]
    except ValueError:
        raise UsageError(f"{option} must be whole numbers split by commas, got {text!r}") from None


def numbers_in(text: str, option: str, most: float = float("inf")) -> list[float]:
    """Numbers above 0 split by commas, in ascending order.

    Raises:
        UsageError: something else is there.
    """
    numbers = []
    for part in names_in(text, option):
        try:
            number = float(part)
        except ValueError:
            raise UsageError(f"{option} must be numbers split by commas, got {part!r}") from None
        if not 0 < number <= most or number == float("inf"):
            limit = f" and at most {most:g}" if most < float("inf") else ""
            raise UsageError(f"{option} must be above 0{limit}, got {part}")
        numbers.append(number)
    return sorted(set(numbers))


def setting_in(text: str) -> tuple[str, Any]:
    """``NAME=VALUE`` of a scheduler setting; the value is JSON where it parses, else text.

    Raises:
        UsageError: there is no "=".
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set must be NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
