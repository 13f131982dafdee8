"""No framework: plain Python marked as programs with ``autellix.program``.

    autellix run examples/plain_python.py --input examples/plain_python.jsonl
    python examples/plain_python.py

Each input is ``{"text": "..."}``. A draft and a title are written at the same time, then joined.
"""

from __future__ import annotations

import asyncio

import autellix
from autellix import ChatAutellix

MODEL = ChatAutellix(temperature=0, max_tokens=40)


async def ask(prompt: str) -> str:
    """One call."""
    return (await MODEL.ainvoke(prompt)).text.strip()


async def main(task: dict) -> dict:
    """Two calls at once, then one that needs both."""
    draft, title = await asyncio.gather(
        ask(f"Rewrite politely: {task['text']}"),
        ask(f"Give a short title for: {task['text']}"),
    )
    return {"title": title, "letter": await ask(f"Improve this letter: {title}\n{draft}")}


@autellix.program("letter")
async def letter(text: str) -> dict:
    """The same as a program of its own, for use without ``autellix run``."""
    return await main({"text": text})


if __name__ == "__main__":
    print(asyncio.run(letter("Send me the report by Friday.")))
