"""The directory of sessions, on a clock of its own."""

from __future__ import annotations

import re

import pytest

from autellix.runtime.client_sessions import (
    ClientSession,
    ClientSessions,
    Refusal,
    in_header,
    name_in,
    parents_of,
)
from autellix.runtime.serve_schema import NAME
from autellix.runtime.tenants import Tenant

ALICE, BOB = Tenant(name="alice"), Tenant(name="bob")


@pytest.fixture
def sessions() -> ClientSessions:
    return ClientSessions(max_sessions=2, max_calls=2, max_session_calls=4)


def made(sessions: ClientSessions, id: str = "s", tenant: Tenant = ALICE) -> ClientSession:
    return sessions.open(tenant, id, 0.0)


def test_a_call_follows_all_that_had_ended_and_that_nobody_followed(
    sessions: ClientSessions,
) -> None:
    session = made(sessions)
    first = sessions.begin(session, 1.0)
    second = sessions.begin(session, 1.0)
    assert first.parents == second.parents == ()
    sessions.end(session, first.call, 2.0)
    sessions.end(session, second.call, 3.0)
    third = sessions.begin(session, 4.0)
    assert set(third.parents) == {first.call, second.call}
    sessions.end(session, third.call, 5.0)
    assert sessions.begin(session, 6.0).parents == (third.call,)


def test_named_parents_count_and_unknown_ones_do_not(sessions: ClientSessions) -> None:
    session = made(sessions)
    a = sessions.begin(session, 1.0, "a")
    sessions.end(session, a.call, 1.0)
    b = sessions.begin(session, 1.0, "b", [])
    sessions.end(session, b.call, 1.0)
    assert b.parents == ()
    assert sessions.begin(session, 2.0, "c", ["a", "nobody", "a"]).parents == (a.call,)


def test_no_two_calls_have_one_id(sessions: ClientSessions) -> None:
    one, other = made(sessions), made(sessions, tenant=BOB)
    calls = [sessions.begin(session, 0.0, "x") for session in (one, other, one)]
    assert len({call.call for call in calls}) == 3
    assert [call.id == "x" for call in calls] == [True, True, False]


def test_sessions_and_calls_of_one_tenant_are_bounded_not_those_of_others(
    sessions: ClientSessions,
) -> None:
    session = made(sessions)
    made(sessions, "t")
    with pytest.raises(Refusal, match="2 sessions are open"):
        made(sessions, "u")
    first = sessions.begin(session, 0.0)
    sessions.begin(session, 0.0)
    with pytest.raises(Refusal, match="2 calls are under way"):
        sessions.begin(session, 0.0)
    assert sessions.begin(made(sessions, tenant=BOB), 0.0)
    sessions.end(session, first.call, 1.0)
    sessions.end(session, first.call, 1.0)  # once is enough
    assert sessions.open_calls == 2


def test_idle_sessions_are_stale_and_busy_ones_are_not(sessions: ClientSessions) -> None:
    idle, busy = made(sessions, "idle"), made(sessions, "busy")
    call = sessions.begin(busy, 0.0)
    assert sessions.stale(100.0, 50.0) == [idle]
    sessions.end(busy, call.call, 100.0)
    assert sessions.stale(140.0, 50.0) == [idle]
    assert set(sessions.stale(151.0, 50.0)) == {idle, busy}
    assert sessions.remove(idle)
    assert not sessions.remove(idle)
    assert len(sessions) == 1


@pytest.mark.parametrize("id", ["", "a", "A-b_c.d:e@f=g+h~i", "0" * 128])
def test_what_an_id_may_be(sessions: ClientSessions, id: str) -> None:
    assert made(sessions, id).program.startswith("alice/")


@pytest.mark.parametrize("id", [" ", "-a", "a/b", "a b", "ä", "0" * 129, "a\n", "a%20"])
def test_what_an_id_may_not_be(sessions: ClientSessions, id: str) -> None:
    with pytest.raises(Refusal) as refused:
        made(sessions, id)
    assert (refused.value.status, refused.value.code) == (400, "invalid_session_id")
    with pytest.raises(Refusal):
        parents_of(f"ok,{id or '-'}x y")


def test_a_header_of_parents_is_a_list() -> None:
    assert parents_of("") == []
    assert parents_of(" a, b,,c ") == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("plan", "plan"),
        ("look up ä%", "look up ä%"),
        ("a\nb", "ab"),
        ("x" * 200, "x" * 128),
        ("é|{/" * 32, "é|{/" * 32),
    ],
)
def test_a_name_comes_through_a_header(name: str, there: str) -> None:
    header = in_header(name)
    assert header.isascii()
    assert re.fullmatch(NAME["pattern"], header)
    assert len(header) <= NAME["maxLength"]
    assert name_in(header, "node") == there


@pytest.mark.parametrize("header", ["x" * 129, "a%0Ab", "%1B[2J"])
def test_what_is_no_name_is_refused(header: str) -> None:
    with pytest.raises(Refusal, match="printable"):
        name_in(header, "node")
