"""Programs of made-up tokens on a real engine: what they are, and how they run."""

from __future__ import annotations

import asyncio
import random
import uuid
from dataclasses import dataclass

from autellix.runtime.protocols import CallStart, EngineCall, Parent
from autellix.runtime.session import Session

# Token ids that are ordinary words in any model's vocabulary.
_FIRST_TOKEN, _LAST_TOKEN = 100, 40_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSpec:
    """One call of a program.

    Attributes:
        parents: indices of the calls that must have ended; the first one's text goes on here.
        new_tokens: prompt tokens beyond that text.
        output_tokens: tokens to generate.
    """

    parents: tuple[int, ...]
    new_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSpec:
    """A program: when it arrives, seconds from the start, and its calls, parents first."""

    name: str
    arrival_s: float
    calls: tuple[CallSpec, ...]

    @property
    def output_tokens(self) -> int:
        """Tokens that the program generates."""
        return sum(call.output_tokens for call in self.calls)


def long_tailed_programs(count: int, rate: float, seed: int) -> list[ProgramSpec]:
    """Programs whose lengths are long-tailed, arriving as a Poisson process.

    Two of three are chains (chats, ReAct agents): a Pareto number of calls with shape 1.1, at most
    16. One of three is a tree search: rounds of three calls at once, joined by the next round.
    Output lengths are log-normal (median 15 tokens), prompts grow by 20 to 80 tokens a call.

    Args:
        rate: arrivals per second; ``inf`` lets all arrive at once.
    """
    rng = random.Random(seed)
    programs, at_s = [], 0.0
    for number in range(count):
        at_s += rng.expovariate(rate) if rate != float("inf") else 0.0
        length = max(1, min(16, int(rng.paretovariate(1.1))))
        calls: list[CallSpec] = []

        def add(parents: tuple[int, ...], calls: list[CallSpec] = calls) -> int:
            output = max(4, min(120, int(rng.lognormvariate(2.7, 0.9))))
            new = rng.randint(20, 80)
            calls.append(CallSpec(parents=parents, new_tokens=new, output_tokens=output))
            return len(calls) - 1

        if number % 3 == 2:
            front: tuple[int, ...] = ()
            for _ in range(max(1, length // 3)):
                front = tuple(add(front) for _ in range(3))
            add(front)
        else:
            for index in range(length):
                add((index - 1,) if index else ())
        kind = "tree" if number % 3 == 2 else "chain"
        programs.append(ProgramSpec(name=f"{kind}-{number}", arrival_s=at_s, calls=tuple(calls)))
    return programs


async def run_programs(session: Session, specs: list[ProgramSpec], *, longest_prompt: int) -> None:
    """Run them on the session's engine; call it on the engine's loop. The record has the rest."""
    loop = asyncio.get_running_loop()
    start_s = loop.time()

    async def one(spec: ProgramSpec) -> None:
        await asyncio.sleep(max(0.0, start_s + spec.arrival_s - loop.time()))
        await _run_program(session, spec, longest_prompt)

    await asyncio.gather(*(one(spec) for spec in specs))


async def _run_program(session: Session, spec: ProgramSpec, longest_prompt: int) -> None:
    observer = session.programs
    observer.program_started(spec.name, spec.name.partition("-")[0])
    ids = [str(uuid.uuid4()) for _ in spec.calls]
    rng = random.Random(spec.name)
    texts: dict[int, list[int]] = {}
    ended = [asyncio.Event() for _ in spec.calls]

    async def run(index: int, call: CallSpec, fresh: list[int]) -> None:
        for parent in call.parents:
            await ended[parent].wait()
        parents = tuple(Parent(id=ids[p], kind="order") for p in call.parents)
        observer.call_started(
            CallStart(
                program=spec.name,
                call=ids[index],
                kind="llm",
                name="tokens",
                node=None,
                parents=parents,
            )
        )
        before = texts[call.parents[0]] if call.parents else []
        prompt = (before + fresh)[-longest_prompt:]
        texts[index] = prompt + await _generate(session, ids[index], prompt, call.output_tokens)
        observer.call_ended(ids[index], "done", None)
        ended[index].set()

    fresh = [
        [rng.randint(_FIRST_TOKEN, _LAST_TOKEN) for _ in range(call.new_tokens)]
        for call in spec.calls
    ]
    await asyncio.gather(*(run(i, call, fresh[i]) for i, call in enumerate(spec.calls)))
    observer.program_ended(spec.name, "done", None)


async def _generate(session: Session, call: str, prompt: list[int], tokens: int) -> list[int]:
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    ticket = session.programs.ticket(call)
    sampling = SamplingParams(
        temperature=0,
        max_tokens=tokens,
        min_tokens=tokens,
        ignore_eos=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
        extra_args=dict(ticket.to_flat()),
    )
    request = EngineCall(ticket=ticket, prompt={"prompt_token_ids": prompt}, sampling=sampling)
    output: list[int] = []
    async for chunk in session.host.engine.generate(request):
        output = list(chunk.output.outputs[0].token_ids)
        if chunk.receipt is not None:
            session.programs.receipt(chunk.receipt)
    return output
