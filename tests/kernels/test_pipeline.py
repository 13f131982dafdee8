"""Moves in time: the result is that of one thing after the other, in whatever order work runs."""

from __future__ import annotations

import random

import pytest
import torch

from autellix.errors import KvMoveError
from autellix.kernels.layout import PagedLayout, byte_view
from autellix.kernels.pipeline import Move, Part, Pipeline
from autellix.kernels.streams import Path
from tests.kernels.adversary import Adversary

BLOCKS, ROWS, PAGE, REGIONS = 12, 10, 16, 3


def pool_of(seed: int) -> PagedLayout:
    noise = torch.Generator().manual_seed(seed)
    return PagedLayout.side_by_side(
        [
            torch.randint(0, 256, (BLOCKS, PAGE), dtype=torch.uint8, generator=noise)
            for _ in range(REGIONS)
        ]
    )


def part(layout: PagedLayout, blocks: list[int], rows: list[int]) -> Part:
    return Part(layout=layout, blocks=torch.tensor(blocks), rows=torch.tensor(rows))


class World:
    """A pool, a host pool and a model, and what they would be if everything happened at once.

    As vLLM does, the model touches blocks of a move only after waiting for it (``flush``).
    """

    def __init__(self, seed: int, device: Adversary, *, flush: bool = True) -> None:
        self.random = random.Random(seed)
        self.device = device
        self.flush = flush
        self.layout = pool_of(seed)
        self.host = torch.zeros((ROWS, PAGE * REGIONS), dtype=torch.uint8)
        self.pipeline = Pipeline(device, self.host, slots=2, slot_bytes=2 * PAGE * REGIONS)
        self.pool_now = [view.clone() for view in self.layout.regions]
        self.host_now = self.host.clone()
        self.seen: list[torch.Tensor] = []
        self.seen_now: list[torch.Tensor] = []
        self.moves: list[tuple[Move, str, set[int]]] = []

    def act(self) -> None:
        kind = self.random.choice(["write", "read", "store", "load", "load", "run"])
        if kind == "run":
            self.device.run_some(self.random.randint(1, 12))
        elif kind in ("write", "read"):
            self.model(self.random.randrange(BLOCKS), write=kind == "write")
        else:
            self.move(kind)

    def model(self, block: int, *, write: bool) -> None:
        for move, kind, blocks in self.moves:
            if self.flush and block in blocks and (write or kind == "load"):
                move.wait()
        if write:
            value = self.random.randrange(256)
            for view in self.pool_now:
                view[block] = value
            self.device.run_model(
                lambda: [view[block].fill_(value) for view in self.layout.regions] and None
            )
        else:
            self.seen_now.append(torch.cat([view[block] for view in self.pool_now]))
            self.device.run_model(
                lambda: self.seen.append(torch.cat([v[block] for v in self.layout.regions]))
            )

    def move(self, kind: str) -> None:
        count = self.random.randint(1, 7)
        blocks = self.random.sample(range(BLOCKS), count)
        rows = self.random.sample(range(ROWS), count)
        path = self.random.choice([Path.STAGED, Path.STAGED, Path.BATCH, Path.MAPPED])
        given = part(self.layout, blocks, rows)
        move = self.pipeline.submit("store" if kind == "store" else "load", [given], path)
        given.blocks.fill_(0)  # the caller's buffers are its own again
        given.rows.fill_(0)
        for i, view in enumerate(self.pool_now):
            cells = self.host_now[:, i * PAGE : (i + 1) * PAGE]
            if kind == "store":
                cells[rows] = view[blocks]
            else:
                view[blocks] = cells[rows]
        self.moves.append((move, kind, set(blocks)))

    def agrees(self) -> bool:
        self.device.run_all()
        return (
            all(map(torch.equal, self.layout.regions, self.pool_now))
            and torch.equal(self.host, self.host_now)
            and len(self.seen) == len(self.seen_now)
            and all(map(torch.equal, self.seen, self.seen_now))
        )


def run(seed: int, *, flush: bool = True, stable: bool = False, **device: object) -> bool:
    """Whether a random run ended as it should."""
    adversary = Adversary(seed, **device)  # type: ignore[arg-type]
    adversary.everything_stable = stable
    world = World(seed, adversary, flush=flush)
    for _ in range(40):
        world.act()
    return world.agrees()


def test_the_result_is_that_of_one_thing_after_the_other() -> None:
    assert all(run(seed) for seed in range(150))


@pytest.mark.parametrize(
    ("waiting", "ahead"),
    [
        pytest.param("store-kernel", "model", id="a gather waits for the last writer (vllm 45704)"),
        pytest.param("store-copy", "model", id="a direct store waits for the last writer"),
        pytest.param("load-kernel", "model", id="a scatter waits for the last reader (vllm 47282)"),
        pytest.param("load-copy", "model", id="a direct load waits for the last reader"),
        pytest.param("store-copy", "store-kernel", id="a slot is emptied when it is full"),
        pytest.param("store-kernel", "store-copy", id="a slot is gathered into when it is empty"),
        pytest.param("load-kernel", "load-copy", id="a slot is scattered when it is full"),
        pytest.param("load-copy", "load-kernel", id="a slot is loaded into when it is empty"),
        pytest.param("load-copy", "store-copy", id="a load waits for a store that it meets"),
        pytest.param("store-copy", "load-copy", id="a store waits for a load that it meets"),
        pytest.param("store-copy", "load-kernel", id="a direct store waits for a staged load"),
        pytest.param("store-kernel", "load-kernel", id="a staged store waits for a staged load"),
    ],
)
def test_without_this_wait_data_is_spoilt(waiting: str, ahead: str) -> None:
    assert not all(run(seed, deaf={(waiting, ahead)}) for seed in range(300))


