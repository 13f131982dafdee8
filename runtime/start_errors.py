"""Why an engine did not start, in words: from what it raised and from its log."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from autellix.errors import EngineStartError, SettingsError

_NO_MODEL = ("repo id", "local folder", "offline", "huggingface", "outgoing traffic")


def start_error(
    model: str, cause: Exception, logfile: Path | None
) -> EngineStartError | SettingsError:
    """What is raised for ``cause``; the likely reason and what to do.

    SettingsError where the engine does not take its arguments.

    Args:
        model: as asked for.
        logfile: what the engine's processes wrote; None where they wrote elsewhere.
    """
    text = " ".join(str(cause).split())
    last = _last_error(logfile)
    where = f" Its log is {logfile}." if logfile is not None and logfile.is_file() else ""
    lowered = f"{text} {last}".lower()
    if any(sign in lowered for sign in _NO_MODEL):
        return EngineStartError(
            f"There is no model {model!r}: it is neither a folder on this machine nor could it be "
            f"fetched from the model hub. Give the path of a model folder with --model, or leave "
            f"--model out for the embedded model.{where}"
        )
    if isinstance(cause, ValidationError):
        return SettingsError(
            f"The engine does not take its arguments: {problems(cause)}. Change --model or "
            f"--engine-arg.{where}"
        )
    if "memory" in lowered:
        return EngineStartError(
            f"Not enough memory for the engine: {last or text}. Use a smaller --engine-arg "
            f"max_model_len or max_num_seqs, or less KV cache (VLLM_CPU_KVCACHE_SPACE on a CPU, "
            f"--engine-arg gpu_memory_utilization=0.8 on a GPU).{where}"
        )
    return EngineStartError(
        f"The engine did not start: {last or text or type(cause).__name__}. `autellix doctor` "
        f"checks the machine; --debug shows the engine's own log.{where}"
    )


def problems(cause: ValidationError) -> str:
    """What is wrong with values that a library has checked, without its links."""
    found = [(e["loc"], e["msg"].removeprefix("Value error, ").rstrip(".")) for e in cause.errors()]
    return "; ".join(f"{where[0]}: {what}" if where else what for where, what in found)


def _last_error(logfile: Path | None) -> str:
    """The last line of a log that names an exception, without the logger's prefix."""
    if logfile is None or not logfile.is_file():
        return ""
    for line in reversed(logfile.read_text(errors="replace").splitlines()):
        text = line.split("]", 1)[-1].strip() if " ERROR " in f" {line} " else line.strip()
        name = text.split(":", 1)[0]
        if name.endswith(("Error", "Exception")) and "Engine core initialization" not in text:
            return text[:400]
    return ""
