"""Moves in time: staging buffers that take turns, and who waits for whom.

    store   compute ──written──▶ gather ──full──▶ copy ──▶ done
                                   ▲               │
                                   └─────empty─────┘        one pair of events a slot
    load    copy ──full──▶ scatter ──▶ done
             ▲                │ ▲
             └────empty───────┘ └──read── compute

Each direction has a stream for its kernel, a stream for its copies (the GPU has a copy engine for
each direction) and slots of its own, so the two directions run at the same time.

The rules; a test breaks each of them and sees data spoilt:

1. A gather, or a direct copy to the host, waits for the last writer of its blocks: for all that the
   model's stream had queued when the move was submitted.
2. A scatter, or a direct copy to the device, waits for the last reader of its blocks in that way.
3. A copy out of a slot waits until it is full; a slot is filled again only when it was emptied.
4. A move waits for moves under way that touch the same blocks or host rows, unless both only read.
5. Host rows may be read ahead of the stream's order only if no move under way writes them; device
   memory never.
6. Block ids, descriptors and slots belong to the move until it is done; ids are copied on entry.
7. Destinations are unique. 8. Nothing is queued while the model's stream is being captured.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from autellix.errors import KvMoveError

from . import reference
from .host_tier import Direction
from .layout import PagedLayout
from .runs import Copies, Ints, page_copies, row_copies
from .streams import Device, Event, Path, Stream

SLOTS = 3
SLOT_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Blocks of one layout and the host rows they belong to.

    Attributes:
        layout: regions of the pool.
        blocks: ``int64[n]`` in host memory, block ids.
        rows: ``int64[n]`` in host memory, rows of the host pool.
    """

    layout: PagedLayout
    blocks: torch.Tensor
    rows: torch.Tensor

    @property
    def size_bytes(self) -> int:
        """Bytes to move."""
        return self.blocks.numel() * self.layout.moved_bytes


@dataclass(slots=True, eq=False, kw_only=True)
class Move:
    """A submitted move.

    Attributes:
        direction: store or load.
        path: the way it went.
        size_bytes: bytes moved.
        started, finished: points on the device's time line.
    """

    direction: Direction
    path: Path
    size_bytes: int
    started: Event
    finished: Event
    _blocks: Ints
    _rows: Ints
    _kept: list[Any] = field(default_factory=list)

    def done(self) -> bool:
        """Whether it has ended; does not wait."""
        return self.finished.done()

    def wait(self) -> None:
        """Block until it has."""
        self.finished.wait()

    def seconds(self) -> float:
        """Device time it took, seconds; only when done."""
        return self.finished.seconds_since(self.started)

    def touches(self, direction: Direction, blocks: Ints, rows: Ints) -> tuple[bool, bool]:
        """Whether a new move would meet this one in (blocks, host rows), one of them writing."""
        writes_blocks = "load" in (self.direction, direction)
        writes_rows = "store" in (self.direction, direction)
        return (
            writes_blocks and np.intersect1d(self._blocks, blocks).size > 0,
            writes_rows and np.intersect1d(self._rows, rows).size > 0,
        )


@dataclass(slots=True)
class _Slot:
    stage: torch.Tensor
    empty: Event | None = None


class _Lane:
    """Streams and slots of one direction."""

    def __init__(self, device: Device, direction: Direction, slots: int, size: int) -> None:
        self.kernels: Stream = device.new_stream(f"{direction}-kernel")
        self.copies: Stream = device.new_stream(f"{direction}-copy")
        self._stages = (device, slots, size)
        self._slots: deque[_Slot] = deque()

    @property
    def slots(self) -> deque[_Slot]:
        """The next one to fill is the first; they are allocated when the first one is needed."""
        if not self._slots:
            device, count, size = self._stages
            self._slots.extend(_Slot(device.new_stage(size)) for _ in range(count))
        return self._slots

    def free(self) -> None:
        """Give the slots back; nothing may be under way."""
        self._slots.clear()