def test_device_memory_read_ahead_of_the_stream_is_spoilt() -> None:
    """vllm 39306: with the order ANY, a copy to the host read ahead of the model."""
    assert not all(run(seed, stable=True) for seed in range(100))


def test_only_host_rows_that_nobody_writes_are_read_ahead() -> None:
    device = Adversary(0)
    world = World(0, device)
    layout, pipeline = world.layout, world.pipeline
    pipeline.submit("store", [part(layout, [1, 2], [3, 4])], Path.STAGED)
    pipeline.submit("load", [part(layout, [5], [6])], Path.STAGED)
    pipeline.submit("load", [part(layout, [7], [3])], Path.BATCH)
    assert device.orders == [("store-copy", False), ("load-copy", True), ("load-copy", False)]


def test_blocks_are_reused_only_after_the_move() -> None:
    """vllm 48596, 29870, 46951: blocks were reused with stores in flight."""
    assert not all(run(seed, flush=False) for seed in range(100))


def test_what_a_move_reads_is_kept_until_it_is_done() -> None:
    """TRT-LLM 15546: an index buffer was overwritten in flight."""
    world = World(0, Adversary(0))
    move = world.pipeline.submit("store", [part(world.layout, [1], [1])], Path.BATCH)
    move._kept.clear()
    with pytest.raises(AssertionError, match="given back while in use"):
        world.device.run_all()


def test_the_callers_ids_are_its_own_again_at_once() -> None:
    world = World(1, Adversary(1))
    given = part(world.layout, [3, 4, 5], [0, 1, 2])
    world.pipeline.submit("store", [given], Path.STAGED)
    given.blocks.fill_(0)
    world.device.run_all()
    for i, view in enumerate(world.layout.regions):
        assert torch.equal(world.host[:3, i * PAGE : (i + 1) * PAGE], view[3:6])


def test_a_move_during_graph_capture_is_refused() -> None:
    """rmm 2518: a batch copy was dropped under graph capture."""
    device = Adversary(0)
    world = World(0, device)
    device.in_capture = True
    with pytest.raises(KvMoveError, match="graph is being captured"):
        world.pipeline.submit("store", [part(world.layout, [1], [1])], Path.STAGED)
    assert not any(queue.work for queue in device.queues), "nothing was queued"


@pytest.mark.parametrize("path", [Path.STAGED, Path.BATCH])
def test_a_destination_named_twice_is_refused(path: Path) -> None:
    world = World(0, Adversary(0))
    with pytest.raises(KvMoveError, match="named twice"):
        world.pipeline.submit("store", [part(world.layout, [1, 2], [3, 3])], path)
    with pytest.raises(KvMoveError, match="named twice"):
        world.pipeline.submit("load", [part(world.layout, [1, 1], [3, 4])], path)
    world.pipeline.submit("store", [part(world.layout, [1, 1], [3, 4])], path)


def test_ids_out_of_range_are_refused() -> None:
    world = World(0, Adversary(0))
    with pytest.raises(KvMoveError, match=f"Blocks .* there are {BLOCKS}"):
        world.pipeline.submit("store", [part(world.layout, [BLOCKS], [0])], Path.BATCH)
    with pytest.raises(KvMoveError, match=f"Host rows .* there are {ROWS}"):
        world.pipeline.submit("load", [part(world.layout, [0], [-1])], Path.BATCH)


def test_gaps_between_pages_are_never_copied() -> None:
    """FlexKV 202: merging runs copied the gaps."""
    device = Adversary(0)
    padded = torch.randint(0, 255, (BLOCKS, 40), dtype=torch.uint8)
    layout = PagedLayout.side_by_side([byte_view(padded, 24)])
    host = torch.full((ROWS, 24), 255, dtype=torch.uint8)
    pipeline = Pipeline(device, host, slots=2, slot_bytes=64)
    before = padded.clone()
    pipeline.submit("store", [part(layout, [2, 3, 4], [0, 1, 2])], Path.BATCH)
    device.run_all()
    assert torch.equal(host[:3], before[2:5, :24])
    pipeline.submit("load", [part(layout, [7, 8], [0, 1])], Path.BATCH)
    device.run_all()
    assert torch.equal(padded[7:9, :24], before[2:4, :24])
    assert torch.equal(padded[:, 24:], before[:, 24:]), "the gaps are as they were"


def test_a_row_with_gaps_is_not_staged() -> None:
    view = torch.zeros((BLOCKS, 16), dtype=torch.uint8)
    layout = PagedLayout(regions=(view, view.clone()), offsets=(0, 32), row_bytes=48)
    pipeline = Pipeline(Adversary(0), torch.zeros((ROWS, 48), dtype=torch.uint8))
    with pytest.raises(KvMoveError, match="gaps"):
        pipeline.submit("store", [part(layout, [1], [1])], Path.STAGED)


def test_both_directions_have_streams_and_slots_of_their_own() -> None:
    device = Adversary(0)
    world = World(0, device)
    world.pipeline.submit("store", [part(world.layout, [1], [1])], Path.STAGED)
    world.pipeline.submit("load", [part(world.layout, [2], [2])], Path.STAGED)
    load = [queue for queue in device.queues if queue.name.startswith("load")]
    while any(queue.ready() for queue in load) and any(queue.work for queue in load):
        for queue in [*load, device.model]:
            if queue.ready():
                queue.step()
    assert not any(queue.work for queue in load), "the load ran while the store stood still"
