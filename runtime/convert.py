"""Turn a GGUF file into a plain model folder that vLLM loads; runs as a process of its own.

    python convert.py SOURCE.gguf FOLDER

It is a program and not a function because torch and transformers take seconds and hundreds of
megabytes that the caller should not keep. Standard output carries one JSON object a line: a step
``{"step": 1, "steps": 4, "what": "..."}`` when it begins, and before an exit with code 1
``{"error": KIND, "message": "..."}`` where KIND is ``disk``, ``library`` or ``other``.

The folder is complete, and on disk, when the exit code is 0. Closing standard input ends the
conversion: a caller that was killed leaves no process behind.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

STEPS = ("loading libraries", "converting tokenizer", "converting weights", "saving")


def main(source: Path, folder: Path) -> int:
    """Convert and report; the exit code."""
    threading.Thread(target=_end_with_the_caller, daemon=True).start()
    try:
        convert(source, folder)
    except ImportError as error:
        return _fail("library", error)
    except Exception as error:
        # safetensors reports a full disk in words only, torch a broken torchvision likewise.
        text = str(error)
        if isinstance(error, OSError) or "os error" in text or "No space left" in text:
            return _fail("disk", error)
        return _fail("library" if "torchvision" in text else "other", error)
    return 0


def convert(source: Path, folder: Path) -> None:
    """Write the model of ``source`` into ``folder``, in bfloat16, with tokenizer and template."""
    _step(0)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    _step(1)
    tokenizer: Any = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    _step(2)
    model: Any = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    # GGUF knows the context length of the model alone; without it the tokenizer claims 10^30.
    tokenizer.model_max_length = model.config.max_position_embeddings
    if not tokenizer.chat_template:
        raise ValueError(f"{source.name} has no chat template, so it cannot serve as a chat model")
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    _step(3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for path in (*folder.iterdir(), folder):
        _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _step(index: int) -> None:
    _tell(step=index + 1, steps=len(STEPS), what=STEPS[index])


def _fail(kind: str, error: Exception) -> int:
    _tell(error=kind, message=f"{type(error).__name__}: {error}")
    return 1


def _tell(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def _end_with_the_caller() -> None:
    # os.read and not sys.stdin: a thread inside sys.stdin's lock breaks the interpreter's exit.
    while os.read(0, 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
