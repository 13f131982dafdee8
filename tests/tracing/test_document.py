"""The trace document has the agreed form, and its schema is strict."""

from __future__ import annotations

import copy
from typing import get_args

import jsonschema
import pytest

from autellix.scheduler.tickets import DecisionKind
from autellix.tracing.document import load_schema
from autellix.tracing.events import CallStarted, Event
from autellix.tracing.record import RunRecord
from autellix.tracing.trace_fields import trace_from_document


def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(load_schema())


def document_of(events: list[Event]) -> dict:
    record = RunRecord()
    for event in events:
        record.apply(event)
    return record.document()


def test_the_document_has_the_agreed_form(small_run):
    assert document_of(small_run) == {
        "schema": 2,
        "engine": {"kind": "vllm", "model": "smollm2", "replicas": 1},
        "policy": "atlas",
        "programs": [
            {
                "id": "p",
                "name": "agent",
                "status": "interrupted",
                "start_s": 0.0,
                "end_s": 4.5,
                "response_s": 1.5,
                "service_s": 0.5,
                "wait_s": 0.25,
                "tool_s": 2.5,
                "critical_path_s": 0.5,
                "critical_path": ["a"],
                "calls": [
                    {
                        "id": "a",
                        "kind": "llm",
                        "name": "smollm2",
                        "node": "think",
                        "parents": [],
                        "start_s": 0.5,
                        "first_token_s": 0.75,
                        "end_s": 1.5,
                        "service_s": 0.5,
                        "wait_s": 0.25,
                        "attained_s": 0.0,
                        "replica": 0,
                        "levels": [1, 2],
                        "preemptions": 1,
                        "prompt_tokens": 30,
                        "cached_tokens": 16,
                        "output_tokens": 12,
                        "status": "done",
                        "events": [
                            {
                                "at_s": 0.5,
                                "kind": "arrival",
                                "level": 1,
                                "reason": "new program",
                            },
                            {
                                "at_s": 1.0,
                                "kind": "demotion",
                                "level": 2,
                                "reason": "quantum of 0.3 s used up",
                            },
                        ],
                    },
                    {
                        "id": "t",
                        "kind": "tool",
                        "name": "search",
                        "node": "act",
                        "parents": [{"id": "a", "kind": "trigger"}],
                        "start_s": 1.5,
                        "end_s": 4.0,
                        "service_s": 0.0,
                        "wait_s": 0.0,
                        "attained_s": 0.5,
                        "replica": None,
                        "levels": [],
                        "preemptions": 0,
                        "prompt_tokens": 0,
                        "cached_tokens": 0,
                        "output_tokens": 0,
                        "status": "failed",
                        "events": [],
                        "error": "no network",
                    },
                    {
                        "id": "b",
                        "kind": "llm",
                        "name": "smollm2",
                        "node": None,
                        "parents": [{"id": "t", "kind": "barrier"}],
                        "start_s": 4.0,
                        "end_s": None,
                        "service_s": 0.0,
                        "wait_s": 0.0,
                        "attained_s": 0.5,
                        "replica": None,
                        "levels": [],
                        "preemptions": 0,
                        "prompt_tokens": 0,
                        "cached_tokens": 0,
                        "output_tokens": 0,
                        "status": "running",
                        "events": [],
                    },
                ],
            }
        ],
    }


def test_the_schema_is_a_schema_and_accepts_the_document(small_run):
    jsonschema.Draft202012Validator.check_schema(load_schema())
    validator().validate(document_of(small_run))


def test_a_call_tells_which_attempt_of_its_node_made_it(small_run):
    again = CallStarted(at_s=4.6, program="p", call="c", kind="llm", name="smollm2", attempt=2)
    document = document_of([*small_run, again])
    validator().validate(document)
    *first, second = document["programs"][0]["calls"]
    assert second["attempt"] == 2
    assert not any("attempt" in call for call in first)
    calls = trace_from_document(document, "here").programs[0].calls
    assert [call.attempt for call in calls] == [1, 1, 1, 2]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.update(extra=1),
        lambda d: d.update(schema=3),
        lambda d: d["engine"].update(extra=1),
        lambda d: d["programs"][0].update(status="paused"),
        lambda d: d["programs"][0].pop("critical_path"),
        lambda d: d["programs"][0]["calls"][0].update(levels=[0]),
        lambda d: d["programs"][0]["calls"][0].update(prompt="text"),
        lambda d: d["programs"][0]["calls"][1]["parents"][0].update(kind="guess"),
        lambda d: d["programs"][0]["calls"][0]["events"][0].pop("reason"),
    ],
)
def test_the_schema_is_strict(spoil, small_run):
    document = copy.deepcopy(document_of(small_run))
    spoil(document)
    assert not validator().is_valid(document)


def test_the_schema_knows_every_decision_of_the_scheduler():
    known = load_schema()["$defs"]["event"]["properties"]["kind"]["enum"]
    assert set(get_args(DecisionKind)) <= set(known)
