"""Measure every way to move KV blocks on this machine's GPU, in at most six minutes.

    python -m autellix.kernels.bench --out table.json
    python -m autellix.kernels.bench --trial      no GPU: does everything once and times nothing

It needs PyTorch and Triton, and a CUDA compiler for the C++ kernels (else Triton's are measured).
Before anything is timed, each way must bring the very bytes to the host and back.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from .bench_beds import CpuBed, CudaBed, clock
from .bench_ways import Bed, Scene, Way, ceiling_of, spoils, ways_of
from .calibration import calibrate
from .host_tier import Direction
from .pipeline import Part

LIMIT_S = 360.0
_REPEATS = 3
_REGIONS = 32
_PAGES_KIB = (8, 16, 24, 32, 64)
_COUNTS = (1, 4, 16, 64, 256, 1024)
_PACKED_KIB = 2048 // _REGIONS
_MOST_BYTES = 4 * 2**30
_LARGE_MOVE = 32 * 2**20
_DIRECTIONS: tuple[Direction, ...] = ("store", "load")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is tried.

    Attributes:
        pages: bytes of a page.
        counts: blocks of a move.
        packed_page: bytes of a region's share of a packed block.
        regions: regions of the pool.
        decode_steps: steps of the model that decodes beside moves.
    """

    pages: tuple[int, ...] = tuple(kib * 1024 for kib in _PAGES_KIB)
    counts: tuple[int, ...] = _COUNTS
    packed_page: int = _PACKED_KIB * 1024
    regions: int = _REGIONS
    decode_steps: int = 1000


TRIAL = Sizes(pages=(64, 256), counts=(1, 6), packed_page=128, regions=3, decode_steps=3)


@dataclass(slots=True, kw_only=True)
class Report:
    """What was found.

    Attributes:
        machine: card and versions.
        measured: False for a trial; then it holds no times.
        cells: GB/s by way, for each (direction, page bytes, packed, blocks).
        both_ways: GB/s of both directions at once, by way.
        decode_ms: percentiles of a decode step beside each way, milliseconds.
        not_run: what the time did not suffice for.
    """

    machine: dict[str, str]
    measured: bool
    cells: list[dict[str, Any]] = field(default_factory=list)
    both_ways: dict[str, float] = field(default_factory=dict)
    decode_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    not_run: list[str] = field(default_factory=list)


def run(bed: Bed, sizes: Sizes, limit_s: float = LIMIT_S) -> Report:
    """Measure; see the module.

    Raises:
        SystemExit: a way spoils data; nothing is measured then.
    """
    deadline = clock() + limit_s
    report = Report(
        machine={"card": bed.name, "torch": torch.__version__, "python": platform.python_version()},
        measured=bed.measures,
    )
    _check(bed, sizes)
    # What matters most first, should the time not suffice.
    _beside_each_other(bed, sizes, report, deadline)
    _beside_decode(bed, sizes, report, deadline)
    for page, packed in [(sizes.packed_page, True), *((page, False) for page in sizes.pages)]:
        for blocks in sizes.counts:
            where = f"{blocks} blocks of {page * sizes.regions} bytes, packed: {packed}"
            if 3 * blocks * page * sizes.regions > _MOST_BYTES:
                continue
            if clock() > deadline:
                report.not_run.append(where)
                continue
            report.cells += _cell(bed, sizes, page, packed, blocks)
            bed.free()
    return report


def _scene(bed: Bed, sizes: Sizes, page: int, packed: bool, blocks: int) -> Scene:
    layout = bed.pool(sizes.regions, 2 * blocks, page, packed=packed)
    host = bed.host(blocks, sizes.regions * page)
    order = torch.Generator().manual_seed(blocks)
    # Blocks lie anywhere, as after some use; rows of the host are given out in order.
    ids = torch.randperm(2 * blocks, generator=order)[:blocks]
    return Scene(
        layout=layout, host=host, part=Part(layout=layout, blocks=ids, rows=torch.arange(blocks))
    )


def _check(bed: Bed, sizes: Sizes) -> None:
    for page, packed in ((sizes.pages[0], False), (sizes.pages[-1], False), (4096, True)):
        for blocks in (1, 33):
            scene = _scene(bed, sizes, page, packed, blocks)
            measured = calibrate(bed.pipeline(scene.host), [scene.layout], clock=clock)
            for name, way in ways_of(bed, scene, measured).items():
                if spoils(bed, scene, way):
                    raise SystemExit(f"{name} spoils data: {blocks} blocks, pages of {page} bytes")
        bed.free()


def _cell(bed: Bed, sizes: Sizes, page: int, packed: bool, blocks: int) -> Iterator[dict[str, Any]]:
    scene = _scene(bed, sizes, page, packed, blocks)
    measured = calibrate(bed.pipeline(scene.host), [scene.layout], clock=clock)
    ways = {**ways_of(bed, scene, measured), "ceiling": ceiling_of(bed, scene)}
    for direction in _DIRECTIONS:
        speeds = {name: _speed(bed, scene, way, direction) for name, way in ways.items()}
        yield {
            "direction": direction,
            "page_bytes": page,
            "packed": packed,
            "blocks": blocks,
            "move_bytes": scene.size_bytes,
            "GB/s": speeds if bed.measures else dict.fromkeys(speeds),
        }


def _speed(bed: Bed, scene: Scene, way: Way, direction: Direction) -> float:
    way(direction)
    return round(scene.size_bytes / _median_time(lambda: way(direction)) / 1e9, 2)


