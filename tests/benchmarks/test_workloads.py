"""Generated and recorded programs."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from autellix.errors import InputError, UsageError
from autellix.scheduler.engine_model import preset_named
from benchmarks.workload_traces import read_trace
from benchmarks.workloads import NAMES, poisson, workload

TRACES = Path(__file__).resolve().parents[2] / "benchmarks" / "traces"


@pytest.mark.parametrize(
    ("name", "calls", "most", "new_tokens", "output_tokens"),
    [
        ("sharegpt", 6.66, 80, 256, 277),
        ("bfcl", 10.75, 70, 735.06, 34.14),
        ("lats", 159.7, 380, 467.2, 72.6),
    ],
)
def test_generated_programs_have_the_paper_s_means(
    name: str, calls: float, most: int, new_tokens: float, output_tokens: float
) -> None:
    programs = [p for seed in (1, 2, 3) for p in workload(name, 500, seed).programs]
    made = [call for program in programs for call in program.calls]
    assert fmean(len(p) for p in programs) == pytest.approx(calls, rel=0.06)
    assert max(len(p) for p in programs) <= most
    new = fmean(call.prompt_tokens - call.shared_prefix_tokens for call in made)
    assert new == pytest.approx(new_tokens, rel=0.06)
    assert fmean(call.output_tokens for call in made) == pytest.approx(output_tokens, rel=0.06)


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_gives_the_same_programs_and_more_of_them_begin_with_these(name: str) -> None:
    some, more = workload(name, 6, 4).programs, workload(name, 9, 4).programs
    assert [p.calls for p in some] == [p.calls for p in more[:6]]
    assert [p.calls for p in some] != [p.calls for p in workload(name, 6, 5).programs]


def test_mixed_has_equal_numbers_of_its_three_kinds() -> None:
    kinds = [p.name.partition("-")[0] for p in workload("mixed", 30, 1).programs]
    assert [kinds.count(kind) for kind in ("sharegpt", "bfcl", "lats")] == [10, 10, 10]


def test_a_poisson_process_has_the_rate_asked_for() -> None:
    programs = workload("bfcl", 300, 1).programs
    times = [at_s for at_s, _ in poisson(programs * 20, 5.0, seed=1)]
    assert len(times) / times[-1] == pytest.approx(5.0, rel=0.03)
    assert times == sorted(times)


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.gz")), ids=lambda path: path.name)
def test_the_sample_traces_can_be_read(path: Path) -> None:
    trace = read_trace(path, strict=True)
    assert len(trace.programs) == 60


def line(name: str = "p", **changes: Any) -> str:
    call = {"id": 0, "parents": [], "prompt_tokens": 9, "output_tokens": 2}
    return json.dumps({"program_id": name, "calls": [{**call, **changes}]})


def cycle(name: str) -> str:
    call = {"prompt_tokens": 9, "output_tokens": 2}
    calls = [{**call, "id": 0, "parents": [1]}, {**call, "id": 1, "parents": [0]}]
    return json.dumps({"program_id": name, "calls": calls})


def test_unknown_times_and_prefixes_count_as_nothing(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(line(shared_prefix_tokens=None, tool_s_before=None, output_tokens=0) + "\n")
    call = read_trace(file).programs[0].calls[0]
    assert (call.shared_prefix_tokens, call.tool_s, call.output_tokens) == (0, 0.0, 1)


def test_calls_may_stand_before_their_parents(tmp_path: Path) -> None:
    call = {"prompt_tokens": 9, "output_tokens": 2}
    calls = [
        {**call, "id": "b", "parents": ["a"], "prompt_tokens": 20},
        {**call, "id": "a", "parents": []},
    ]
    file = tmp_path / "t.jsonl"
    file.write_text(json.dumps({"program_id": "p", "calls": calls}))
    first, second = read_trace(file).programs[0].calls
    assert (first.parents, second.parents, second.prompt_tokens) == ((), (0,), 20)


BAD = [
    ('{"program_id": "x", "ca', "no valid JSON"),
    ("[1, 2]", 'an object with a list "calls"'),
    ('{"program_id": "", "calls": []}', '"program_id" must be a text'),
    ('{"program_id": "x", "calls": []}', "has no calls"),
    (cycle("x"), "the parents form a cycle that holds up call 0"),
    (line("x", parents=[7]), "has parent 7, which is not there"),
    (line("x", prompt_tokens=-1), '"prompt_tokens" of call 0 must be a whole number >= 0'),
    (line("x", output_tokens=1.5), '"output_tokens" of call 0 must be a whole number'),
    (line("x", tool_s_before=-3), '"tool_s_before" must be seconds >= 0 or null'),
    (line("good"), "'good' was there before"),
]


@pytest.mark.parametrize(("bad", "message"), BAD)
def test_a_bad_line_is_left_out_and_named_with_its_number(
    tmp_path: Path, bad: str, message: str
) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(f"{line('good')}\n\n{bad}\n{line('other')}\n")
    trace = read_trace(file)
    assert [p.name for p in trace.programs] == ["good", "other"]
    (skipped,) = trace.skipped
    assert skipped.startswith("line 3 of t.jsonl: ") and message in skipped
    with pytest.raises(InputError, match="line 3"):
        read_trace(file, strict=True)


def test_a_pack_that_is_cut_off_gives_the_programs_before_the_cut(tmp_path: Path) -> None:
    packed = (TRACES / "tau_bench_airline_gpt4o.jsonl.gz").read_bytes()
    file = tmp_path / "t.jsonl.gz"
    file.write_bytes(packed[: len(packed) // 2])
    trace = read_trace(file)
    assert 10 < len(trace.programs) < 60
    assert any("cut off after line" in message for message in trace.skipped)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"nonsense\n"])
def test_a_file_without_programs_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "t.jsonl"
    file.write_bytes(content)
    with pytest.raises(InputError, match="holds no program that can be read"):
        read_trace(file)


def test_a_file_that_is_not_there_or_no_pack_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no trace file"):
        read_trace(tmp_path / "t.jsonl")
    file = tmp_path / "t.jsonl.gz"
    file.write_bytes(b"not packed")
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(file)


def test_a_short_trace_is_gone_through_again_and_names_stay_apart() -> None:
    served = workload(f"trace:{TRACES / 'tau_bench_airline_gpt4o.jsonl.gz'}", 150, 1)
    assert served.name == "trace:tau_bench_airline_gpt4o.jsonl.gz"
    assert len({program.name for program in served.programs}) == 150


def test_several_traces_are_mixed_in_equal_numbers() -> None:
    files = ",".join(str(TRACES / f"{n}.jsonl.gz") for n in ("tot_text", "reflexion_hotpotqa"))
    names = [p.name for p in workload(f"trace:{files}", 20, 1).programs]
    assert sum(name.startswith("tottext") for name in names) == 10


def test_programs_that_the_engine_cannot_hold_are_left_out_and_counted() -> None:
    served = workload("coding", 20, 1, model=preset_named("cpu-smollm2"))
    assert served.too_long + len(served.programs) == 20 and served.too_long > 0


def test_impossible_workloads_are_refused() -> None:
    with pytest.raises(UsageError, match=r"choose one of: sharegpt.*trace:FILE"):
        workload("chat", 10, 1)
    with pytest.raises(UsageError, match="--programs must be a whole number >= 1, got 0"):
        workload("bfcl", 0, 1)


def test_the_trace_of_a_run_is_told_apart_and_where_to_replay_it(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"schema":2,"policy":"plas","programs":[\n]}\n')
    with pytest.raises(InputError, match=f"autellix trace whatif {path}"):
        read_trace(path)