class Pipeline:
    """Moves blocks between a device's pool and a host pool.

    It belongs to one thread. Nothing in it waits, except :meth:`wait` and :meth:`close`.

    Args:
        device: queues and kernels.
        host: ``uint8[rows, row_bytes]``, the host pool; pinned where the device wants it.
        slots: staging buffers a direction.
        slot_bytes: size of each; it is raised to one row where rows are longer.
    """

    def __init__(
        self,
        device: Device,
        host: torch.Tensor,
        *,
        slots: int = SLOTS,
        slot_bytes: int = SLOT_BYTES,
    ) -> None:
        self.device = device
        self.host = host
        size = max(slot_bytes, host.shape[1])
        self._lanes: dict[Direction, _Lane] = {
            "store": _Lane(device, "store", slots, size),
            "load": _Lane(device, "load", slots, size),
        }
        self._under_way: list[Move] = []

    def submit(self, direction: Direction, parts: Sequence[Part], path: Path) -> Move:
        """Queue a move and return at once.

        Args:
            direction: "store" moves blocks to host rows, "load" host rows to blocks.
            parts: what to move.
            path: how; STAGED needs dense layouts that the device can stage.

        Raises:
            KvMoveError: an id is out of range or a destination named twice, or the model's stream
                is being captured. Nothing was queued.
        """
        blocks, rows = self._checked(direction, parts, path)
        if self.device.capturing():
            raise KvMoveError(
                "KV cannot be moved while a graph is being captured: the move would be recorded "
                "or lost. Submit it before or after the capture."
            )
        lane = self._lanes[direction]
        first = lane.copies if direction == "load" or path != Path.STAGED else lane.kernels
        stable = direction == "load"
        model = self.device.compute_stream().record()
        # What follows on the move's other stream waits for this one anyway.
        for other in self._still_under_way():
            in_blocks, in_rows = other.touches(direction, blocks, rows)
            if in_blocks or in_rows:
                first.wait_for(other.finished)
            stable = stable and not in_rows
        started = first.record()
        kept: list[Any] = []
        if path == Path.STAGED:
            for part in parts:
                self._staged(direction, part, model, stable, kept)
            last = lane.copies if direction == "store" else lane.kernels
        else:
            lane.copies.wait_for(model)
            for part in parts:
                kept.append(self._direct(direction, part, path, stable))
            last = lane.copies
        move = Move(
            direction=direction,
            path=path,
            size_bytes=sum(part.size_bytes for part in parts),
            started=started,
            finished=last.record(),
            _blocks=blocks,
            _rows=rows,
            _kept=kept,
        )
        self._under_way.append(move)
        return move

    def wait(self) -> None:
        """Block until nothing is under way."""
        for move in self._still_under_way():
            move.wait()
        self._under_way.clear()

    def close(self) -> None:
        """Wait, then give the staging buffers back."""
        self.wait()
        for lane in self._lanes.values():
            lane.free()

    def _still_under_way(self) -> list[Move]:
        self._under_way = [move for move in self._under_way if not move.done()]
        return self._under_way

    def _checked(
        self, direction: Direction, parts: Sequence[Part], path: Path
    ) -> tuple[Ints, Ints]:
        count, row_bytes = self.host.shape
        for part in parts:
            if path == Path.STAGED and not (
                part.layout.dense and self.device.can_stage(part.layout)
            ):
                raise KvMoveError(
                    "Rows with gaps, or pages that are not made of 16-byte words, cannot be "
                    "staged; move them by plain copies."
                )
            if part.layout.row_bytes != row_bytes or part.blocks.numel() != part.rows.numel():
                raise KvMoveError(
                    f"{part.blocks.numel()} blocks with rows of {part.layout.row_bytes} bytes do "
                    f"not go with {part.rows.numel()} host rows of {row_bytes} bytes."
                )
            reference.check_range(part.blocks, part.layout.blocks, "Blocks")
            reference.check_range(part.rows, count, "Host rows")
            reference.check_unique(part.blocks if direction == "load" else part.rows)
        empty = np.empty(0, dtype=np.int64)
        return (
            np.concatenate([empty, *(part.blocks.numpy() for part in parts)]),
            np.concatenate([empty, *(part.rows.numpy() for part in parts)]),
        )

    def _row_addresses(self, rows: torch.Tensor) -> Ints:
        return self.host.data_ptr() + rows.numpy() * self.host.stride(0)

    def _direct(self, direction: Direction, part: Part, path: Path, stable: bool) -> Any:
        copies = page_copies(part.layout, part.blocks.numpy(), self._row_addresses(part.rows))
        if direction == "load":
            copies = copies.reversed_direction()
        if path == Path.BATCH:
            copies = copies.merged()
        stream = self._lanes[direction].copies
        return self.device.copy(stream, copies, path, direction=direction, stable_source=stable)

    def _staged(
        self, direction: Direction, part: Part, model: Event, stable: bool, kept: list[Any]
    ) -> None:
        lane, layout = self._lanes[direction], part.layout.tight()
        lane.kernels.wait_for(model)
        ids = part.blocks.clone()
        on_device = self.device.upload(lane.kernels, ids)
        kept += [ids, on_device]
        addresses = self._row_addresses(part.rows) + part.layout.span[0]
        each = max(1, lane.slots[0].stage.numel() // layout.row_bytes)
        for start in range(0, ids.numel(), each):
            slot = lane.slots[0]
            lane.slots.rotate(-1)
            rows = addresses[start : start + each]
            stage = slot.stage[: len(rows) * layout.row_bytes].view(len(rows), layout.row_bytes)
            blocks = on_device[start : start + each]
            copies = row_copies(rows, stage.data_ptr(), layout.row_bytes)
            if direction == "store":
                if slot.empty is not None:
                    lane.kernels.wait_for(slot.empty)
                self.device.gather(lane.kernels, layout, blocks, stage)
                lane.copies.wait_for(lane.kernels.record())
                bulk = copies.merged()
                kept.append(self._bulk(direction, bulk, stable_source=False))
                slot.empty = lane.copies.record()
            else:
                if slot.empty is not None:
                    lane.copies.wait_for(slot.empty)
                bulk = copies.reversed_direction().merged()
                kept.append(self._bulk(direction, bulk, stable_source=stable))
                lane.kernels.wait_for(lane.copies.record())
                self.device.scatter(lane.kernels, layout, blocks, stage)
                slot.empty = lane.kernels.record()

    def _bulk(self, direction: Direction, copies: Copies, *, stable_source: bool) -> Any:
        return self.device.copy(
            self._lanes[direction].copies,
            copies,
            Path.BATCH,
            direction=direction,
            stable_source=stable_source,
        )
