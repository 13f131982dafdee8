"""The scheduler with a log of its steps: what each computed and how long it took.

For calibration and benchmarks alone, given to vLLM as
``scheduler_cls="autellix.scheduler.vllm_step_log.LoggingScheduler"``; ordinary runs do not pay for
it. ``call_utility_async("autellix_steps")`` returns the steps since it was asked last.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.engine.core import EngineCore
from vllm.v1.outputs import ModelRunnerOutput

from .step_log import Step
from .vllm_adapter import ProgramScheduler

_KEPT_STEPS = 200_000


class _Dispatched(NamedTuple):
    at_s: float
    prefill_tokens: int
    prefills: int
    sequences: int
    kv_tokens: int
    prefill_reach: int


class LoggingScheduler(ProgramScheduler):
    """Notes every step of :class:`ProgramScheduler`; what it decides is the same."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_flight: deque[_Dispatched] = deque()
        self._steps: deque[Step] = deque(maxlen=_KEPT_STEPS)
        self._output_s = float("-inf")

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """As the base; the step's contents are noted."""
        output = super().schedule(throttle_prefills)
        prefill = prefills = kv = reach = 0
        for request_id, tokens in output.num_scheduled_tokens.items():
            # vLLM has counted this step's tokens as computed by now.
            context = self.requests[request_id].num_computed_tokens - tokens
            kv += context
            if tokens > 1:
                prefill += tokens
                prefills += 1
                reach += tokens * context + tokens * tokens // 2
        sequences = len(output.num_scheduled_tokens)
        self._in_flight.append(_Dispatched(self.now(), prefill, prefills, sequences, kv, reach))
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """As the base; the step's duration is noted before."""
        now, step = self.now(), self._in_flight.popleft()
        if step.sequences:
            self._steps.append(
                Step(
                    ended_s=now,
                    step_s=now - max(step.at_s, self._output_s),
                    gap_s=max(step.at_s - self._output_s, 0.0),
                    prefill_tokens=step.prefill_tokens,
                    prefills=step.prefills,
                    sequences=step.sequences,
                    kv_tokens=step.kv_tokens,
                    prefill_reach=step.prefill_reach,
                )
            )
        self._output_s = now
        return super().update_from_output(scheduler_output, model_runner_output)

    def autellix_steps(self) -> list[list[float]]:
        """The steps since this was asked last, oldest first, as plain types."""
        steps = [list(step) for step in self._steps]
        self._steps.clear()
        return steps


def _steps_utility(engine: EngineCore) -> list[list[float]]:
    assert isinstance(engine.scheduler, LoggingScheduler)
    return engine.scheduler.autellix_steps()


# vLLM looks utility calls up by name on the engine core, in whose process this module is loaded.
setattr(EngineCore, "autellix_steps", _steps_utility)  # noqa: B010
