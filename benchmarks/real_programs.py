"""Programs on a real engine: calls of made-up tokens with the lengths and prefixes described.

A prompt begins with what the call shares with an earlier one, that call's prompt and what it really
generated, so that the engine's prefix cache finds what the description says. The rest are tokens
drawn by the program's name: the same in every run.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Sequence

from autellix.runtime.protocols import CallStart, Parent
from autellix.runtime.session import Session
from autellix.runtime.token_calls import token_call
from autellix.scheduler.content_tree import prefix_bases
from autellix.scheduler.sim_programs import SimProgram

# Token ids that are ordinary words in any model's vocabulary.
_FIRST_TOKEN, _LAST_TOKEN = 100, 40_000


class ProgramTexts:
    """The contexts of a program's calls, as token ids."""

    def __init__(self, program: SimProgram) -> None:
        self._program = program
        self._bases = prefix_bases(program.calls)
        self._prompts: dict[int, list[int]] = {}
        self._outputs: dict[int, Sequence[int]] = {}
        self._system = _drawn(f"system/{program.system}", program.system_tokens)

    def prompt(self, index: int) -> list[int]:
        """The prompt of a call."""
        if index not in self._prompts:
            call = self._program.calls[index]
            base = self._bases[index]
            shared = self._start_of(base, call.shared_prefix_tokens) if base >= 0 else []
            if len(shared) < len(self._system):
                shared = self._system
            fresh = call.prompt_tokens - len(shared)
            self._prompts[index] = [*shared, *_drawn(f"{self._program.name}/{index}", fresh)]
        return self._prompts[index]

    def ended(self, index: int, output: Sequence[int]) -> None:
        """A call has generated its tokens."""
        self._outputs[index] = output

    def _start_of(self, index: int, tokens: int) -> list[int]:
        """The first tokens of a call's context."""
        prompt = self.prompt(index)
        if tokens <= len(prompt):
            return prompt[:tokens]
        output = self._outputs.get(index)
        if output is None:
            # It has not ended: what goes on from its answer cannot find that in the cache.
            generated = self._program.calls[index].output_tokens
            output = _drawn(f"{self._program.name}/{index}/output", generated)
        return [*prompt, *output][:tokens]


def _drawn(seed: str, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randint(_FIRST_TOKEN, _LAST_TOKEN) for _ in range(count)]


class RealProgram:
    """One program under way on a session's engine. Everything runs on the engine's loop.

    Args:
        read_prefix_cache: whether prompts' KV may come from the prefix cache.
    """

    def __init__(self, session: Session, program: SimProgram, *, read_prefix_cache: bool) -> None:
        self._session = session
        self._program = program
        self._read_prefix_cache = read_prefix_cache
        self._texts = ProgramTexts(program)
        self._ids = [str(uuid.uuid4()) for _ in program.calls]
        self._on_tokens: Callable[[int], None] | None = None
        self._lacking = [len(call.parents) for call in program.calls]

    async def run(self, on_tokens: Callable[[int], None] | None = None) -> None:
        """Return when its last call has ended.

        Args:
            on_tokens: is told the number of tokens of every call that has ended.
        """
        self._on_tokens = on_tokens
        observer = self._session.programs
        name = self._program.name
        observer.program_started(name, self._program.kind or name)
        async with asyncio.TaskGroup() as group:
            for index in self._program.roots:
                group.create_task(self._call(index, group))
        observer.program_ended(name, "done", None)

    async def _call(self, index: int, group: asyncio.TaskGroup) -> None:
        call, observer = self._program.calls[index], self._session.programs
        if call.tool_s:
            await self._tool(index, call.tool_s)
        prompt = self._texts.prompt(index)
        observer.call_started(
            CallStart(
                program=self._program.name,
                call=self._ids[index],
                kind="llm",
                name="tokens",
                node=None,
                parents=tuple(Parent(id=self._ids[p], kind="order") for p in call.parents),
            )
        )
        output = await self._generate(index, prompt)
        observer.call_ended(self._ids[index], "done", None)
        self._texts.ended(index, output)
        if self._on_tokens is not None:
            self._on_tokens(len(output))
        for child in self._program.children[index]:
            self._lacking[child] -= 1
            if not self._lacking[child]:
                group.create_task(self._call(child, group))

    async def _tool(self, index: int, seconds: float) -> None:
        """What comes before a call: the engine hears of it as it does of an agent's tools."""
        observer, program = self._session.programs, self._program
        tool = f"{self._ids[index]}/tool"
        observer.call_started(
            CallStart(
                program=program.name,
                call=tool,
                kind="tool",
                name=f"{program.kind or 'any'} tool",
                node=None,
                parents=tuple(
                    Parent(id=self._ids[p], kind="order") for p in program.calls[index].parents
                ),
            )
        )
        await asyncio.sleep(seconds)
        observer.call_ended(tool, "done", None)

    async def _generate(self, index: int, prompt: list[int]) -> Sequence[int]:
        programs = self._session.programs
        call = token_call(
            programs.prompt_known(programs.ticket(self._ids[index]), len(prompt)),
            prompt,
            self._program.calls[index].output_tokens,
            read_prefix_cache=self._read_prefix_cache,
        )
        output: Sequence[int] = ()
        async for chunk in self._session.host.engine.generate(call):
            output = chunk.output.outputs[0].token_ids
            if chunk.receipt is not None:
                self._session.programs.receipt(chunk.receipt)
        return output
