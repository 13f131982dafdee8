"""What is measured at start, and how it decides; the clock is the test's."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from autellix.kernels.calibration import Calibration, Cell, calibrate
from autellix.kernels.dispatcher import Dispatcher
from autellix.kernels.layout import PagedLayout
from autellix.kernels.pipeline import Part, Pipeline
from autellix.kernels.streams import Path
from tests.kernels.adversary import Adversary

BLOCKS = 600


class Machine(Adversary):
    """Every way takes the time that the test says."""

    def __init__(self, seconds: Callable[[str, Path, int], float]) -> None:
        super().__init__(0)
        self.seconds = seconds
        self.time = 0.0
        self.measured: list[tuple[str, Path, int]] = []

    def copy(self, stream, copies, path, *, direction, stable_source):
        self.time += self.seconds(direction, path, len(copies))
        self.measured.append((direction, path, len(copies)))
        return super().copy(stream, copies, path, direction=direction, stable_source=stable_source)


def layout_of(page: int = 16, regions: int = 4, blocks: int = BLOCKS) -> PagedLayout:
    noise = torch.Generator().manual_seed(1)
    return PagedLayout.side_by_side(
        [
            torch.randint(0, 256, (blocks, page), dtype=torch.uint8, generator=noise)
            for _ in range(regions)
        ]
    )


def measure(
    machine: Machine, layout: PagedLayout, **options: float
) -> tuple[Pipeline, Calibration]:
    host = torch.zeros((BLOCKS, layout.row_bytes), dtype=torch.uint8)
    pipeline = Pipeline(machine, host)
    return pipeline, calibrate(pipeline, [layout], clock=lambda: machine.time, **options)


def part(layout: PagedLayout, count: int) -> Part:
    return Part(layout=layout, blocks=torch.arange(count), rows=torch.arange(count))


def few_are_better_alone(direction: str, path: Path, copies: int) -> float:
    """A bulk copy is one copy; a batch pays for each; mapped memory is good at loads alone."""
    if path == Path.MAPPED:
        return 1e-4 if direction == "load" else 1.0
    return 3e-5 * copies if path == Path.BATCH else 2e-3


def test_the_fastest_measured_way_is_taken_in_every_cell() -> None:
    machine = Machine(few_are_better_alone)
    layout = layout_of()
    pipeline, measured = measure(machine, layout, budget_s=100.0)
    dispatcher = Dispatcher(pipeline, measured)
    assert {cell.blocks for cell in measured.seconds} == {1, 4, 16, 64, 256}
    for cell, ways in measured.seconds.items():
        assert set(ways) == {Path.STAGED, Path.BATCH, Path.MAPPED, Path.VLLM}
        chosen = dispatcher.choose(cell.direction, [part(layout, cell.blocks)])
        assert ways[chosen] == min(ways.values())


def test_vllms_own_path_is_a_candidate_everywhere_and_wins_where_it_is_fastest() -> None:
    machine = Machine(lambda d, path, n: 1e-5 if path == Path.VLLM else 1e-3)
    layout = layout_of()
    pipeline, measured = measure(machine, layout, budget_s=100.0)
    dispatcher = Dispatcher(pipeline, measured)
    for blocks in (1, 3, 100, 500):
        assert dispatcher.choose("store", [part(layout, blocks)]) == Path.VLLM
        assert dispatcher.choose("load", [part(layout, blocks)]) == Path.VLLM


def test_directions_are_measured_apart() -> None:
    def seconds(direction: str, path: Path, copies: int) -> float:
        wanted = Path.MAPPED if direction == "load" else Path.BATCH
        return 1e-5 if path == wanted and copies > 1 else 1e-3

    machine = Machine(seconds)
    layout = layout_of()
    pipeline, measured = measure(machine, layout, budget_s=100.0)
    dispatcher = Dispatcher(pipeline, measured)
    assert dispatcher.choose("load", [part(layout, 64)]) == Path.MAPPED
    assert dispatcher.choose("store", [part(layout, 64)]) == Path.BATCH


def test_the_pool_is_as_it_was_afterwards() -> None:
    layout = layout_of()
    before = [view.clone() for view in layout.regions]
    measure(Machine(lambda *_: 1e-4), layout)
    assert all(map(torch.equal, layout.regions, before))


def test_it_stops_when_its_time_is_used_up() -> None:
    machine = Machine(lambda *_: 0.01)
    _, measured = measure(machine, layout_of(), budget_s=0.1)
    assert {cell.blocks for cell in measured.seconds} == {1}, "a cell is measured whole"
    assert {cell.direction for cell in measured.seconds} == {"store", "load"}


def test_a_packed_block_is_not_staged() -> None:
    layout = layout_of(page=64, regions=1)
    _, measured = measure(Machine(lambda *_: 1e-4), layout, budget_s=100.0)
    assert all(Path.STAGED not in ways for ways in measured.seconds.values())


def test_the_nearest_cell_is_near_in_ratio() -> None:
    cells = {
        Cell(direction="load", blocks=n, block_bytes=64): {Path.BATCH: 1.0} for n in (1, 16, 256)
    }
    measured = Calibration(seconds=cells)
    for blocks, nearest in ((1, 1), (3, 1), (5, 16), (63, 16), (70, 256), (10**6, 256)):
        cell = measured.nearest("load", blocks, 64)
        assert cell is not None and cell.blocks == nearest
    assert measured.nearest("store", 4, 64) is None


def test_the_table_shows_speeds_and_marks_the_fastest() -> None:
    cell = Cell(direction="load", blocks=4, block_bytes=500_000)
    table = Calibration(seconds={cell: {Path.STAGED: 1e-4, Path.BATCH: 4e-4}}).table()
    assert table.splitlines()[1].split() == ["load", "4", "488", "5.0", "20.0*"]
    assert Calibration(seconds={cell: {Path.BATCH: 1e-4}}).bytes_per_s("load") == 2e10


@pytest.mark.parametrize(
    ("page", "regions", "blocks", "way"),
    [
        (8 * 1024, 4, 64, Path.STAGED),
        (8 * 1024, 4, 4, Path.BATCH),
        (32 * 1024, 4, 64, Path.VLLM),
        (64 * 1024, 4, 64, Path.BATCH),
        (256 * 1024, 1, 64, Path.BATCH),
    ],
)
def test_without_measurements_the_table_decides(
    page: int, regions: int, blocks: int, way: Path
) -> None:
    layout = layout_of(page, regions, 64)
    pipeline = Pipeline(Machine(lambda *_: 0.0), torch.zeros((64, layout.row_bytes)).byte())
    assert Dispatcher(pipeline).choose("store", [part(layout, blocks)]) == way


def test_a_device_with_vllms_path_alone_uses_it() -> None:
    machine = Machine(lambda *_: 1e-4)
    machine.paths = (Path.VLLM,)  # type: ignore[misc]
    machine.can_stage = lambda layout: False  # type: ignore[method-assign]
    layout = layout_of()
    pipeline, measured = measure(machine, layout)
    assert {way for ways in measured.seconds.values() for way in ways} == {Path.VLLM}
    draw = random.Random(0)
    for _ in range(20):
        chosen = Dispatcher(pipeline).choose("load", [part(layout, draw.randint(1, 64))])
        assert chosen == Path.VLLM
