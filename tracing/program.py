"""What the trace knows of one program: its state, its DAG, and the calls that are open."""

from __future__ import annotations

from typing import Any

from .dag import ProgramDag
from .document import program_document
from .events import (
    CallEnded,
    CallStarted,
    ContentRecorded,
    ProgramEnded,
    ProgramResumed,
    ProgramStarted,
    ProgramStatus,
    ReceiptArrived,
)
from .live_rows import program_row
from .snapshot import EngineCalls, ProgramRow


class ProgramRecord:
    """One program of a run.

    Attributes:
        status: "running", or how its last turn ended.
        start_s: when its first turn began, seconds since the run's start.
        end_s: when its last turn ended; None while one runs.
    """

    __slots__ = (
        "_contents",
        "_final_row",
        "dag",
        "end_s",
        "error",
        "id",
        "name",
        "open",
        "start_s",
        "status",
    )

    def __init__(self, program: str, name: str, start_s: float) -> None:
        self.id = program
        self.name = name
        self.status: ProgramStatus = "running"
        self.start_s = start_s
        self.end_s: float | None = None
        self.error: str | None = None
        self.dag = ProgramDag(program)
        self.open: dict[str, CallStarted] = {}
        self._contents: dict[str, ContentRecorded] = {}
        self._final_row: ProgramRow | None = None

    def begin_turn(self, event: ProgramStarted) -> None:
        """The program runs, for the first time or again."""
        self.name = event.name
        self.status, self.end_s, self.error = "running", None, None
        self._final_row = None

    def resume(self, event: ProgramResumed) -> None:
        """The program goes on from a checkpoint."""
        self.dag.add_earlier(event.earlier, event.critical_path_s)
        self._final_row = None

    def end_turn(self, event: ProgramEnded) -> None:
        """The program's turn is over."""
        self.status, self.end_s, self.error = event.status, event.at_s, event.error
        self._final_row = None

    def begin_call(self, event: CallStarted) -> list[str]:
        """Add a call; returns the parents that were left out because the DAG lacks them."""
        known = tuple(parent for parent in event.parents if parent[0] in self.dag)
        unknown = [parent for parent, _ in event.parents if parent not in self.dag]
        self.dag.add_call(
            event.call,
            kind=event.kind,
            name=event.name,
            node=event.node,
            parents=known,
            start_s=event.at_s,
            attempt=event.attempt,
        )
        self.open[event.call] = event
        self._final_row = None
        return unknown

    def end_call(self, event: CallEnded) -> None:
        """Take a call's end, and its receipt where it has come."""
        if event.call in self.open:
            del self.open[event.call]
            self.dag.finish_call(
                event.call,
                end_s=event.at_s,
                status=event.status,
                error=event.error,
                first_token_s=event.first_token_s,
            )
        if event.receipt is not None:
            self.dag.set_receipt(event.call, event.receipt)
        self._final_row = None

    def take_receipt(self, event: ReceiptArrived) -> None:
        """Take a receipt that came apart from its call's end."""
        self.dag.set_receipt(event.call, event.receipt)
        self._final_row = None

    def take_content(self, event: ContentRecorded) -> None:
        """Keep what a call asked and was answered."""
        self._contents[event.call] = event

    def document(self, *, origin_s: float, now_s: float) -> dict[str, Any]:
        """The program as it stands in the trace document.

        Args:
            origin_s: the machine's monotonic clock at the run's start, seconds.
            now_s: calls that still run count up to here, seconds since the run's start.
        """
        return program_document(
            self.dag,
            name=self.name,
            status=self.status,
            start_s=self.start_s,
            end_s=self.end_s,
            error=self.error,
            origin_s=origin_s,
            now_s=now_s,
            contents=self._contents,
        )

    def row(self, now_s: float, engine: EngineCalls) -> ProgramRow:
        """The program at this moment; an ended program's row is made once.

        Args:
            now_s: seconds since the run's start.
            engine: where the live calls are.
        """
        if self._final_row is not None:
            return self._final_row
        row = program_row(self, now_s, engine)
        if self.status != "running" and not self.open:
            self._final_row = row
        return row
