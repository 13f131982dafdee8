"""What a program returned, for people and for machines."""

from __future__ import annotations

import json
from typing import Any

from .launcher import Outcome


def answer_text(output: Any) -> str:
    """An output in one line: the last message of a conversation, else its JSON."""
    if isinstance(output, dict) and output.get("messages"):
        output = getattr(output["messages"][-1], "content", output["messages"][-1])
    if not isinstance(output, str):
        output = json.dumps(plain(output), default=str, ensure_ascii=False)
    return " ".join(output.split())


def how_to_go_on(outcome: Outcome, command: str) -> str:
    """What a program that stopped half way waits for, and the command that goes on with it."""
    asked = outcome.output.get("__interrupt__") if isinstance(outcome.output, dict) else None
    text = outcome.program or f"line {outcome.line}"
    if asked:
        text += f" asks: {answer_text(asked[0].value)}"
    if outcome.thread is None:
        return text
    answer = " --resume ANSWER" if asked else ""
    return f"{text}; go on with: {command} --thread-id {outcome.thread}{answer}"


def outcome_json(outcome: Outcome) -> str:
    """An outcome as one line of JSON."""
    values = {
        "line": outcome.line,
        "program": outcome.program,
        "thread": outcome.thread,
        "status": outcome.status,
        "output": plain(outcome.output),
        "error": outcome.error,
    }
    return json.dumps(values, default=str, ensure_ascii=False)


def plain(value: Any) -> Any:
    """Messages and models as dictionaries, all the way down; the rest as it is."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    return value
