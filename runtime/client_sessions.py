"""The sessions of a server's clients: each is a program, and its calls are the nodes of its DAG.

Pure: the directory is told the time. Sessions belong to tenants; nothing here finds a session by
its id alone, so no tenant comes by another's.

What a call follows. Where the client names its parents, these are its parents. Where it does not,
a call follows all that had ended when it began, and that no other call has followed since: with
this, the recursion over the DAG gives the paper's scalar, the longest critical path seen.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from .tenants import Tenant

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@=+~-]{0,127}")
ID_IN_WORDS = "1 to 128 of A-Z a-z 0-9 . _ : @ = + ~ -, the first a letter or digit"
MOST_PARENTS = 1_000
MOST_NAME = 128


class Refusal(Exception):
    """A request cannot be served; the text is for the client.

    Args:
        status: of the HTTP reply.
        code: for programs, as in OpenAI's errors.
    """

    def __init__(self, status: int, text: str, code: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCall:
    """A call of a session.

    Attributes:
        id: what the client calls it; unique in its session.
        call: its id in the engine, unique in the run.
        parents: ids in the engine of the calls it follows.
    """

    id: str
    call: str
    parents: tuple[str, ...]


@dataclass(slots=True, kw_only=True, eq=False)
class ClientSession:
    """A session.

    Attributes:
        program: id of its program.
        lasting: whether it has further calls; one that was made for a single call ends with it.
        created_s, used_s: when it was made, and when something last happened in it, seconds.
        open: what stops each of its calls under way, by the call's id in the engine.
        calls: ids in the engine of all its calls by what the client calls them.
        earlier: stands for the calls that it had before the server was started again.
    """

    id: str
    tenant: Tenant
    program: str
    name: str
    lasting: bool
    created_s: float
    used_s: float
    open: dict[str, Callable[[], None] | None] = field(default_factory=dict)
    calls: dict[str, str] = field(default_factory=dict)
    earlier: str = ""
    _frontier: dict[str, None] = field(default_factory=dict)
    _parents: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def resume(self, earlier: str) -> None:
        """It goes on: what stands for its earlier calls is what its next one follows."""
        self.earlier = earlier
        self._frontier[earlier] = None

    def begin(
        self, given: str, parents: Iterable[str] | None, beside: ClientCall | None = None
    ) -> ClientCall:
        """A call begins.

        Args:
            given: what the client calls it; made up where empty, or where another call of the
                session has that id, as when a client tries again.
            parents: ids of the calls it follows. Unknown ones are earlier calls of a session that
                goes on; else they are left out, for the session that knew them may have been ended
                for being idle. None: what has ended before it.
            beside: a call of the same request, which has the same parents.
        """
        number = len(self.calls) + 1
        id = given if given and given not in self.calls else f"call-{number}-{secrets.token_hex(4)}"
        call = f"{self.program}/{id}"
        if beside is not None:
            found = beside.parents
        elif parents is None:
            found = tuple(self._frontier)
        else:
            known = (self.calls.get(parent, self.earlier) for parent in parents)
            found = tuple(dict.fromkeys(parent for parent in known if parent))
        self.calls[id] = call
        if given and given != id:
            self.calls[given] = call
        self.open[call] = None
        self._parents[call] = found
        return ClientCall(id=id, call=call, parents=found)

    def end(self, call: str, now: float) -> None:
        """A call of it has ended."""
        self.open.pop(call, None)
        for parent in self._parents.pop(call, ()):
            self._frontier.pop(parent, None)
        self._frontier[call] = None
        self.used_s = now


class ClientSessions:
    """All open sessions.

    Args:
        max_sessions: of one tenant.
        max_calls: of one tenant at once.
        max_session_calls: of one session in all.
    """

    def __init__(self, *, max_sessions: int, max_calls: int, max_session_calls: int) -> None:
        self._max_sessions = max_sessions
        self._max_calls = max_calls
        self._max_session_calls = max_session_calls
        self._of: dict[str, dict[str, ClientSession]] = {}
        self._open_calls: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(len(sessions) for sessions in self._of.values())

    def find(self, tenant: Tenant, id: str) -> ClientSession | None:
        """A session of the tenant's."""
        return self._of.get(tenant.name, {}).get(id)

    def of(self, tenant: Tenant) -> list[ClientSession]:
        """Those of the tenant, the oldest first."""
        return [session for session in self._of.get(tenant.name, {}).values() if session.lasting]

    def all(self) -> list[ClientSession]:
        """Everybody's."""
        return [session for sessions in self._of.values() for session in sessions.values()]

    def open(
        self, tenant: Tenant, id: str, now: float, *, name: str = "", lasting: bool = True
    ) -> ClientSession:
        """Make a session.

        Args:
            id: free for this tenant; made up where empty.

        Raises:
            Refusal: the id is none, there is such a session, or the tenant has too many.
        """
        if id and ID.fullmatch(id) is None:
            raise Refusal(400, f"A session's id has {ID_IN_WORDS}.", "invalid_session_id")
        sessions = self._of.setdefault(tenant.name, {})
        if id in sessions:
            raise Refusal(409, f"Session {id} is open already.", "session_exists")
        if len(sessions) >= self._max_sessions:
            raise Refusal(
                429,
                f"{self._max_sessions} sessions are open, which is as many as may be: end those "
                "that are done (DELETE /v1/sessions/ID).",
                "too_many_sessions",
            )
        id = id or f"session-{secrets.token_hex(12)}"
        made = ClientSession(
            id=id,
            tenant=tenant,
            program=tenant.program_of(id),
            name=name,
            lasting=lasting,
            created_s=now,
            used_s=now,
        )
        sessions[id] = made
        return made

    def begin(
        self,
        session: ClientSession,
        now: float,
        given: str = "",
        parents: Iterable[str] | None = None,
        *,
        beside: ClientCall | None = None,
    ) -> ClientCall:
        """A call of a session begins, see :meth:`ClientSession.begin`; :meth:`end` is to follow.

        Raises:
            Refusal: there are too many.
        """
        name = session.tenant.name
        if self._open_calls.get(name, 0) >= self._max_calls:
            raise Refusal(
                429,
                f"{self._max_calls} calls are under way, which is as many as may be at once: wait "
                "for some to end, and ask for no more in one request.",
                "too_many_calls",
            )
        if len(session.calls) >= self._max_session_calls:
            raise Refusal(
                409,
                f"The session has had {self._max_session_calls} calls, which is as many as one may "
                "have; open another.",
                "session_too_long",
            )
        begun = session.begin(given, parents, beside)
        session.used_s = now
        self._open_calls[name] = self._open_calls.get(name, 0) + 1
        return begun

    def end(self, session: ClientSession, call: str, now: float) -> None:
        """A call of a session has ended."""
        if call not in session.open:
            return
        session.end(call, now)
        name = session.tenant.name
        self._open_calls[name] -= 1
        if not self._open_calls[name]:
            del self._open_calls[name]

    def remove(self, session: ClientSession) -> bool:
        """The session has ended; False where it had before."""
        sessions = self._of.get(session.tenant.name, {})
        if sessions.get(session.id) is not session:
            return False
        del sessions[session.id]
        if not sessions:
            del self._of[session.tenant.name]
        return True

    def stale(self, now: float, idle_s: float) -> list[ClientSession]:
        """Those without a call under way in which nothing has happened for so long."""
        return [s for s in self.all() if not s.open and now - s.used_s > idle_s]

    @property
    def open_calls(self) -> int:
        """Calls that are under way, everybody's."""
        return sum(self._open_calls.values())

    def open_calls_by_tenant(self) -> dict[str, int]:
        """The same by the names of tenants that have some."""
        return self._open_calls.copy()


def name_in(header: str, what: str) -> str:
    """The name in a header, which is percent-encoded; empty where there is none.

    Args:
        what: whose name it is, in a word.

    Raises:
        Refusal: it is too long, or cannot be printed.
    """
    name = unquote(header, errors="replace").strip()
    if len(name) > MOST_NAME or not name.isprintable():
        text = f"The name of a {what} has at most {MOST_NAME} characters, all of them printable."
        raise Refusal(400, text, f"invalid_{what}")
    return name


def in_header(name: str) -> str:
    """Inverse of :func:`name_in`, of what it takes of a name."""
    return quote("".join(filter(str.isprintable, name))[:MOST_NAME])


def parents_of(header: str) -> list[str]:
    """The ids in a header of parents; none for a call that follows no other.

    Raises:
        Refusal: it holds what cannot be an id, or too many.
    """
    words = [word for word in (part.strip() for part in header.split(",")) if word]
    if len(words) > MOST_PARENTS:
        raise Refusal(400, f"A call has at most {MOST_PARENTS} parents.", "too_many_parents")
    for word in words:
        if ID.fullmatch(word) is None:
            raise Refusal(400, f"A parent's id has {ID_IN_WORDS}.", "invalid_parents")
    return words
