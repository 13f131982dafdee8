"""How long an engine's steps took, fitted to what a trace tells of its calls.

A trace holds no steps, but every call's service is the sum of the steps it took part in. With the
step model ``a + b * prefill_tokens + c * sequences + d * kv_tokens`` that sum is linear in

    steps       one for each token it generated, and one more for each time it began again
    prefill     prompt tokens computed in these steps, its own and those of calls that began then
    sequences   calls in these steps: steps x calls that ran at the same time, on average
    KV          context of these calls, likewise

so the four coefficients come from least squares of the relative errors over the calls, none of them
negative. Such a fit is too low on average; it is scaled so that all calls together have the service
that was recorded.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

from autellix.errors import SettingsError, TraceError

from ..scheduler.engine_model import PRESETS, EngineModel, StepTime
from ..tracing.phases import Phase, phases_of
from ..tracing.trace import Trace, TracedCall

_FEWEST_CALLS = 5
_LEAST_STEP_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedModel:
    """An engine as its trace shows it.

    Attributes:
        engine: for the simulator.
        calls: how many the fit rests on.
        median_error: of the fitted calls' service, relative.
        assumed: what the trace does not say, in words.
    """

    engine: EngineModel
    calls: int
    median_error: float
    assumed: tuple[str, ...]


def fit_recorded(trace: Trace) -> RecordedModel:
    """The engine model that explains the recorded service best.

    Raises:
        TraceError: too few calls with receipts.
        SettingsError: numpy is missing.
    """
    rows, seconds = [], []
    for turns in _by_replica(trace).values():
        for turn in turns.turns:
            rows.append(turns.shape(turn))
            seconds.append(turn.service_s)
    if len(rows) < _FEWEST_CALLS:
        raise TraceError(
            f"the trace has {len(rows)} calls with receipts, too few to fit how fast its engine "
            f"was (at least {_FEWEST_CALLS}); record a longer run, or give an engine preset"
        )
    a, b, c, d = _fitted(rows, seconds)
    step = StepTime(a=max(a, _LEAST_STEP_S), b=b, c=c, d=d)
    errors = [
        abs(sum(k * x for k, x in zip((a, b, c, d), row, strict=True)) / s - 1)
        for row, s in zip(rows, seconds, strict=True)
    ]
    engine, assumed = _capacity(trace, step)
    return RecordedModel(
        engine=engine, calls=len(rows), median_error=median(errors), assumed=tuple(assumed)
    )


def _fitted(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    try:
        import numpy as np

        from .calibrate_fit import nonnegative_fit
    except ImportError as missing:
        raise SettingsError(
            "Fitting an engine needs numpy, which comes with the engine: pip install numpy."
        ) from missing
    shapes = np.array(rows)
    found = nonnegative_fit(shapes, np.array(seconds))
    total = float((shapes @ found).sum())
    return [float(k) * math.fsum(seconds) / total for k in found]


def _capacity(trace: Trace, step: StepTime) -> tuple[EngineModel, list[str]]:
    facts, assumed = trace.engine, []
    contexts = [c.prompt_tokens + c.output_tokens for c in trace.calls()]
    seats = facts.seats
    if not seats:
        seats = max(turns.most_at_once for turns in _by_replica(trace).values())
        assumed.append(f"{seats} seats, the most calls that ran at once")
    kv_tokens = facts.kv_tokens
    if not kv_tokens:
        kv_tokens = max(PRESETS["cpu-smollm2"].kv_tokens, seats * max(contexts, default=1))
        assumed.append(f"a KV cache of {kv_tokens} tokens")
    block = facts.block_tokens or 16
    engine = EngineModel(
        name="recorded",
        step=step,
        kv_tokens=max(kv_tokens, max(contexts, default=1) + block),
        block_tokens=block,
        seats=seats,
        token_budget=max(facts.token_budget or 2048, seats + 1),
    )
    return engine, assumed


@dataclass(frozen=True, slots=True)
class _Turn:
    """A call with its running phases."""

    call: TracedCall
    runs: tuple[Phase, ...]
    service_s: float

    @property
    def new_tokens(self) -> int:
        return max(0, self.call.prompt_tokens - self.call.cached_tokens)

    @property
    def context(self) -> float:
        return self.call.prompt_tokens + self.call.output_tokens / 2


class _Turns:
    """The calls of one replica, and what went on while each ran."""

    def __init__(self, turns: list[_Turn]) -> None:
        self.turns = turns
        # (time, new prompt tokens) of every beginning, and sums over them.
        begun = sorted((run.start_s, t.new_tokens) for t in turns for run in _beginnings(t))
        self._begun_s = [at_s for at_s, _ in begun]
        self._begun_tokens = [0, *accumulate(tokens for _, tokens in begun)]
        changes = sorted(
            change
            for t in turns
            for run in t.runs
            for change in ((run.start_s, 1, t.context), (run.end_s, -1, -t.context))
        )
        self._at_s = [at_s for at_s, _, _ in changes]
        self._running = list(accumulate(count for _, count, _ in changes))
        self._contexts = list(accumulate(context for _, _, context in changes))
        self._call_seconds = _integral(self._at_s, self._running)
        self._context_seconds = _integral(self._at_s, self._contexts)

    @property
    def most_at_once(self) -> int:
        return max(self._running, default=1)

    def shape(self, turn: _Turn) -> tuple[float, float, float, float]:
        """Steps, prefill tokens, sequences and KV tokens of the steps it took part in."""
        steps = turn.call.output_tokens + len(_beginnings(turn)) - 1
        lasts_s = math.fsum(run.lasts_s for run in turn.runs)
        prefill = calls = contexts = 0.0
        for run in turn.runs:
            first = bisect_left(self._begun_s, run.start_s)
            last = bisect_left(self._begun_s, run.end_s)
            prefill += self._begun_tokens[last] - self._begun_tokens[first]
            calls += self._between(self._call_seconds, self._running, run)
            contexts += self._between(self._context_seconds, self._contexts, run)
        return steps, prefill, steps * calls / lasts_s, steps * contexts / lasts_s

    def _between(self, integral: list[float], values: Sequence[float], run: Phase) -> float:
        return self._until(integral, values, run.end_s) - self._until(integral, values, run.start_s)

    def _until(self, integral: list[float], values: Sequence[float], at_s: float) -> float:
        place = bisect_right(self._at_s, at_s) - 1
        if place < 0:
            return 0.0
        return integral[place] + values[place] * (at_s - self._at_s[place])


def _beginnings(turn: _Turn) -> list[Phase]:
    """The runs that began with a prompt: the first, and each after a loss of the seat."""
    return [
        run
        for before, run in zip((None, *turn.runs), turn.runs, strict=False)
        if before is None or before.end_s < run.start_s
    ]


def _integral(at_s: Sequence[float], values: Sequence[float]) -> list[float]:
    sums = [0.0] * len(at_s)
    for place in range(1, len(at_s)):
        sums[place] = sums[place - 1] + values[place - 1] * (at_s[place] - at_s[place - 1])
    return sums


def _by_replica(trace: Trace) -> dict[int | None, _Turns]:
    turns: dict[int | None, list[_Turn]] = defaultdict(list)
    for call in trace.calls():
        if call.kind != "llm" or call.service_s <= 0 or not call.output_tokens:
            continue
        phases = phases_of(call, trace.end_s)
        runs = tuple(p for p in phases if p.kind == "running" and p.lasts_s > 0)
        if runs:
            turns[call.replica].append(_Turn(call, runs, call.service_s))
    return {replica: _Turns(found) for replica, found in turns.items()}
