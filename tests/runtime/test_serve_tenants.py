"""Keys and tenants of a server: who is let in, and that nobody reaches what is another's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from autellix.errors import SettingsError
from autellix.runtime.engine_host import EngineHost
from autellix.runtime.serve_settings import ServeSettings
from autellix.runtime.serving import Server
from autellix.runtime.tenants import Keys, Tenant
from tests.runtime.serve_client import ASK, Client, code_of, serving

ALICE, BOB, OPS = "sk-alice-0123456789", "sk-bob-0123456789ab", "sk-ops-0123456789ab"
KEYS = f"""
alice {ALICE}
bob   sha256:{hashlib.sha256(BOB.encode()).hexdigest()}  share=2  # twice as much
ops   {OPS} operator
"""


@pytest.fixture(scope="module")
def server(engine_host: EngineHost) -> Iterator[Server]:
    with serving(engine_host, KEYS) as server:
        yield server


@pytest.mark.parametrize("path", ["/v1/models", "/v1/sessions", "/v1/programs", "/metrics"])
@pytest.mark.parametrize("key", ["", "sk-alice-012345678", ALICE + "0", "\xe9\xff" * 9])
def test_nobody_is_let_in_without_a_key(server: Server, path: str, key: str) -> None:
    headers = {"Authorization": f"Bearer {key}".encode("latin-1")} if key else {}
    reply = Client(server).http.get(path, headers=headers)
    assert code_of(reply) == (401, "invalid_api_key")
    assert reply.headers["www-authenticate"] == "Bearer"


def test_health_and_the_description_are_for_everybody(server: Server) -> None:
    for path in ("/health", "/openapi.json"):
        assert Client(server).http.get(path).status_code == 200


def test_sessions_of_one_name_are_two_for_two_tenants(server: Server) -> None:
    alice, bob = Client(server, ALICE), Client(server, BOB)
    alice.chat("shared")
    alice.chat("shared")
    bob.chat("shared")
    done = [c.http.get("/v1/sessions/shared").json()["calls_done"] for c in (alice, bob)]
    assert done == [2, 1]
    bob.http.delete("/v1/sessions/shared")
    assert alice.http.get("/v1/sessions/shared").status_code == 200
    alice.http.delete("/v1/sessions/shared")


def test_nobody_reads_ends_or_joins_what_is_anothers(server: Server) -> None:
    alice, bob = Client(server, ALICE), Client(server, BOB)
    alice.chat("private", {"X-Autellix-Call": "secret"})
    for id in ("private", "alice/private", "alice%2Fprivate"):
        assert bob.http.get(f"/v1/sessions/{id}").status_code == 404
        assert bob.http.delete(f"/v1/sessions/{id}").status_code == 404
        assert bob.http.get(f"/v1/sessions/{id}/calls/secret").status_code == 404
        assert bob.http.get(f"/v1/programs/{id}").status_code == 404
    assert "private" not in bob.http.get("/v1/sessions").text
    assert "private" not in bob.http.get("/v1/programs").text
    assert code_of(bob.chat("alice/private")) == (400, "invalid_session_id")
    bob.chat("own", {"X-Autellix-Parents": "secret"})
    (node,) = bob.program("bob/own")
    assert node["parents"] == []
    assert alice.program("alice/private")[0]["state"] == "done"
    assert alice.http.get("/v1/sessions/private/calls/secret").json()["receipt"]["service_s"] > 0
    for client, id in ((alice, "private"), (bob, "own")):
        client.http.delete(f"/v1/sessions/{id}")


def test_an_operator_sees_everybody_and_the_metrics(server: Server) -> None:
    Client(server, ALICE).chat("seen")
    ops = Client(server, OPS)
    assert "alice/seen" in ops.http.get("/v1/programs").text
    assert ops.http.get("/metrics").status_code == 200
    assert code_of(Client(server, ALICE).http.get("/metrics")) == (403, "operators_only")
    Client(server, ALICE).http.delete("/v1/sessions/seen")


def test_nobody_learns_from_the_cache_what_another_has_asked(server: Server) -> None:
    long = [{"role": "user", "content": "A long and secret prompt. " * 40}]

    def cached(key: str) -> int:
        usage = Client(server, key).chat(messages=long).json()["usage"]
        return (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)

    assert cached(ALICE) == 0
    assert cached(ALICE) > 0
    assert cached(BOB) == 0


def test_one_tenants_many_sessions_do_not_keep_nine_others_waiting(
    engine_host: EngineHost,
) -> None:
    names = ["greedy", *(f"modest-{n}" for n in range(9))]
    keys = "\n".join(f"{name} key-of-{name}-0123456789" for name in names)
    with serving(engine_host, keys) as server:

        def calls(name: str, count: int, at_once: int) -> list[float]:
            client = Client(server, f"key-of-{name}-0123456789")

            def call(number: int) -> float:
                # The greedy one opens a session for each call and says that it follows nothing.
                session = f"{name}-{number}" if name == "greedy" else name
                reply = client.chat(
                    session, {"X-Autellix-Parents": ""}, max_tokens=16, ignore_eos=True
                )
                receipt = client.http.get(
                    f"/v1/sessions/{session}/calls/{reply.headers['x-autellix-call']}"
                )
                return receipt.json()["receipt"]["wait_s"]

            with ThreadPoolExecutor(at_once) as pool:
                return list(pool.map(call, range(count)))

        with ThreadPoolExecutor(10) as tenants:
            greedy = tenants.submit(calls, "greedy", 60, 60)
            modest = [tenants.submit(calls, name, 2, 1) for name in names[1:]]
            waits = [wait for each in modest for wait in each.result()]
            last = greedy.result()
    # 8 seats, 60 greedy calls: whoever stood behind all of them would wait as long as they do.
    assert sorted(waits)[len(waits) // 2] < sorted(last)[len(last) // 2]
    assert sum(waits) / len(waits) < sum(last) / len(last) / 3


# ── keys ─────────────────────────────────────────────────────────────────────────────────────


def test_a_server_that_others_reach_wants_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org"):
        with pytest.raises(SettingsError, match="who may use the server must be said"):
            ServeSettings(host=host).keys({})
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        assert ServeSettings(host=host).keys({}) is None


def test_keys_in_the_environment_are_taken_out_of_it() -> None:
    environ = {"AUTELLIX_KEYS": f"alice {ALICE}; bob {BOB} share=0.5"}
    keys = ServeSettings(host="0.0.0.0").keys(environ)
    assert keys is not None
    assert environ == {}
    assert keys.tenant_of(BOB.encode()) == Tenant(name="bob", share=0.5)


def test_a_tenant_may_have_several_keys() -> None:
    keys = Keys.parse([f"alice {ALICE}", "alice sk-another-key-of-hers"], where="here")
    assert len(keys) == 2
    assert keys.tenants == [Tenant(name="alice")]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "holds no keys"),
        ("alice", "it has a name and no key"),
        ("alice short", "fewer than 16 characters"),
        ("al/ice sk-0123456789abcdef", "a name has letters"),
        ("alice sha256:12", "after sha256: come 64 digits"),
        ("alice sk-0123456789abcdef share=0", "a share is a number"),
        ("alice sk-0123456789abcdef admin", "nothing else"),
        ("a sk-0123456789abcdef\nb sk-0123456789abcdef", "the same key stands further up"),
        ("a sk-0123456789abcdef\na sk-another-0123456 share=2", "another share or right"),
    ],
)
def test_a_line_that_is_none_is_told_without_the_key(text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why) as refused:
        Keys.parse(text.splitlines(), where="keys.txt")
    assert "0123456789" not in str(refused.value)


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(f"alice {ALICE}\n")
    file.chmod(0o644)
    with pytest.raises(SettingsError, match="chmod 600"):
        Keys.of_file(file)
    file.chmod(0o600)
    assert Keys.of_file(file).tenant_of(ALICE.encode()) == Tenant(name="alice")
    file.write_text(f"alice sha256:{hashlib.sha256(ALICE.encode()).hexdigest()}\n")
    file.chmod(0o644)
    assert Keys.of_file(file).tenant_of(ALICE.encode()) == Tenant(name="alice")


def test_keys_that_cannot_be_read_are_told_with_the_mend(tmp_path: Path) -> None:
    for path, why in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file")):
        with pytest.raises(SettingsError, match=f"{why}.*Give a text file of your own"):
            Keys.of_file(path)


def test_a_request_that_a_web_page_could_send_is_refused(engine_host: EngineHost) -> None:
    with serving(engine_host) as server:
        http = Client(server).http
        reply = http.post("/v1/chat/completions", json={"messages": ASK}, headers={"Host": "a.b"})
        assert code_of(reply) == (403, "wrong_host")
        text = http.post(
            "/v1/chat/completions", content=b"{}", headers={"Content-Type": "text/plain"}
        )
        assert code_of(text) == (415, "not_json")
