"""Inputs are JSON text, standard input or a file; one document or one a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from autellix.errors import InputError
from autellix.runtime.inputs import read_inputs


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def values(spec: str | None) -> list[object]:
    lines = read_inputs(spec)
    assert [line.error for line in lines] == [None] * len(lines)
    return [line.value for line in lines]


def complaint(spec: str) -> str:
    with pytest.raises(InputError) as raised:
        read_inputs(spec)
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_no_input_is_no_programs() -> None:
    assert values(None) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [('{"a": 1}', {"a": 1}), ("[1, 2]", [1, 2]), ('"hello"', "hello"), ("3", 3), ("null", None)],
)
def test_json_text_is_one_program(text: str, value: object) -> None:
    assert values(text) == [value]


def test_several_lines_of_text_are_one_program_each() -> None:
    assert values('{"a": 1}\n\n{"a": 2}\n') == [{"a": 1}, {"a": 2}]


def test_standard_input_is_read() -> None:
    lines = read_inputs("-", read_stdin=lambda: b'{"a": 1}\n{"a": 2}\n')
    assert [(line.number, line.value) for line in lines] == [(1, {"a": 1}), (2, {"a": 2})]


@pytest.mark.parametrize("spec", ["in.json", "@in.json"])
def test_one_document_in_a_file_is_one_program_even_an_array(here: Path, spec: str) -> None:
    (here / "in.json").write_text('[\n  {"a": 1},\n  {"a": 2}\n]\n')
    assert values(spec) == [[{"a": 1}, {"a": 2}]]


def test_a_json_lines_file_is_one_program_a_line(here: Path) -> None:
    (here / "in.jsonl").write_text('{"a": 1}\n\n  \n[2]\n"three"')
    lines = read_inputs("in.jsonl")
    assert [(line.number, line.value) for line in lines] == [(1, {"a": 1}), (4, [2]), (5, "three")]


def test_json_lines_are_known_without_their_name(here: Path) -> None:
    (here / "in.txt").write_text('{"a": 1}\n{"a": 2}\n')
    assert values("in.txt") == [{"a": 1}, {"a": 2}]


def test_a_document_over_several_lines_is_one_program_whatever_its_name(here: Path) -> None:
    (here / "in.jsonl").write_text('{\n  "a": 1\n}\n')
    assert values("in.jsonl") == [{"a": 1}]


def test_a_byte_order_mark_and_windows_line_ends_do_not_matter(here: Path) -> None:
    (here / "in.jsonl").write_bytes(b'\xef\xbb\xbf{"a": "\xc3\xa9"}\r\n\r\n{"a": 2}\r\n')
    assert values("in.jsonl") == [{"a": "é"}, {"a": 2}]


def test_a_line_separator_inside_a_string_ends_no_line(here: Path) -> None:
    (here / "in.jsonl").write_text('{"a": "x\u2028y"}\n{"a": 2}\n', encoding="utf-8")
    assert values("in.jsonl") == [{"a": "x\u2028y"}, {"a": 2}]


# ── what cannot be read ──────────────────────────────────────────────────────────────────────


def test_a_bad_line_is_named_and_the_others_stay(here: Path) -> None:
    (here / "in.jsonl").write_text('{"a": 1}\n{"a": }\n{"a": 3}\n')
    good, bad, other = read_inputs("in.jsonl")
    assert (good.value, other.value) == ({"a": 1}, {"a": 3})
    assert bad.number == 2
    assert bad.error is not None
    assert bad.error.startswith("in.jsonl, line 2, column 7: no valid JSON: expecting value")


def test_a_bad_first_line_does_not_hide_the_others() -> None:
    data = b'{bad}\n{"a": 2}\n{"a": 3}\n'
    bad, *others = read_inputs("-", read_stdin=lambda: data)
    assert bad.error is not None
    assert bad.error.startswith("standard input, line 1, column 2")
    assert [line.value for line in others] == [{"a": 2}, {"a": 3}]


def test_bytes_that_are_no_utf_8_are_an_error_of_their_line(here: Path) -> None:
    (here / "in.jsonl").write_bytes(b'{"a": 1}\n{"a": "\xe9"}\n')
    good, bad = read_inputs("in.jsonl")
    assert good.value == {"a": 1}
    assert bad.error is not None
    assert "line 2, column 8" in bad.error
    assert "0xe9 is not UTF-8" in bad.error


def test_a_line_nested_too_deeply_is_an_error_of_its_own(here: Path) -> None:
    (here / "in.jsonl").write_text("[" * 200_000 + "\n{}\n")
    bad, good = read_inputs("in.jsonl")
    assert good.value == {}
    assert bad.error is not None


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ('{"a": }', "--input, line 1, column 7: no valid JSON: expecting value. Correct it there."),
        ("in.josn", "Did you mean in.json?"),
        ("@nowhere/in.json", "There is no input file nowhere/in.json"),
        ("hello there", "a plain string in quotes"),
        (".", "is a folder"),
        ("  ", "--input is empty"),
        ("empty.json", "empty.json is empty"),
        ("broken.json", "broken.json, line 3, column 1"),
        ("utf16.json", "UTF-16"),
    ],
)
def test_an_input_that_cannot_be_used_is_told_why(here: Path, spec: str, said: str) -> None:
    (here / "in.json").write_text("{}")
    (here / "empty.json").write_text("\n \n")
    (here / "broken.json").write_text('{\n  "a": 1,\n}\n')
    (here / "utf16.json").write_text("{}", encoding="utf-16")
    assert said in complaint(spec)
