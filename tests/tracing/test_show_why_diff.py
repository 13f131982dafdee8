"""What ``autellix trace show``, ``why`` and ``diff`` say of a trace."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from autellix.tracing import diff, show, why
from autellix.tracing.phases import PhaseKind
from autellix.tracing.trace import TracedProgram
from autellix.tracing.trace_fields import trace_from_document
from autellix.tracing.trace_file import read_trace
from autellix.tracing.waiting import Waiting
from tests.tracing.simulated import document_of, simulated_run

SAMPLES = Path(__file__).parent / "samples"


@pytest.fixture(scope="module")
def react() -> Waiting:
    return Waiting(read_trace(SAMPLES / "react_agent.v1.json"))


@pytest.fixture(scope="module")
def tree() -> Waiting:
    return Waiting(read_trace(SAMPLES / "tree_search.v1.json"))


def printed(shown, width: int = 100) -> str:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    Console(file=out, width=width).print(shown)
    out.flush()
    out.seek(0)
    return out.read()


def test_a_tree_has_every_call_once_each_below_a_parent(tree: Waiting):
    for program in tree.trace.programs:
        lines = show.tree_lines(program)
        assert sorted(line.call.number for line in lines) == [c.number for c in program.calls]
        seen: set[str] = set()
        for line in lines:
            assert not line.call.parents or {p.id for p in line.call.parents} & seen
            seen.add(line.call.id)


def test_a_chain_is_a_column_and_branches_stand_beside_each_other(tree: Waiting):
    lines = show.tree_lines(tree.trace.program("tree_search-2"))
    drawn = [f"{line.prefix}{line.call.number}" for line in lines]
    assert drawn[:6] == ["├ 1", "│ ├ 4", "│ ├ 5", "│ └ 6", "│   7", "│   ├ 8"]
    assert drawn[-2:] == ["├ 2", "└ 3"]


def test_a_program_of_thousands_of_calls_in_a_row_is_drawn():
    trace = trace_from_document(document_of(simulated_run(1, 1500)), "t")
    lines = show.tree_lines(trace.programs[0])
    assert len(lines) == len(trace.programs[0].calls) > 1500


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_it_fits_the_terminal_whatever_its_size_and_letters(tree: Waiting, width, encoding):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    console = Console(file=out, width=width)
    console.print(show.render(tree, console))
    console.print(why.render(tree, tree.trace.call("tree_search-1/1")))
    console.print(diff.render(diff.diff(tree.trace, tree.trace), ("a", "b"), width))
    out.flush()
    out.seek(0)
    text = out.read()
    assert max(map(len, text.splitlines())) <= width
    assert "tree_search-1" in text and "critical path" in text
    assert ("●" in text) == (encoding == "utf-8")


def test_what_show_says_as_json_is_the_trace(react: Waiting):
    said = show.show_json(react)
    for told, program in zip(said["programs"], react.trace.programs, strict=True):
        assert (told["id"], told["response_s"]) == (program.id, program.response_s)
        assert told["calls"] + told["tools"] == len(program.calls)
        assert sum(told["causes"].values()) == pytest.approx(program.wait_s, abs=1e-6)
        path = [line["call"] for line in told["tree"] if line["on_critical_path"]]
        assert path == list(program.critical_path)


def test_why_tells_a_calls_whole_story(react: Waiting):
    call = react.trace.call("react_agent-3/3")
    lines = [(line.at_s, line.text) for line in why.story(react, call)]
    texts = [text for _, text in lines]
    assert texts[0].startswith("Call act (ChatAutellix) of program react_agent-3 begins: look_up")
    told = " ".join(texts)
    for words in (
        "is placed at level 3: attained 15.2 s",
        "It gets a seat after 44.4 s.",
        "Meanwhile 3.0 of 3 seats were taken",
        "31.1 s calls of a better level had the seats",
        "served instead: react_agent-7/1 act for 33.0 s (better placed, level 2 before 3)",
        "It goes down to level 4: quantum of 10.4 s used up.",
        "It loses its seat at level 4: for call react_agent-6/5 at level 2: seats full.",
        "It gets a seat again after 26.4 s.",
        "In all 94.4 s: 23.1 s of service, 70.9 s of waiting, 75% of its time",
        "It lies on its program's critical path (45.3 s of service).",
    ):
        assert words in told, words
    times = [at for at, _ in lines if at is not None]
    assert times == sorted(times)


def test_every_decision_about_a_call_is_in_its_story(react: Waiting, tree: Waiting):
    for waiting in (react, tree):
        for call in waiting.trace.calls():
            told = [line.at_s for line in why.story(waiting, call)]
            assert [event.at_s for event in call.events if event.at_s not in told] == []


def test_why_as_json_names_who_was_served_instead(react: Waiting):
    said = why.why_json(react, react.trace.call("react_agent-3/3"))
    assert [wait["kind"] for wait in said["waits"]] == ["waiting", "preempted"]
    served = said["waits"][0]["served"]
    assert served[0] == {
        "call": react.trace.call("react_agent-7/1").id,
        "handle": "react_agent-7/1",
        "seconds": pytest.approx(33.0, abs=0.1),
        "level": 2,
        "standing": "better",
    }
    assert sum(said["causes"].values()) == pytest.approx(said["wait_s"], abs=1e-6)


def test_why_explains_tools_failures_and_calls_that_never_ended(small_run):
    waiting = Waiting(trace_from_document(document_of(small_run), "t"))
    tool = " ".join(line.text for line in why.story(waiting, waiting.trace.call("t")))
    assert "It fails (no network)." in tool
    assert "It took 2.50 s outside of the engine." in tool
    open_call = " ".join(line.text for line in why.story(waiting, waiting.trace.call("b")))
    assert "The engine told nothing of it" in open_call
    assert "It had not ended when the trace did." in open_call


def test_an_escape_in_a_name_does_not_reach_the_terminal_as_markup():
    events = simulated_run(1, 2)
    document = document_of(events)
    document["programs"][0]["name"] = document["programs"][0]["id"] = "[red]x[/red][link=y]"
    waiting = Waiting(trace_from_document(document, "t"))
    console = Console(width=120)
    assert "[red]x[/red]" in printed(show.render(waiting, console), 120)
    assert "[red]x[/red]" in printed(why.render(waiting, next(waiting.trace.calls())), 120)


def test_diff_matches_programs_by_id_and_then_by_name_and_turn(react: Waiting):
    fcfs = read_trace(SAMPLES / "react_agent_fcfs.v2.json.zst")
    found = diff.diff(fcfs, react.trace)
    assert [p.program for p in found.programs] == [p.id for p in fcfs.programs]
    assert (found.a.policy, found.b.policy) == ("fcfs", "atlas")
    assert (found.only_a, found.only_b) == ((), ())

    document = document_of(simulated_run(3, 3))
    other = document_of(simulated_run(3, 3, policy="plas", seed=2))
    for number, program in enumerate(other["programs"]):
        program["id"] = f"another-{number}"
    del other["programs"][-1]
    a, b = trace_from_document(document, "a"), trace_from_document(other, "b")
    found = diff.diff(a, b)
    assert [(p.program, p.other) for p in found.programs] == [
        ("agent-1", "another-0"),
        ("agent-2", "another-1"),
    ]
    assert (found.only_a, found.only_b) == (("agent-3",), ())


def test_diff_says_who_gained_and_whether_the_work_was_the_same():
    document = document_of(simulated_run(3, 3))
    a = trace_from_document(document, "a")
    assert diff.diff(a, a).differing_work == ()
    assert (diff.diff(a, a).faster, diff.diff(a, a).slower) == (0, 0)
    document["programs"][0]["response_s"] *= 2
    document["programs"][1]["response_s"] /= 2
    document["programs"][2]["calls"].pop()
    b = trace_from_document(document, "b")
    found = diff.diff(a, b)
    assert (found.faster, found.slower) == (1, 1)
    assert found.differing_work == ("agent-3",)
    text = printed(diff.render(found, ("a", "b"), 100))
    assert "+100.0%" in text and "-50.0%" in text
    assert "1 of 3 programs made other calls" in text


def test_diff_warns_of_programs_that_did_not_end():
    document = document_of(simulated_run(3, 3))
    a = trace_from_document(document, "a")
    document["programs"][1]["status"] = "failed"
    found = diff.diff(a, trace_from_document(document, "b"))
    assert found.unfinished == ("agent-2",)
    assert "1 of 3 programs did not come to their end" in printed(
        diff.render(found, ("a", "b"), 100)
    )


def test_the_bars_cover_the_phases_of_a_call(tree: Waiting):
    kinds: set[PhaseKind] = {p.kind for phases in tree.phases.values() for p in phases}
    assert kinds == {"on its way", "waiting", "preempted", "running"}
    text = printed(show.render(tree, Console(width=140), most_calls=None), 140)
    for mark in "█░▒·":
        assert mark in text


def test_of_many_programs_the_longest_are_shown():
    document = document_of(simulated_run(60, 2))
    waiting = Waiting(trace_from_document(document, "t"))
    text = printed(show.render(waiting, Console(width=100)))
    assert "20 more programs (the longest are shown)" in text
    longest: TracedProgram = max(waiting.trace.programs, key=lambda p: p.response_s)
    assert longest.id in text
