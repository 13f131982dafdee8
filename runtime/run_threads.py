"""The threads of a run: their checkpointer, their ids, how they are resumed and suspended."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Self

from autellix.errors import UsageError

from ..integrations.checkpoint_provided import provided_saver
from ..integrations.checkpoint_watch import answer, wrapping_savers
from .inputs import InputLine
from .session import Session
from .targets import Entry


class RunThreads:
    """A context manager: inside, every checkpointer of the process is an ``AutellixSaver``.

    Args:
        session: the run's session.
        ids: threads to run on; one for each input, or with several inputs one that their numbers
            are added to.
        resume: what the threads' ``interrupt()`` is to return, as JSON or plain text; None goes on
            without an answer.

    Raises:
        SettingsError: the checkpointer of the settings cannot be used.
        JournalError: the journal cannot be used.
    """

    def __init__(
        self, session: Session, ids: Sequence[str] = (), resume: str | None = None
    ) -> None:
        self._session = session
        self._spec = session.settings.checkpointer
        self._ids = tuple(ids)
        self._resume = resume
        self._stack = ExitStack()
        self.stopping = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            default = stack.enter_context(provided_saver(self._spec)) if self._spec else None
            if self._spec and self._spec != "memory":
                self._session.programs.threads.open_journal()
            stack.callback(wrapping_savers(default))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    # -- which ----------------------------------------------------------------------------------

    def resumed(self) -> list[InputLine]:
        """One line for each thread that is to go on without a new input."""
        return [InputLine(number=number) for number, _ in enumerate(self._ids, 1)]

    def check(self, entry: Entry, lines: Sequence[InputLine]) -> None:
        """Whether the entry can run on the threads that were asked for.

        Raises:
            UsageError: it cannot.
        """
        if not self._ids:
            return
        if entry.kind != "graph":
            raise UsageError(
                f"--thread-id is for graphs; {entry.name} is a function, which names the threads "
                "of its graphs itself."
            )
        if self._spec is None and _saver_of(entry) is None:
            raise UsageError(
                f"{entry.name} has no checkpointer, so its threads are kept nowhere. Compile it "
                "with one, or give --checkpointer sqlite:PATH."
            )
        if len(self._ids) > 1 and len(lines) != len(self._ids):
            raise UsageError(
                f"There are {len(self._ids)} thread ids for {len(lines)} inputs; give one for "
                "each, or a single one that the inputs' numbers are added to."
            )

    def thread_of(self, entry: Entry, line: InputLine, lines: int) -> str | None:
        """The thread that a line runs on; None where nothing keeps threads."""
        if len(self._ids) > 1:
            return self._ids[line.number - 1]
        if self._ids:
            return self._ids[0] if lines == 1 else f"{self._ids[0]}-{line.number}"
        if entry.kind == "graph" and (self._spec or _saver_of(entry) is not None):
            return f"{entry.name}-{uuid.uuid4().hex[:8]}"
        return None

    async def value_of(self, entry: Entry, line: InputLine, thread: str, resumes: bool) -> Any:
        """What a graph is run on.

        Raises:
            UsageError: there is no such thread to go on with.
        """
        if not resumes:
            return line.value
        state = await entry.call.aget_state(config_of(thread))
        if not state.values and not state.next:
            raise UsageError(
                f"There is no thread {thread} in the checkpointer. Give --input to begin it."
            )
        return None if self._resume is None else answer(_parsed(self._resume))

    # -- suspension -----------------------------------------------------------------------------

    def suspend(self) -> bool:
        """Stop all graphs at their next superstep; False where none runs that could be resumed."""
        watch = self._session.recorder.checkpoints
        if watch is None or not watch.drain():
            return False
        self.stopping = True
        return True


def config_of(thread: str) -> dict[str, Any]:
    """LangGraph's config for a thread."""
    return {"configurable": {"thread_id": thread}}


def _saver_of(entry: Entry) -> Any:
    graph = getattr(entry.call, "bound", entry.call)
    return getattr(graph, "checkpointer", None) or None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
