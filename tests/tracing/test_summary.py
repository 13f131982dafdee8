"""The table at a run's end, and the same as JSON."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from autellix.tracing.summary import percentile, run_totals, summary_json, summary_table


def program(index: int = 0, status: str = "done", **more) -> dict:
    call = {
        "kind": "llm",
        "prompt_tokens": 34_567,
        "cached_tokens": 2_333,
        "output_tokens": 100,
        "start_s": 1.0,
        "end_s": 2.0,
    }
    tool = {**call, "kind": "tool", "prompt_tokens": 0, "cached_tokens": 0, "output_tokens": 0}
    return {
        "id": f"line {index}",
        "name": "react_agent",
        "status": status,
        "start_s": 0.0,
        "end_s": 10.0 + index,
        "response_s": 4.0 + index,
        "service_s": 3.0,
        "wait_s": 0.5,
        "tool_s": 1.0,
        "critical_path_s": 2.0,
        "calls": [call, call, tool],
        **more,
    }


def shown(programs: list[dict], width: int = 80, **more) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(summary_table({"programs": programs}, width, **more))
    return out.getvalue().splitlines()


def test_a_row_per_program_with_units_in_the_head():
    lines = shown([program()], 120)
    assert lines[0].split() == [
        *["prompt", "cached", "output", "response", "wait", "service", "critical", "share", "of"]
    ]
    assert lines[1].split() == [
        *["program", "status", "calls", "tools", "tokens", "tokens", "tokens"],
        *["s", "s", "s", "path", "s", "response"],
    ]
    assert lines[2].split() == [
        *["react_agent", "line", "0", "done", "2", "1", "69.1k", "4.7k", "200"],
        *["4.00", "0.50", "3.00", "2.00", "50%"],
    ]


def test_the_totals_name_makespan_and_program_token_latency():
    lines = shown([program(0), program(2, "failed")])
    total = next(line for line in lines if line.startswith("total"))
    assert total.split() == ["total", "4", "2", "138k", "9.3k", "400", "1.00", "6.00"]
    assert lines[-2] == "2 programs (1 done, 1 failed)"
    assert lines[-1] == "makespan 12.0 s · program token latency: mean 0.025, P95 0.0295 s/token"


@pytest.mark.parametrize("width", [80, 100, 120, 200])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1_000.0, 1_000_000.0])
def test_it_fits_the_width(width, scale):
    statuses = ["done", "failed", "interrupted", "running", "cancelled"]
    programs = [
        program(
            index,
            status,
            id="3f2a9b1c-1111-2222-3333-444455556666",
            response_s=9.9 * scale,
            service_s=8.8 * scale,
            wait_s=7.7 * scale,
            critical_path_s=6.6 * scale,
        )
        for index, status in enumerate(statuses)
    ]
    lines = shown(programs, width)
    assert max(map(len, lines)) <= width
    assert all("3f2a9b1c" in line for line in lines[2:7])


def test_where_it_is_narrow_columns_give_way_to_names_and_statuses():
    programs = [program(0, "interrupted", id="letter-1"), program(1, "cancelled", id="letter-2")]
    for row in programs:
        row["name"] = "letter"
    lines = shown(programs, 80)
    assert lines[2].startswith("letter-1 interrupted ")
    assert lines[3].startswith("letter-2 cancelled   ")
    assert "%" not in lines[1]
    assert shown(programs, 120)[1].endswith("response")


def test_of_many_programs_the_failed_and_the_longest_are_shown():
    programs = [program(index, "failed" if index == 7 else "done") for index in range(100)]
    lines = shown(programs)
    rows = [line for line in lines if " line " in line or line.startswith("line ")]
    assert len(rows) == 40
    assert "line 7 " in rows[0]
    assert "line 99 " in rows[1]
    assert "60 more programs: 60 done (failed and longest are shown)" in lines
    assert len([line for line in shown(programs[:40]) if "line " in line]) == 40


def test_a_program_without_output_has_no_token_latency():
    silent = program(calls=[], response_s=0.0)
    document = {"programs": [silent, program(4)]}
    totals = run_totals(document)
    assert totals.mean_token_latency_s == totals.p95_token_latency_s == 8.0 / 200
    assert summary_json(document)["programs"][0]["token_latency_s"] is None
    assert summary_json(document)["programs"][0]["critical_path_share"] is None


def test_a_resumed_programs_share_is_of_the_path_of_this_run():
    resumed = program(earlier=[{"id": "p/earlier-1", "critical_path_s": 1.0}])
    found = summary_json({"programs": [resumed]})["programs"][0]
    assert (found["critical_path_s"], found["critical_path_share"]) == (2.0, 0.25)


def test_no_programs_make_an_empty_table():
    assert shown([])[-2:] == ["0 programs (none)", "makespan 0.0 s"]


def test_a_program_that_still_runs_counts_up_to_its_last_call():
    assert run_totals({"programs": [program(end_s=None, status="running")]}).makespan_s == 2.0


def test_the_json_form_has_the_same_figures():
    summary = json.loads(json.dumps(summary_json({"programs": [program(0), program(2)]})))
    assert summary["programs"][0] == {
        "id": "line 0",
        "name": "react_agent",
        "status": "done",
        "calls": 2,
        "tools": 1,
        "prompt_tokens": 69_134,
        "cached_tokens": 4_666,
        "output_tokens": 200,
        "response_s": 4.0,
        "wait_s": 0.5,
        "service_s": 3.0,
        "tool_s": 1.0,
        "critical_path_s": 2.0,
        "critical_path_share": 0.5,
        "token_latency_s": 0.02,
    }
    assert summary["totals"]["programs"] == 2
    assert summary["totals"]["statuses"] == {"done": 2}
    assert summary["totals"]["makespan_s"] == 12.0


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([1.0], 0.95, 1.0), ([1.0, 2.0], 0.5, 1.5), ([0.0, 1.0, 2.0, 3.0, 4.0], 0.95, 3.8)],
)
def test_percentiles_interpolate(values, share, expected):
    assert percentile(values, share) == pytest.approx(expected)
