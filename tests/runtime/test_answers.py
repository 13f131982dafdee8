"""What a program returned, for people and for machines."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from pydantic import BaseModel

from autellix.runtime.answers import answer_text, outcome_json, plain
from autellix.runtime.launcher import Outcome


class Point(BaseModel):
    x: int


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("two\nlines ", "two lines"),
        ({"messages": [HumanMessage("hi"), AIMessage("hello\nthere")]}, "hello there"),
        ({"messages": ["plain"]}, "plain"),
        ({"messages": []}, '{"messages": []}'),
        ({"n": 1}, '{"n": 1}'),
        (Point(x=1), '{"x": 1}'),
        ([Point(x=1), None], '[{"x": 1}, null]'),
        ("größer", "größer"),
        (None, "null"),
        ({"at": complex(1, 2)}, '{"at": "(1+2j)"}'),
    ],
)
def test_an_answer_is_one_line(output: Any, text: str) -> None:
    assert answer_text(output) == text


def test_an_outcome_is_one_line_of_json_whatever_was_returned() -> None:
    output = {"messages": [AIMessage("a\nb")], 3: {Point(x=1).x}, "odd": object()}
    line = outcome_json(Outcome(line=2, program="p-1", status="done", output=output))
    assert "\n" not in line
    row = json.loads(line)
    assert (row["line"], row["program"], row["status"], row["error"]) == (2, "p-1", "done", None)
    assert row["output"]["messages"][0]["content"] == "a\nb"
    assert row["output"]["3"] == [1]


def test_plain_values_stay_as_they_are() -> None:
    assert plain({"a": [1, "x", None, 2.5]}) == {"a": [1, "x", None, 2.5]}
