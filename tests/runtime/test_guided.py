"""Guided decoding: how much whitespace a grammar lets through, by xgrammar itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("vllm", reason="pip install 'autellix[cpu]'")

import xgrammar
from vllm.sampling_params import StructuredOutputsParams
from xgrammar.testing import _is_grammar_accept_string as accepts

from autellix.runtime.guided import bound_whitespace

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {
    "type": "structural_tag",
    "format": {"type": "json_schema", "json_schema": {"type": "object", "title": "json_schema"}},
}


def bounded(backend: str = "auto", *, plain: bool = True, **form: Any) -> StructuredOutputsParams:
    guided = StructuredOutputsParams(**form)
    bound_whitespace(guided, backend, lambda: plain)
    guided.__post_init__()  # one form, and one only
    return guided


@pytest.mark.parametrize(
    "form",
    [
        {"json": SCHEMA},
        {"json": json.dumps(SCHEMA)},
        {"json_object": True},
        {"structural_tag": json.dumps(TOOL)},
    ],
    ids=["schema", "schema text", "any object", "tool"],
)
def test_one_blank_between_tokens_is_as_many_as_there_may_be(form: dict[str, Any]) -> None:
    tag = bounded(**form).structural_tag
    assert tag is not None
    grammar = xgrammar.Grammar.from_structural_tag(tag)
    assert accepts(grammar, '{"a":1}')
    assert accepts(grammar, '{ "a" : 1\n}')
    assert not accepts(grammar, '{  "a":1}')
    assert not accepts(grammar, '{"a":1\n\n}')


def test_a_schema_is_followed_as_before() -> None:
    grammar = xgrammar.Grammar.from_structural_tag(bounded(json=SCHEMA).structural_tag or "")
    assert not accepts(grammar, '{"a":"x"}')
    assert not accepts(grammar, "{}")


@pytest.mark.parametrize(
    ("backend", "plain", "form"),
    [
        ("guidance", True, {"json": SCHEMA}),
        ("auto", False, {"json": SCHEMA}),
        ("auto", True, {"json": SCHEMA, "whitespace_pattern": " ?"}),
        ("auto", True, {"regex": "a+"}),
        ("auto", True, {"choice": ["a", "b"]}),
    ],
    ids=["another back end", "beyond xgrammar", "own pattern", "regex", "choice"],
)
def test_what_is_no_json_for_xgrammar_is_left_alone(
    backend: str, plain: bool, form: dict[str, Any]
) -> None:
    assert bounded(backend, plain=plain, **form) == StructuredOutputsParams(**form)
