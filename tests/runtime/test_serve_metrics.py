"""The metrics of a server: what they count, how many series there are, and the dashboard."""

from __future__ import annotations

import configparser
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from autellix.runtime.engine_host import EngineHost
from autellix.runtime.serving import Server
from tests.runtime.serve_client import Client, serving

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "serving"
ALICE, OPS = "sk-alice-0123456789", "sk-ops-0123456789ab"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def server(engine_host: EngineHost) -> Iterator[Server]:
    with serving(engine_host, f"alice {ALICE}\nops {OPS} operator") as server:
        yield server


def page(server: Server) -> str:
    reply = Client(server, OPS).http.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    return reply.text


def samples(server: Server) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page(server))
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    return found.get((name, frozenset(labels.items())), 0.0)


def test_calls_tokens_and_waits_are_counted_by_tenant(server: Server) -> None:
    before = samples(server)
    alice = Client(server, ALICE)
    usage = [alice.chat("counted").json()["usage"] for _ in range(2)]
    after = samples(server)

    def grown(name: str, **labels: str) -> float:
        return value(after, name, tenant="alice", **labels) - value(
            before, name, tenant="alice", **labels
        )

    assert grown("autellix_calls_total") == 2
    assert grown("autellix_tokens_total", kind="output") == 12
    prompts = sum(each["prompt_tokens"] for each in usage)
    assert grown("autellix_tokens_total", kind="prompt") == prompts
    assert grown("autellix_call_wait_seconds_count") == 2
    assert grown("autellix_call_service_seconds_sum") > 0
    assert grown("autellix_affinity_hits_total") == 1, "the second call was where the first was"
    assert value(after, "autellix_sessions") == value(before, "autellix_sessions") + 1


def test_the_state_of_replicas_and_vllms_own_metrics_are_there(server: Server) -> None:
    found = samples(server)
    assert value(found, "autellix_replica_up", replica="0") == 1
    assert value(found, "autellix_replica_seats", replica="0") == 8
    levels = {dict(labels).get("level") for name, labels in found if "level_calls" in name}
    assert levels == {str(level) for level in range(1, len(levels) + 1)}
    name = server.run.host.engine.model
    finished = [
        amount
        for (sample, labels), amount in found.items()
        if sample == "vllm:request_success_total" and ("engine", "0") in labels
    ]
    assert sum(finished) > 0
    assert value(found, "vllm:num_requests_running", engine="0", model_name=name) == 0


def test_series_do_not_grow_with_programs_and_calls(server: Server) -> None:
    alice = Client(server, ALICE)
    alice.chat("one")
    before = samples(server).keys()
    for number in range(5):
        alice.chat(f"many-{number}")
    after = samples(server).keys()
    assert after == before
    assert "many-1" not in page(server)


def test_the_dashboard_asks_only_for_what_there_is(server: Server) -> None:
    Client(server, ALICE).chat("shown")
    known = {
        sample.name
        for family in text_string_to_metric_families(page(server))
        for sample in family.samples
    }
    dashboard = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    names = {name for expr in asked for name in re.findall(r"\b(?:autellix|vllm)[_:][a-z_]+", expr)}
    assert len(names) > 20
    only_with_a_host_tier = {"autellix_replica_kv_host_usage"}
    assert names - known <= only_with_a_host_tier
    assert len({panel["title"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert ids == sorted(set(ids))


def test_what_we_count_is_on_the_dashboard() -> None:
    text = (EXAMPLES / "grafana-dashboard.json").read_text()
    for name in ("programs", "replica_level_calls", "promotions", "preemptions", "swaps"):
        assert name in text
    for name in ("affinity_hits", "admission_holds", "call_wait_seconds_bucket"):
        assert name in text


def test_the_examples_name_options_that_there_are() -> None:
    import inspect

    from autellix.runtime.serve_command import serve

    known = {f"AUTELLIX_{name.upper()}" for name in inspect.signature(serve).parameters}
    for file in ("autellix.service", "Containerfile"):
        named = set(re.findall(r"AUTELLIX_[A-Z_]+", (EXAMPLES / file).read_text()))
        assert named <= known, file


def test_the_unit_and_the_scrape_job_can_be_read() -> None:
    unit: Any = configparser.RawConfigParser(strict=False)
    unit.optionxform = str
    unit.read_string((EXAMPLES / "autellix.service").read_text())
    assert unit["Service"]["ExecStart"].endswith("autellix serve")
    (job,) = yaml.safe_load((EXAMPLES / "prometheus.yml").read_text())["scrape_configs"]
    assert job.get("metrics_path", "/metrics") == "/metrics"
