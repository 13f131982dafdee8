"""Why a call took as long as it did: its story in sentences, and the same as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .trace import TracedCall, TracedEvent
from .waiting import CAUSES, Cause, Served, Wait, Waiting

_NOTICEABLE_S = 1e-3
_SHOWN = 4  # calls named of those that were served instead


@dataclass(frozen=True, slots=True)
class Line:
    """One sentence of a story.

    Attributes:
        at_s: when it happened, seconds since the run's start; None where it sums up.
        text: the sentence.
        detail: belongs under the sentence before.
    """

    at_s: float | None
    text: str
    detail: bool = False


def story(waiting: Waiting, call: TracedCall) -> list[Line]:
    """What happened to a call, in order, with times and with who was served instead of it."""
    lines = [_beginning(waiting, call)]
    if call.kind == "llm":
        lines += _in_the_engine(waiting, call)
    lines += _end(call)
    lines += _sums(waiting, call)
    return lines


def why_json(waiting: Waiting, call: TracedCall) -> dict[str, Any]:
    """The story's facts as plain JSON types."""
    program = waiting.trace.program(call.program)
    return {
        "call": call.id,
        "handle": call.handle,
        "program": call.program,
        "kind": call.kind,
        "title": call.title,
        "status": call.status,
        "start_s": call.start_s,
        "end_s": call.end_s,
        "service_s": call.service_s,
        "wait_s": call.wait_s,
        "on_critical_path": call.id in program.critical_path,
        "causes": {cause: seconds for cause, seconds in waiting.causes(call).items() if seconds},
        "waits": [_wait_json(waiting, call, wait) for wait in waiting.waits(call)],
        "story": [{"at_s": line.at_s, "text": line.text} for line in story(waiting, call)],
    }


