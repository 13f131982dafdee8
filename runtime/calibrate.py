"""``autellix calibrate``: measures an engine's steps and makes a preset for the simulator of it.

The document that it prints or writes::

    {"preset": {"name", "step": {"a", "b", "c", "d", "e"}, "kv_tokens", "block_tokens", ...},
     "fit": {"step", "residuals", "linear", "linear_residuals"}, "between_s", "model",
     "engine_args", "machine", "points": [...]}

``preset`` is what ``sim:FILE.json`` reads. Its ``a`` is the fit's plus ``between_s``, the engine's
own work between two steps, which is in no step's time but in every program's.
"""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from autellix.errors import InputError, SettingsError

from ..scheduler.config import SchedulerConfig
from ..scheduler.engine_model import EngineModel
from ..scheduler.step_log import LOGGING_SCHEDULER
from .calibrate_fit import Residuals, StepFit, fit_steps
from .calibrate_sweep import EngineLimits, Sweep
from .engine_host import ended_if_it_fails
from .engine_loop import EngineLoop
from .engine_start import EngineProcesses, check_memory, set_engine_environment
from .machine import cores
from .models import DEFAULT_MODEL, resolve_model
from .progress import Steps
from .settings import Settings

# Copying blocks between two places in memory, measured with the embedded model; and PCIe 4 x16.
_CPU_LINK, _GPU_LINK = 2.5e9, 25e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What a calibration gave.

    Attributes:
        preset: for the simulator.
        fit: the coefficients and how far measured steps lie from them.
        document: all of it as plain values.
    """

    preset: EngineModel
    fit: StepFit
    document: dict[str, Any]


def check_output(path: Path | None) -> None:
    """Find out before minutes are spent.

    Raises:
        InputError: no file can be written there, or simulated engines would not take its name.
    """
    if path is None:
        return
    if path.suffix != ".json":
        raise InputError(f"--output must end in .json, got {path}: sim:FILE.json reads it.")
    if not path.parent.is_dir():
        raise InputError(f"There is no folder {path.parent} for --output; make it first.")


def calibrate(settings: Settings, console: Console, *, name: str | None = None) -> Calibration:
    """Start an engine, sweep it, stop it and fit what it took.

    Args:
        settings: model and engine arguments; the policy is plain first come, first served.
        console: shows progress unless the settings are quiet.
        name: of the preset; the model's by default.

    Raises:
        ModelError, EngineStartError, SettingsError, EngineError: what they say.
    """
    if name is not None and not name.strip():
        raise SettingsError("--name is empty; leave it out for the model's name.")
    served_name = settings.model or DEFAULT_MODEL
    model = resolve_model(settings.model, progress=not settings.quiet)
    loop = EngineLoop()
    shown = Steps("calibrate", shown=not settings.quiet, console=console)
    try:
        with ended_if_it_fails(), shown as steps:
            steps.note("starting the engine, some 20 s on a CPU")
            swept, shape = loop.run(_sweep(settings, str(model), served_name, steps.begin))
    finally:
        loop.close()
    fit = fit_steps(swept.points)
    preset = EngineModel(
        name=name or served_name.rstrip("/").rpartition("/")[2],
        step=replace(fit.step, a=fit.step.a + swept.between_s),
        turnaround_s=swept.turnaround_s,
        **shape,
    )
    document = {
        "preset": preset.to_dict(),
        "fit": fit.to_dict(),
        "between_s": swept.between_s,
        "model": served_name,
        "engine_args": dict(settings.engine_args),
        "machine": {"cores": cores(), "cpu": platform.processor() or platform.machine()},
        "points": [asdict(point) for point in swept.points],
    }
    return Calibration(preset=preset, fit=fit, document=document)


async def _sweep(
    settings: Settings, model: str, served_name: str, note: Callable[[int, int, str], None]
) -> tuple[Sweep, dict[str, Any]]:
    set_engine_environment(debug=settings.debug)
    from .vllm_replica import VllmReplica

    check_memory(1)
    with contextlib.closing(EngineProcesses(debug=settings.debug)) as processes:
        replica = await VllmReplica.start(
            model,
            settings.engine_args,
            SchedulerConfig(policy="fcfs"),
            served_name=served_name,
            processes=processes,
            scheduler_class=LOGGING_SCHEDULER,
        )
        try:
            config = replica.llm.vllm_config
            sweep = Sweep(replica, engine_limits(config))
            await sweep.run(note)
        finally:
            await replica.stop()
    return sweep, engine_shape(config)


def engine_limits(config: Any) -> EngineLimits:
    """What a running engine can take (``config`` is vLLM's ``VllmConfig``)."""
    shape = engine_shape(config)
    return EngineLimits(
        seats=shape["seats"],
        token_budget=shape["token_budget"],
        context_tokens=config.model_config.max_model_len,
        kv_tokens=shape["kv_tokens"],
    )


def engine_shape(config: Any) -> dict[str, Any]:
    """What a preset takes from a running engine's configuration (vLLM's ``VllmConfig``)."""
    from .vllm_names import current_platform

    cache, scheduler, model = config.cache_config, config.scheduler_config, config.model_config
    parallel = config.parallel_config
    heads = model.get_total_num_kv_heads()
    kv_bytes = 2 * model.get_num_layers(parallel) * heads * model.get_head_size() * 2
    return {
        "kv_tokens": cache.num_gpu_blocks * cache.block_size,
        "block_tokens": cache.block_size,
        "seats": scheduler.max_num_seqs,
        "token_budget": scheduler.max_num_batched_tokens,
        "kv_bytes_per_token": kv_bytes,
        "link_bytes_per_s": _CPU_LINK if current_platform.is_cpu() else _GPU_LINK,
    }


def report(done: Calibration, console: Console) -> None:
    """Show the coefficients and the residuals."""
    step = done.preset.step
    between_s = done.document["between_s"]
    console.print(
        f"A step of {done.document['model']} takes {1e3 * step.a:.3g} ms "
        f"({1e3 * between_s:.2g} ms of them between steps) + {1e6 * step.b:.4g} us a prompt token "
        f"+ {1e6 * step.c:.4g} us a call + {1e9 * step.d:.4g} ns a token of KV "
        f"+ {1e9 * step.e:.4g} ns a token that a prompt token looks back on.",
        highlight=False,
    )
    table = Table("steps", "points", "median error", "P90", "R2", "without the last term", "P90")
    for column in table.columns[1:]:
        column.justify = "right"
    for region, found in done.fit.residuals.items():
        linear = done.fit.linear_residuals[region]
        table.add_row(region, str(found.points), *_shown(found), *_shown(linear)[:2])
    console.print(table)
    preset = done.preset
    console.print(
        f"{preset.kv_tokens:,} tokens of KV in blocks of {preset.block_tokens}, {preset.seats} "
        f"seats, {preset.token_budget:,} tokens a step; {1e3 * preset.turnaround_s:.2g} ms from a "
        "call's last token to its program and back into the engine.",
        highlight=False,
    )


def _shown(found: Residuals) -> tuple[str, str, str]:
    r2 = "-" if found.r2 is None else f"{found.r2:.3f}"
    return f"{found.median:.1%}", f"{found.p90:.1%}", r2


def write_preset(done: Calibration, path: Path) -> None:
    """Write the document.

    Raises:
        InputError: it cannot be written there.
    """
    try:
        path.write_text(json.dumps(done.document, indent=1) + "\n")
    except OSError as error:
        raise InputError(
            f"The preset cannot be written to {path}: {error.strerror}; name another file with "
            "--output."
        ) from None
