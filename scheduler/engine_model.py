"""How long an engine's steps take and how much it holds: models for the simulator, and presets.

A step takes ``a + b * prefill_tokens + c * sequences + d * kv_tokens`` seconds. Prefill tokens are
the prompt tokens computed in the step, sequences the calls in it, KV tokens the context that these
calls have in the cache when it begins. A fitted model has one term more, ``e * prefill_reach``:
every prompt token computed looks back on all before it, which on a CPU is most of a long prompt's
time. The presets by roofline leave it out (e = 0).

**Presets by roofline.** A step cannot be faster than reading what it needs from memory, nor than
its arithmetic. With weights of W bytes and P parameters, bandwidth B and peak F (dense bf16):

    read = W / (0.85 B)        compute(tokens) = 2 P tokens / (0.6 F)
    a = read + 1 ms of launching and host work
    b = (compute(2048) - read) / 2048      so that a full chunk takes compute(2048) + 1 ms
    c = max(compute(256) - read, 0) / 256  so that 256 decoding calls take what roofline says
    d = KV bytes a token / (0.85 B)
    KV tokens = (0.9 memory - W - 5 GB of activations and graphs) / KV bytes a token

The efficiencies 0.85 and 0.6, the 1 ms and the 5 GB are assumptions, the same for all. Attention's
own arithmetic (quadratic in the prompt) is left out.

| device | memory | B | F | host link | source |
|---|---|---|---|---|---|
| A100 SXM | 80 GiB | 2.039 TB/s | 312 TFLOP/s | PCIe 4 x16, 25 GB/s | NVIDIA A100 data sheet |
| H100 SXM | 80 GiB | 3.35 TB/s | 989 TFLOP/s | PCIe 5 x16, 50 GB/s | NVIDIA H100 data sheet |
| H200 SXM | 141 GB | 4.8 TB/s | 989 TFLOP/s | PCIe 5 x16, 50 GB/s | NVIDIA H200 data sheet |

Llama-3.1-8B: P = 8.03e9, W = 16.06 GB, KV 32 layers x 8 heads x 128 x 2 (K, V) x 2 bytes = 131,072
bytes a token. Llama-3.1-70B: P = 70.6e9, W = 141.2 GB, KV 80 x 8 x 128 x 2 x 2 = 327,680 bytes a
token (model cards and ``config.json``). On four devices everything is divided by four and each of
the 2 x 80 all-reduces of a step adds 15 us, and 1.5 x 16,384 bytes a token at 240 GB/s (NVLink 3).
A100, 8B: read 9.27 ms, compute(2048) 175.7 ms, so a = 10.27 ms, b = 81 us, c = 50 us, d = 76 ns,
429 thousand tokens of KV.

**cpu-smollm2** is fitted by ``autellix calibrate``: SmolLM2-135M in bfloat16 on two cores of an
AMD EPYC, ``benchmarks/results/calibrate_cpu.json``. a has 0.4 ms of the engine's own work between
steps. The fit's median error is 4 %, its P90 9 %; without e they would be 9 % and 29 %, the worst
of it in prompts above a thousand tokens. KV: what fits into 3 GiB.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from autellix.errors import InputError, SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Duration of a step, seconds: ``a + b*prefill_tokens + c*sequences + d*kv_tokens``.

    And ``e*prefill_reach``, the attention of prompts, where a fit has it.
    """

    a: float
    b: float = 0.0
    c: float = 0.0
    d: float = 0.0
    e: float = 0.0

    def __post_init__(self) -> None:
        for name in ("a", "b", "c", "d", "e"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 <= value < math.inf or (name == "a" and value == 0):
                raise SettingsError(
                    f"coefficient {name} of the step time must be >= 0 seconds (a: > 0), got "
                    f"{value!r}; take those of a preset"
                )

    def of(
        self, prefill_tokens: int, sequences: int, kv_tokens: int, prefill_reach: float = 0.0
    ) -> float:
        """Seconds that such a step takes.

        Args:
            prefill_tokens: prompt tokens computed.
            sequences: calls in it.
            kv_tokens: context that these calls have in the cache when it begins.
            prefill_reach: sum over the prompt tokens of how many each looks back on.
        """
        linear = self.a + self.b * prefill_tokens + self.c * sequences + self.d * kv_tokens
        return linear + self.e * prefill_reach


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """One replica as the simulator sees it.

    Attributes:
        name: the preset's.
        step: how long steps take.
        kv_tokens: KV capacity, tokens.
        block_tokens: tokens in a KV block.
        seats: most calls in a step.
        token_budget: most tokens in a step, prompts in chunks and one for each decoding call.
        kv_bytes_per_token: KV of a token, bytes.
        link_bytes_per_s: bandwidth between device and host memory, for swapping.
        turnaround_s: from a call's last token to its program and from there back into the engine,
            which meanwhile goes on with its next step, seconds.

    Raises:
        SettingsError: a value is impossible.
    """

    name: str
    step: StepTime
    kv_tokens: int
    block_tokens: int = 16
    seats: int = 256
    token_budget: int = 2048
    kv_bytes_per_token: int = 131_072
    link_bytes_per_s: float = 25e9
    turnaround_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("kv_tokens", "block_tokens", "seats", "token_budget", "kv_bytes_per_token"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SettingsError(f"{name} must be a whole number >= 1, got {value!r}")
        if self.token_budget <= self.seats:
            raise SettingsError(
                f"token_budget must exceed the {self.seats} seats, got {self.token_budget}: with "
                "every seat decoding there must be room for a prompt; raise it or give fewer seats"
            )
        if self.kv_tokens < self.block_tokens:
            raise SettingsError(
                f"kv_tokens must hold a block of {self.block_tokens}, got {self.kv_tokens}"
            )
        number = isinstance(self.link_bytes_per_s, int | float)
        if not number or not self.link_bytes_per_s > 0:
            raise SettingsError(f"link_bytes_per_s must be > 0, got {self.link_bytes_per_s!r}")
        number = isinstance(self.turnaround_s, int | float)
        if not number or not 0 <= self.turnaround_s < math.inf:
            raise SettingsError(
                f"turnaround_s must be seconds >= 0, got {self.turnaround_s!r}; 0 leaves it out"
            )

    def to_dict(self) -> dict[str, Any]:
        """The model as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_dict`.

        Raises:
            SettingsError: a name that is not known or lacking, or an impossible value.
        """
        known = {f.name for f in fields(cls)}
        needed = {"name", "step", "kv_tokens"}
        unknown, lacking = {*values} - known, needed - {*values}
        if unknown or lacking or not isinstance(values.get("step"), Mapping):
            what = f"has no value {sorted(unknown)[0]!r}" if unknown else "lacks a value"
            raise SettingsError(
                f"an engine preset {what}; it needs {', '.join(sorted(needed))} and may have "
                f"{', '.join(sorted(known - needed))}"
            )
        step = {name: values["step"].get(name, 0.0) for name in ("a", "b", "c", "d", "e")}
        return cls(**{**values, "step": StepTime(**step)})

    @property
    def blocks(self) -> int:
        """KV capacity, blocks."""
        return self.kv_tokens // self.block_tokens

    def work_s(self, prompt_tokens: int, new_tokens: int, output_tokens: int) -> float:
        """Seconds of a full engine that a call takes by itself: its share of every step it is in.

        Args:
            prompt_tokens: the whole prompt; it is read with every token generated.
            new_tokens: the part of it that is not in the cache.
            output_tokens: tokens to generate.
        """
        step = self.step
        each = step.a / self.seats + step.c + step.d * (prompt_tokens + output_tokens / 2)
        reach = new_tokens * (prompt_tokens - new_tokens / 2)
        return step.b * new_tokens + step.e * reach + output_tokens * each


_FULL_CHUNK, _FULL_BATCH = 2048, 256
_MEMORY_SHARE, _COMPUTE_SHARE = 0.85, 0.6
_HOST_S = 0.001
_RESERVED_BYTES = 5e9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    memory_bytes: float
    bytes_per_s: float
    flops: float
    link_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    parameters: float
    layers: int
    hidden: int

    @property
    def kv_bytes_per_token(self) -> int:
        return self.layers * 8 * 128 * 2 * 2


def _roofline(name: str, device: _Device, model: _Model, devices: int = 1) -> EngineModel:
    bandwidth = _MEMORY_SHARE * device.bytes_per_s * devices
    weight_bytes = 2 * model.parameters
    read_s = weight_bytes / bandwidth
    compute_s = 2 * model.parameters / (_COMPUTE_SHARE * device.flops * devices)
    reduces = 2 * model.layers if devices > 1 else 0
    reduce_s_per_token = reduces * 1.5 * 2 * model.hidden / 240e9
    memory = devices * (0.9 * device.memory_bytes - _RESERVED_BYTES)
    return EngineModel(
        name=name,
        step=StepTime(
            a=read_s + _HOST_S + reduces * 15e-6,
            b=compute_s - read_s / _FULL_CHUNK + reduce_s_per_token,
            c=max(compute_s - read_s / _FULL_BATCH, 0.0) + reduce_s_per_token,
            d=model.kv_bytes_per_token / bandwidth,
        ),
        kv_tokens=int((memory - weight_bytes) / model.kv_bytes_per_token),
        kv_bytes_per_token=model.kv_bytes_per_token,
        link_bytes_per_s=device.link_bytes_per_s * devices,
    )


_A100 = _Device(memory_bytes=80 * 2**30, bytes_per_s=2.039e12, flops=312e12, link_bytes_per_s=25e9)
_H100 = _Device(memory_bytes=80 * 2**30, bytes_per_s=3.35e12, flops=989e12, link_bytes_per_s=50e9)
_H200 = _Device(memory_bytes=141e9, bytes_per_s=4.8e12, flops=989e12, link_bytes_per_s=50e9)
_LLAMA_8B = _Model(parameters=8.03e9, layers=32, hidden=4096)
_LLAMA_70B = _Model(parameters=70.6e9, layers=80, hidden=8192)

PRESETS: dict[str, EngineModel] = {
    model.name: model
    for model in (
        EngineModel(
            name="cpu-smollm2",
            step=StepTime(a=0.0277, b=6.81e-4, c=8.85e-4, d=2.07e-6, e=4.82e-7),
            kv_tokens=139_808,
            block_tokens=32,
            seats=64,
            kv_bytes_per_token=23_040,
            link_bytes_per_s=2.5e9,
            turnaround_s=0.0022,
        ),
        _roofline("a100-llama3-8b", _A100, _LLAMA_8B),
        _roofline("h100-llama3-8b", _H100, _LLAMA_8B),
        _roofline("h200-llama3-8b", _H200, _LLAMA_8B),
        _roofline("a100x4-llama3-70b", _A100, _LLAMA_70B, devices=4),
    )
}


def preset_named(name: str) -> EngineModel:
    """The preset of that name; a name that ends in ``.json`` is a file of ``autellix calibrate``.

    Raises:
        SettingsError: there is none; the message lists those there are.
        InputError: the file cannot be read or holds no preset.
    """
    if name.endswith(".json"):
        return preset_in(Path(name))
    try:
        return PRESETS[name]
    except KeyError:
        raise SettingsError(
            f"there is no engine preset {name!r}; choose one of: {', '.join(PRESETS)}, or a file "
            "of autellix calibrate (FILE.json)"
        ) from None


def preset_in(path: Path) -> EngineModel:
    """The preset in a file: by itself, or as "preset" of a larger document.

    Raises:
        InputError: the file cannot be read or holds no preset.
    """
    mend = "write one with: autellix calibrate --output FILE.json"
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"there is no preset file {path}; {mend}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"preset file {path} cannot be read ({error}); {mend}") from None
    if not isinstance(document, dict):
        raise InputError(f"preset file {path} holds no object; {mend}")
    try:
        return EngineModel.from_dict(document.get("preset", document))
    except (SettingsError, AttributeError, TypeError) as error:
        raise InputError(f"preset file {path} holds no preset: {error}; {mend}") from None