def _median_time(work: Callable[[], Any]) -> float:
    times: list[float] = []
    for _ in range(_REPEATS):
        started = clock()
        work()
        times.append(max(clock() - started, 1e-9))
    return median(times)


def _beside_each_other(bed: Bed, sizes: Sizes, report: Report, deadline: float) -> None:
    """Both directions at once, from two threads, as a swap out and a swap in meet."""
    page, blocks = sizes.pages[1], sizes.counts[-2]
    out, back = (_scene(bed, sizes, page, False, blocks) for _ in _DIRECTIONS)
    for name in ways_of(bed, out, None):
        if clock() > deadline:
            report.not_run.append(f"both ways: {name}")
            continue
        ways: list[tuple[Way, Direction]] = [
            (ways_of(bed, out, None)[name], "store"),
            (ways_of(bed, back, None)[name], "load"),
        ]

        def go(way: Way, direction: Direction) -> None:
            with bed.apart():
                for _ in range(_REPEATS):
                    way(direction)

        for way, direction in ways:
            way(direction)
        threads = [threading.Thread(target=go, args=pair) for pair in ways]
        started = clock()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        moved = 2 * _REPEATS * out.size_bytes
        report.both_ways[name] = round(moved / max(clock() - started, 1e-9) / 1e9, 2)
    if not bed.measures:
        report.both_ways = dict.fromkeys(report.both_ways, 0.0)
    bed.free()


def _beside_decode(bed: Bed, sizes: Sizes, report: Report, deadline: float) -> None:
    """Steps of a model that decodes, while each way moves blocks without pause."""
    scene = _scene(bed, sizes, sizes.pages[1], False, sizes.counts[-2])
    bed.decode(sizes.decode_steps // 10 + 1)
    report.decode_ms["alone"] = _percentiles(bed.decode(sizes.decode_steps))
    for name, way in ways_of(bed, scene, None).items():
        if clock() > deadline:
            report.not_run.append(f"beside decode: {name}")
            continue
        over = threading.Event()

        def move(way: Way = way, over: threading.Event = over) -> None:
            with bed.apart():
                while not over.is_set():
                    way("store")
                    way("load")

        mover = threading.Thread(target=move)
        mover.start()
        report.decode_ms[name] = _percentiles(bed.decode(sizes.decode_steps))
        over.set()
        mover.join()
    if not bed.measures:
        report.decode_ms = {name: {} for name in report.decode_ms}
    bed.free()


def _percentiles(seconds: list[float]) -> dict[str, float]:
    cuts = quantiles([s * 1e3 for s in seconds], n=100)
    return {"p50": round(cuts[49], 4), "p99": round(cuts[98], 4)}


def verdicts(report: Report) -> list[str]:
    """The goals, each with what was found; empty for a trial."""
    if not report.measured:
        return []
    lines: list[str] = []
    for cell in report.cells:
        speeds = cell["GB/s"]
        where = f"{cell['direction']} {cell['blocks']} x {cell['page_bytes'] // 1024} KiB pages"
        if cell["move_bytes"] < _LARGE_MOVE:
            continue
        if not cell["packed"] and cell["page_bytes"] <= 24 * 1024:
            share = speeds["staged"] / speeds["ceiling"]
            lines.append(f"{_mark(share >= 0.95)} staged is {share:.2f} of the ceiling: {where}")
        best = max(v for name, v in speeds.items() if name not in ("ceiling", "dispatcher"))
        share = speeds["dispatcher"] / best
        lines.append(f"{_mark(share >= 0.97)} dispatcher is {share:.2f} of the best: {where}")
    ours, batch = report.decode_ms.get("staged"), report.decode_ms.get("vllm batch")
    if ours and batch:
        share = ours["p99"] / batch["p99"]
        lines.append(f"{_mark(share <= 1.02)} decode p99 beside staged is {share:.2f} of batch's")
    return lines


def _mark(good: bool) -> str:
    return "pass" if good else "FAIL"


def table(report: Report) -> str:
    """The report for people."""
    lines = [" ".join(f"{key} {value}" for key, value in report.machine.items())]
    names = sorted({name for cell in report.cells for name in cell["GB/s"]})
    lines.append("GB/s: " + ", ".join(names))
    for cell in report.cells:
        speeds = cell["GB/s"]
        shown = " ".join(f"{_number(speeds.get(name)):>8}" for name in names)
        lines.append(
            f"{cell['direction']:5} {cell['page_bytes'] / 1024:7.2f} KiB "
            f"{'packed' if cell['packed'] else 'apart ':6} {cell['blocks']:5} {shown}"
        )
    lines += [f"both ways: {name} {_number(v)}" for name, v in report.both_ways.items()]
    lines += [f"decode beside {name}: {found}" for name, found in report.decode_ms.items()]
    lines += [f"not run: {what}" for what in report.not_run]
    return "\n".join([*lines, *verdicts(report)])


def _number(value: float | None) -> str:
    return f"{value:.1f}" if value else "-"


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m autellix.kernels.bench", description=__doc__)
    parser.add_argument("--out", type=Path, help="write the figures to this file, as JSON")
    parser.add_argument("--trial", action="store_true", help="without a GPU: time nothing")
    given = parser.parse_args(arguments)
    if not given.trial and not torch.cuda.is_available():
        print("There is no GPU here, so nothing can be measured; --trial checks the script.")
        return 1
    report = run(CpuBed(), TRIAL) if given.trial else run(CudaBed(), Sizes())
    print(table(report))
    if given.out is not None:
        given.out.write_text(json.dumps({**asdict(report), "goals": verdicts(report)}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
