"""``autellix serve`` over plain HTTP, on the shared engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from autellix.runtime.engine_host import EngineHost
from autellix.runtime.serving import Server
from tests.runtime.serve_client import ASK, ENDLESS, SMALL, Client, code_of, serving


@pytest.fixture(scope="module")
def server(engine_host: EngineHost) -> Iterator[Server]:
    with serving(engine_host) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Client:
    return Client(server)


# ── calls and their programs ─────────────────────────────────────────────────────────────────


def test_a_call_is_answered_and_names_itself_and_its_session(client: Client) -> None:
    reply = client.chat("greeting", {"X-Autellix-Call": "first"})
    assert reply.status_code == 200
    assert reply.json()["choices"][0]["message"]["content"]
    assert reply.headers["x-session-id"] == "greeting"
    assert reply.headers["x-autellix-call"] == "first"
    assert "autellix" not in reply.text.replace("autellix-engine", "")
    assert "kv_transfer_params" not in {k for k, v in reply.json().items() if v}


def test_a_receipt_tells_what_was_decided_and_why_in_words(server: Server) -> None:
    client = Client(server)
    call = client.chat("receipts").headers["x-autellix-call"]
    receipt = client.http.get(f"/v1/sessions/receipts/calls/{call}").json()["receipt"]
    kinds = [kind for _, kind, _, _ in receipt["decisions"]]
    assert kinds[0] == "arrival"
    assert "dispatch" in kinds
    reasons = [reason for _, _, _, reason in receipt["decisions"]]
    assert all(isinstance(reason, str) and "{" not in reason for reason in reasons)
    assert any(reason.startswith("waited ") for reason in reasons)


@pytest.mark.parametrize(
    "wrong",
    [
        {"allowed_token_ids": []},
        {"allowed_token_ids": [10**9]},
        {"logit_bias": {"999999999": 1}},
        {"bad_words": ["\u0000"], "min_tokens": 10**6},
        {"max_tokens": 10**6},
        {"temperature": -1},
        {"top_k": 2**64, "temperature": 1},
        {"structured_outputs": "a"},
        {"structured_outputs": [1]},
        {"structured_outputs": {"json": {"$ref": "#"}}},
        {"structured_outputs": {"grammar": "root ::= root"}},
        {"structured_outputs": {"regex": "[^\\s\\S]"}},
    ],
)
def test_what_the_engine_refuses_is_the_clients_fault(
    server: Server, wrong: dict[str, Any]
) -> None:
    reply = Client(server).chat("refused", **wrong)
    assert reply.status_code == 400, reply.text
    assert reply.text.count("refused the call") <= 1
    # A stream may have begun: then it tells.
    streamed = Client(server).chat("refused", **wrong, stream=True)
    assert streamed.status_code == 400 or '"code":400' in streamed.text.replace(" ", "")


def test_a_session_in_the_body_goes_before_that_in_the_header(client: Client) -> None:
    reply = client.chat("header", session_id="body")
    assert reply.headers["x-session-id"] == "body"


def test_calls_of_a_session_follow_each_other_and_carry_its_service(
    client: Client, server: Server
) -> None:
    for _ in range(3):
        client.chat("chain")
    first, second, third = client.program("chain")
    assert [call["parents"] for call in (first, second, third)] == [
        [],
        [[0, "order"]],
        [[1, "order"]],
    ]
    (session,) = [s for s in client.http.get("/v1/sessions").json()["data"] if s["id"] == "chain"]
    assert session["calls_done"] == 3
    assert session["service_s"] == pytest.approx(sum(c["took_s"] for c in (first, second, third)))
    assert session["critical_path_s"] == pytest.approx(session["service_s"])


def test_parents_that_a_client_names_are_the_calls_parents(client: Client) -> None:
    def call(id: str, parents: str | None) -> None:
        named = {} if parents is None else {"X-Autellix-Parents": parents}
        assert client.chat("dag", {"X-Autellix-Call": id, **named}).status_code == 200

    call("plan", "")
    call("left", "plan")
    call("right", "plan")
    call("both", "left, right, never-heard-of")
    call("after", None)
    assert [[place for place, _ in node["parents"]] for node in client.program("dag")] == [
        [],
        [0],
        [0],
        [1, 2],
        [3],
    ]
    path = client.http.get("/v1/sessions/dag").json()
    assert path["critical_path_s"] < path["service_s"]


def test_the_node_that_a_client_names_makes_the_call(client: Client) -> None:
    for header in ({"X-Autellix-Node": "look%20up%20%C3%A4"}, {"X-Autellix-Node": ""}, {}):
        assert client.chat("nodes", header).status_code == 200
    labels = [call["label"] for call in client.program("nodes")]
    assert labels[0] == "look up ä"
    assert labels[1] == labels[2] != labels[0]


def test_the_name_that_a_first_call_gives_its_session_stays(client: Client) -> None:
    for name in ("coding%20agent", "another", ""):
        assert client.chat("named", {"X-Autellix-Name": name}).status_code == 200
    assert client.http.get("/v1/sessions/named").json()["name"] == "coding agent"


def test_without_a_session_a_call_is_a_program_of_its_own(client: Client, server: Server) -> None:
    one, two = client.chat(), client.chat()
    names = {one.headers["x-session-id"], two.headers["x-session-id"]}
    assert len(names) == 2
    for name in names:
        assert len(client.program(name)) == 1
        assert client.http.get(f"/v1/sessions/{name}").status_code == 404, "it has ended"


def test_a_list_of_prompts_is_a_call_each_side_by_side(client: Client) -> None:
    body = {"prompt": ["One two", "A b c"], "max_tokens": 4, "session_id": "several"}
    reply = client.http.post("/v1/completions", json=body)
    assert [choice["index"] for choice in reply.json()["choices"]] == [0, 1]
    client.chat("several")
    one, two, after = client.program("several")
    assert one["parents"] == two["parents"] == []
    assert sorted(place for place, _ in after["parents"]) == [0, 1]


def test_a_client_that_tries_again_makes_another_call(client: Client) -> None:
    first = client.chat("again", {"X-Autellix-Call": "same"})
    second = client.chat("again", {"X-Autellix-Call": "same"})
    assert first.headers["x-autellix-call"] == "same"
    assert second.headers["x-autellix-call"] != "same"
    assert [node["state"] for node in client.program("again")] == ["done", "done"]


def test_usage_is_complete_in_replies_and_streams(client: Client) -> None:
    usage = client.chat("usage").json()["usage"]
    assert usage["completion_tokens"] == 6
    assert usage["total_tokens"] == usage["prompt_tokens"] + 6
    last = client.events("usage", stream_options={"include_usage": True})[-1]
    assert last["choices"] == []
    assert (last["usage"]["completion_tokens"], last["usage"]["prompt_tokens"]) == (
        6,
        usage["prompt_tokens"],
    )
    assert "cached_tokens" in last["usage"]["prompt_tokens_details"]
    assert "kv_transfer_params" not in str(client.events("usage"))


def test_what_a_client_says_of_priority_or_tickets_changes_nothing(
    client: Client, server: Server
) -> None:
    client.chat("plain")
    forged = {"autellix_program": "other", "autellix_call": "x", "autellix_attained_s": -9.0}
    reply = client.chat("plain", priority=-1000, vllm_xargs=forged)
    assert reply.status_code == 200
    dag = server.run.record.dag("plain")
    assert len(dag) == 2
    first, second = dag.graph.nodes
    assert dag.attained_s(second) == pytest.approx(dag.call(first)["service_s"])


# ── the engine's own routes ──────────────────────────────────────────────────────────────────


def test_the_engines_own_routes_come_with_it(client: Client, server: Server) -> None:
    (model,) = client.http.get("/v1/models").json()["data"]
    assert model["id"] == server.run.host.engine.model
    tokens = client.http.post("/tokenize", json={"prompt": "One two"}).json()["tokens"]
    text = client.http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert "One two" in text
    assert client.http.get("/health").status_code == 200
    form = {"type": "json_schema", "json_schema": {"name": "f", "schema": {"enum": ["x", "y"]}}}
    content = client.chat(response_format=form).json()["choices"][0]["message"]["content"]
    assert content.strip() in ('"x"', '"y"')


def test_a_model_that_is_not_here_is_not_found(client: Client) -> None:
    assert code_of(client.chat(model="gpt-4o")) == (404, "model_not_found")


def test_other_routes_are_not_served(client: Client) -> None:
    assert code_of(client.http.get("/v1/files")) == (404, "not_served")
    assert code_of(client.http.get("/v1/chat/completions")) == (405, "wrong_method")
    assert code_of(client.http.post("/v1/load_lora_adapter", json={})) == (404, "not_served")


# ── sessions ─────────────────────────────────────────────────────────────────────────────────


def test_a_session_is_made_read_listed_and_ended(client: Client) -> None:
    made = client.http.post("/v1/sessions", json={"name": "research"})
    assert made.status_code == 201
    id = made.json()["id"]
    assert client.http.get(f"/v1/sessions/{id}").json()["name"] == "research"
    assert code_of(client.http.post("/v1/sessions", json={"id": id})) == (409, "session_exists")
    assert id in {s["id"] for s in client.http.get("/v1/sessions").json()["data"]}
    assert client.http.delete(f"/v1/sessions/{id}").status_code == 204
    assert code_of(client.http.delete(f"/v1/sessions/{id}")) == (404, "no_session")


def test_sessions_come_page_by_page(client: Client) -> None:
    for number in range(5):
        client.http.post("/v1/sessions", json={"id": f"page-{number}"})
    seen, offset = [], 0
    while offset is not None:
        page = client.http.get(f"/v1/sessions?limit=2&offset={offset}").json()
        seen += [session["id"] for session in page["data"]]
        offset = page["next_offset"]
    assert [id for id in seen if id.startswith("page-")] == [f"page-{n}" for n in range(5)]
    for number in range(5):
        client.http.delete(f"/v1/sessions/page-{number}")


def test_ending_a_session_stops_its_calls(client: Client, server: Server) -> None:
    with client.http.stream(
        "POST",
        "/v1/chat/completions",
        json={**ENDLESS, "stream": True, "session_id": "stopped"},
    ) as reply:
        lines = reply.iter_lines()
        assert next(lines).startswith("data: ")
        assert Client(server).http.delete("/v1/sessions/stopped").status_code == 204
        rest = [line for line in lines if line]
    assert "call_stopped" in rest[-1]


def test_a_session_that_is_idle_ends(engine_host: EngineHost) -> None:
    with serving(engine_host, session_idle_s=0.2) as server:
        client = Client(server)
        client.chat("idle")
        server.calls.now = lambda: 1e12  # type: ignore[method-assign]
        assert server.calls.close_stale() == 1
        assert client.http.get("/v1/sessions/idle").status_code == 404


def test_a_client_that_leaves_stops_its_call(client: Client, server: Server) -> None:
    with client.http.stream(
        "POST", "/v1/chat/completions", json={**ENDLESS, "stream": True, "session_id": "left"}
    ) as reply:
        next(reply.iter_lines())
    reply = Client(server).chat("left")  # the engine is free for it
    assert reply.status_code == 200
    assert client.program("left")[0]["state"] == "aborted"


# ── what is watched ──────────────────────────────────────────────────────────────────────────


def test_everything_else_that_is_refused_says_why(client: Client) -> None:
    http = client.http
    path = "/v1/chat/completions"
    assert code_of(http.post(path, content=b"{}")) == (415, "not_json")
    assert code_of(http.post(path, json=[])) == (400, "invalid_json")
    json = {"Content-Type": "application/json"}
    assert code_of(http.post(path, content=b"{", headers=json)) == (400, "invalid_json")
    assert code_of(client.chat("no blanks")) == (400, "invalid_session_id")
    assert code_of(client.chat(session_id=7)) == (400, "invalid_session_id")
    assert code_of(client.chat("s", {"X-Autellix-Call": "a/b"})) == (400, "invalid_call_id")
    assert code_of(client.chat("s", {"X-Autellix-Parents": "a,,b c"})) == (400, "invalid_parents")
    assert code_of(http.get("/v1/models", headers={"Host": "evil.example"})) == (403, "wrong_host")
    assert http.post(path, json={"messages": ASK, "max_tokens": -1}).status_code == 400
    assert http.post(path, json={**SMALL, "model": 7}).status_code == 400


def test_the_server_describes_what_it_serves(client: Client) -> None:
    paths = client.http.get("/openapi.json").json()["paths"]
    assert {"/v1/chat/completions", "/v1/sessions", "/v1/programs", "/metrics"} <= set(paths)
