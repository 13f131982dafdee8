"""What fan-outs of recorded programs say about which of their calls is critical."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import fan_outs


def program(id: str, *calls: tuple[list[int], int, int, str]) -> str:
    return json.dumps(
        {
            "program_id": id,
            "calls": [
                {
                    "id": index,
                    "parents": parents,
                    "prompt_tokens": prompt,
                    "output_tokens": output,
                    "kind": kind,
                }
                for index, (parents, prompt, output, kind) in enumerate(calls)
            ],
        }
    )


def test_a_fan_outs_longest_prompt_is_placed_among_its_chains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "some.jsonl"
    root = ([], 9, 1, "plan")
    lines = [
        # The longest prompt begins the longest chain, by way of what follows it.
        program("a", root, ([0], 50, 1, "x"), ([0], 20, 30, "y"), ([1], 60, 40, "x")),
        # It begins the shortest of three.
        program("b", root, ([0], 50, 1, "x"), ([0], 20, 30, "x"), ([0], 20, 40, "x")),
        # All alike, and no fan-out.
        program("c", root, ([0], 50, 5, "x"), ([0], 20, 5, "x")),
        program("d", root, ([0], 50, 5, "x")),
    ]
    file.write_text("\n".join(lines))
    result = tmp_path / "result.json"
    fan_outs.main([str(file), "--json", str(result)])
    (row,) = json.loads(result.read_text())["cells"]
    assert row == {
        "file": "some.jsonl",
        "programs": 4,
        "fan_outs": 3,
        "of_known_nodes": 3,
        "of_several_nodes": 1,
        "place_of_longest_prompt": 0.5,
    }
    assert "3 fan-outs, 1 of 3 of several nodes; longest prompt at 0.50" in capsys.readouterr().out
