"""Sessions and calls of a server's clients as the programs and calls of its run.

Where a call's identity is known and its ticket is made. All of it runs on the engine's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator

from autellix.errors import CallError

from ..scheduler.tickets import Ticket
from .client_sessions import ClientCall, ClientSession, ClientSessions, Refusal
from .protocols import CallEnd, CallStart, Parent, ProgramEnd, ThreadLoad
from .served_call import ServedCall, served_call
from .session import Session
from .tenants import Tenant

_SWEEPS = 20  # in the time after which an idle session is ended
_SHORTEST_SWEEP_S = 0.05


class ClientCalls:
    """The programs of a server.

    Args:
        run: the server's run, whose engine serves.
        sessions: the directory of sessions.
        idle_s: a session in which nothing happens for so long is ended, seconds.

    Attributes:
        store: under which name the journal keeps what sessions have used up, so that they go on
            when the server is started again; empty for not at all.
    """

    def __init__(self, run: Session, sessions: ClientSessions, *, idle_s: float) -> None:
        self.run = run
        self.sessions = sessions
        self.store = ""
        self._idle_s = idle_s

    @staticmethod
    def now() -> float:
        """Seconds on the clock that sessions are told."""
        return time.monotonic()

    def model_for(self, name: str | None) -> str:
        """The engine's model for the name that a request gives.

        Raises:
            Refusal: no model here has that name.
        """
        served, mapped = self.run.host.engine.model, self.run.settings.model_map
        if name and name != served and name not in mapped and "*" not in mapped:
            raise Refusal(
                404,
                f"There is no model {name!r} here; GET /v1/models tells which there are. Started "
                f"with --model-map NAME={served}, or '*' for NAME, the server answers to others.",
                "model_not_found",
            )
        return served

    # ── sessions ─────────────────────────────────────────────────────────────────────────────

    def open(
        self, tenant: Tenant, id: str = "", *, name: str = "", lasting: bool = True
    ) -> ClientSession:
        """A session begins.

        Raises:
            Refusal: it cannot.
        """
        session = self.sessions.open(tenant, id, self.now(), name=name, lasting=lasting)
        # What is learned of programs by name must not reach from one tenant to another.
        shown = tenant.program_of(name or ("session" if lasting else "call"))
        self.run.programs.program_started(session.program, shown)
        if id and lasting and self.store:
            load = ThreadLoad(
                store=self.store, thread=session.program, checkpoint=None, snapshot=None
            )
            for earlier in self.run.programs.thread_loaded(session.program, load) or ():
                session.resume(earlier)
        return session

    def session_for(self, tenant: Tenant, id: str, name: str = "") -> ClientSession:
        """The session of a call, made if there is none; without an id one of its own.

        Args:
            name: for one that is made.

        Raises:
            Refusal: it cannot be made.
        """
        if not id:
            return self.open(tenant, name=name, lasting=False)
        return self.sessions.find(tenant, id) or self.open(tenant, id, name=name)

    def close(self, session: ClientSession, status: ProgramEnd = "done") -> None:
        """A session ends; its calls under way are stopped.

        Args:
            status: "cancelled" where the server ends: the session may go on when it is started
                again.
        """
        if not self.sessions.remove(session):
            return
        for stop in list(session.open.values()):
            if stop is not None:
                stop()
        self.run.programs.program_ended(session.program, status, None)
        if self.store and session.lasting and status != "cancelled":
            self.run.programs.store.deleted(self.store, session.program)

    def close_stale(self) -> int:
        """End the sessions that have been idle for too long; how many those were."""
        stale = self.sessions.stale(self.now(), self._idle_s)
        for session in stale:
            self.close(session)
        return len(stale)

    def close_all(self) -> None:
        """The server ends, and all sessions with it."""
        for session in self.sessions.all():
            self.close(session, "cancelled")

    async def keep_swept(self) -> None:
        """End stale sessions from now on."""
        while True:
            await asyncio.sleep(max(self._idle_s / _SWEEPS, _SHORTEST_SWEEP_S))
            self.close_stale()

    # ── calls ────────────────────────────────────────────────────────────────────────────────

    def begin(
        self,
        session: ClientSession,
        model: str,
        given: str = "",
        parents: Iterable[str] | None = None,
        *,
        node: str | None = None,
        beside: ClientCall | None = None,
    ) -> ClientCall:
        """A call of a session begins; :meth:`end` is to follow.

        Args:
            model: for people.
            given: id that the client gives it; empty where it gives none.
            parents: ids of the calls that it follows; None where the client does not say.
            node: of the program's graph, that makes it; None where the client does not say.
            beside: a call of the same request, which the same node has made.

        Raises:
            Refusal: there are too many calls.
        """
        call = self.sessions.begin(session, self.now(), given, parents, beside=beside)
        self.run.programs.call_started(
            CallStart(
                program=session.program,
                call=call.call,
                kind="llm",
                name=model,
                node=self.run.record.node(beside.call) if beside else node,
                parents=tuple(Parent(id=parent, kind="order") for parent in call.parents),
            )
        )
        return call

    def end(
        self, session: ClientSession, call: str, status: CallEnd, error: str | None = None
    ) -> None:
        """A call of a session has ended; nothing happens where it had before."""
        if call in session.open:
            self.sessions.end(session, call, self.now())
            self.run.programs.call_ended(call, status, error)

    def finish(self, session: ClientSession, status: CallEnd) -> None:
        """A request has been answered, well or not; a session that was made for it alone ends."""
        if not session.lasting:
            ends: dict[CallEnd, ProgramEnd] = {"aborted": "cancelled", "failed": "failed"}
            self.close(session, ends.get(status, "done"))

    @contextlib.contextmanager
    def serving(
        self, session: ClientSession, call: ClientCall, model: str, stop: Callable[[], None]
    ) -> Iterator[None]:
        """What the engine's application does inside is this call; several prompts make several.

        Args:
            stop: stops it, from any thread.
        """
        session.open[call.call] = stop
        with contextlib.ExitStack() as stack:

            def ticket_of(id: str) -> Ticket:
                stack.enter_context(self.run.serving(id, stop))
                ticket = self.run.programs.ticket(id)
                return ticket._replace(tenant=session.tenant.name, share=session.tenant.share)

            def further() -> Ticket:
                try:
                    another = self.begin(session, model, beside=call)
                except Refusal as refusal:
                    raise CallError(str(refusal)) from refusal
                session.open[another.call] = stop
                stack.callback(self.end, session, another.call, "aborted")
                return ticket_of(another.call)

            def answered(id: str) -> None:
                # Not later: with the last token in hand the client may begin the next call, which
                # follows this one.
                self.end(session, id, "done")

            token = served_call.set(ServedCall(ticket_of(call.call), further, answered))
            stack.callback(served_call.reset, token)
            yield