def render(waiting: Waiting, call: TracedCall) -> RenderableType:
    """The story for a terminal."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right", style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for line in story(waiting, call):
        when = "" if line.at_s is None else f"{line.at_s:.3f} s"
        text = Text(f"  {line.text}", "dim") if line.detail else Text(line.text)
        grid.add_row(when, text)
    title = Text.assemble((call.handle, "bold"), f"  {_named(call)}  ", (call.id, "dim"))
    return Group(title, grid)


# The sentences.


def _beginning(waiting: Waiting, call: TracedCall) -> Line:
    what = f"{_named(call)} of program {call.program} begins"
    if not call.parents:
        return Line(call.start_s, f"{what}; nothing comes before it.")
    known = [(p, waiting.trace.by_id[p.id]) for p in call.parents if p.id in waiting.trace.by_id]
    if not known:
        return Line(call.start_s, f"{what} where an earlier run had stopped.")
    edge, last = max(known, key=lambda pair: pair[1].end_s or pair[1].start_s)
    why = {
        "order": "it comes next in its task",
        "trigger": "what that wrote started it",
        "barrier": "the superstep had to end",
    }[edge.kind]
    others = f", the last of {len(known)} calls it depends on" if len(known) > 1 else ""
    ended = f" at {last.end_s:.3f} s" if last.end_s is not None else ""
    return Line(
        call.start_s, f"{what}: {last.title} ({last.handle}) had ended{ended}{others}; {why}."
    )


def _in_the_engine(waiting: Waiting, call: TracedCall) -> Iterator[Line]:
    if not call.events:
        yield Line(None, "The engine told nothing of it: no receipt of it came.")
        return
    waits = {wait.phase.end_s: wait for wait in waiting.waits(call)}
    for event in call.events:
        wait = waits.get(event.at_s)
        yield Line(event.at_s, _decision(waiting, call, event, wait))
        if wait is not None and wait.phase.lasts_s >= _NOTICEABLE_S:
            yield from _instead(waiting, call, wait)


def _decision(waiting: Waiting, call: TracedCall, event: TracedEvent, wait: Wait | None) -> str:
    level, reason = event.level, event.reason
    waited = " at once"
    if wait is not None and wait.phase.lasts_s >= _NOTICEABLE_S:
        waited = f" after {seconds(wait.phase.lasts_s)}"
    match event.kind:
        case "arrival":
            where = f"replica {call.replica}" if call.replica is not None else "the engine"
            first = "; the best level" if level == 1 else ""
            attained = f": {reason}" if reason else ""
            return f"It reaches {where} and is placed at level {level}{attained}{first}."
        case "admission":
            return f"Admission control lets it in: {_readable(waiting, reason)}."
        case "dispatch":
            return f"It gets a seat{waited}."
        case "resume":
            return f"It gets a seat again{waited}."
        case "demotion":
            return f"It goes down to level {level}: {reason}."
        case "promotion":
            return f"It is promoted to level {level}: {reason}."
        case "preemption":
            return f"It loses its seat at level {level}: {_readable(waiting, reason)}."
        case "swap":
            return f"Its KV cache is swapped: {reason}."
        case "leave":
            return f"It leaves the engine ({reason or 'ended'})."
        case other:
            return f"{other}: {reason}."


def _readable(waiting: Waiting, reason: str) -> str:
    """A reason in which calls are named as people name them."""
    words = [waiting.trace.by_id[w].handle if w in waiting.trace.by_id else w for w in _cut(reason)]
    return "".join(words) or "no reason given"


def _cut(text: str) -> Iterator[str]:
    word = ""
    for letter in text:
        if letter in " :,;":
            yield from (word, letter)
            word = ""
        else:
            word += letter
    yield word


def _instead(waiting: Waiting, call: TracedCall, wait: Wait) -> Iterator[Line]:
    seats = waiting.seats(call.replica)
    if wait.phase.kind != "held" and seats:
        yield Line(
            None, f"Meanwhile {wait.seats_taken:.1f} of {seats} seats were taken on average.", True
        )
    if wait.phase.kind == "waiting":
        causes = sorted(wait.causes.items(), key=lambda item: -item[1])
        parts = [f"{seconds(s)} {CAUSES[cause]}" for cause, s in causes if s >= 5e-4]
        if parts:
            yield Line(None, "It waited: " + "; ".join(parts) + ".", True)
    instead = waiting.served(call, wait)
    for served in instead[:_SHOWN]:
        yield Line(None, _served_text(served, wait.phase.level), True)
    left = len(instead) - _SHOWN
    if left > 0:
        rest = sum(served.seconds for served in instead[_SHOWN:])
        yield Line(None, f"and {left} more calls, {seconds(rest)} of seat time together", True)


def _served_text(served: Served, level: int) -> str:
    standing: dict[Cause, str] = {
        "own": "of the same program",
        "better": "better placed",
        "same": "same level",
        "worse": "worse placed, kept its seat",
    }
    held = {"better": f"level {served.level} before {level}"} if level else {}
    text = held.get(served.standing, f"level {served.level}")
    return (
        f"served instead: {served.call.handle} {served.call.title} for "
        f"{seconds(served.seconds)} ({standing[served.standing]}, {text})"
    )


def _end(call: TracedCall) -> Iterator[Line]:
    if call.first_token_s is not None:
        yield Line(call.first_token_s, "Its first token reaches the program.")
    if call.end_s is None:
        yield Line(None, "It had not ended when the trace did.")
        return
    how = {"done": "It ends", "failed": "It fails", "aborted": "It is given up"}.get(
        call.status, "It ends"
    )
    tokens = ""
    if call.kind == "llm":
        tokens = (
            f": {call.prompt_tokens} prompt tokens, {call.cached_tokens} of them cached, "
            f"{call.output_tokens} generated"
        )
    error = f" ({call.error})" if call.error else ""
    yield Line(call.end_s, f"{how}{error}{tokens}.")


def _sums(waiting: Waiting, call: TracedCall) -> Iterator[Line]:
    if call.end_s is None:
        return
    lasted = call.end_s - call.start_s
    if call.kind == "tool":
        yield Line(None, f"It took {seconds(lasted)} outside of the engine.")
    else:
        rest = max(0.0, lasted - call.service_s - call.wait_s)
        share = f", {call.wait_s / lasted:.0%} of its time" if lasted > 0 else ""
        yield Line(
            None,
            f"In all {seconds(lasted)}: {seconds(call.service_s)} of service, "
            f"{seconds(call.wait_s)} of waiting{share}, {seconds(rest)} between program and "
            "engine.",
        )
    program = waiting.trace.program(call.program)
    if call.id in program.critical_path:
        path = f"{seconds(program.critical_path_s)} of service"
        yield Line(None, f"It lies on its program's critical path ({path}).")
    elif program.critical_path:
        yield Line(None, "It does not lie on its program's critical path.")


def _named(call: TracedCall) -> str:
    if call.kind == "tool":
        return f"Tool {call.name}"
    return f"Call {call.node} ({call.name})" if call.node else f"Call of {call.name}"


def seconds(value: float) -> str:
    """A duration for a sentence: ``12.3 s``, ``4.56 s``, ``8.1 ms``."""
    if value >= 100:
        return f"{value:.0f} s"
    if value >= 10:
        return f"{value:.1f} s"
    if value >= 0.1 or value == 0:
        return f"{value:.2f} s" if value else "0 s"
    return f"{value * 1e3:.2g} ms"


def _wait_json(waiting: Waiting, call: TracedCall, wait: Wait) -> dict[str, Any]:
    return {
        "kind": wait.phase.kind,
        "start_s": wait.phase.start_s,
        "end_s": wait.phase.end_s,
        "level": wait.phase.level or None,
        "causes": wait.causes,
        "seats_taken": round(wait.seats_taken, 3),
        "served": [
            {
                "call": served.call.id,
                "handle": served.call.handle,
                "seconds": round(served.seconds, 9),
                "level": served.level,
                "standing": served.standing,
            }
            for served in waiting.served(call, wait)
        ],
    }
