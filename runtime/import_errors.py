"""Says in one paragraph why a user's module could not be imported."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

from autellix.errors import AutellixError, TargetError


@contextmanager
def plain_import_errors(
    what: Path | str, folder: Path, *, module: str | None = None
) -> Iterator[None]:
    """Turn what importing raises into a TargetError that names the user's file and line.

    Args:
        what: the file or module that is imported, for the message.
        folder: where the user's own files lie.
        module: the dotted name, if the module itself may be missing.
    """
    try:
        yield
    except (AutellixError, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError):
        raise
    except SystemExit as error:
        raise TargetError(
            f"{_short(what)} ended itself (exit code {error.code}) while it was being imported. "
            'Put what it does as a script under: if __name__ == "__main__":'
        ) from error
    except ModuleNotFoundError as error:
        if module is not None and error.name and _is_prefix(error.name, module):
            raise TargetError(_no_module(module, error.name, folder)) from error
        raise TargetError(_explain(what, folder, error)) from error
    except BaseException as error:
        raise TargetError(_explain(what, folder, error)) from error


@contextmanager
def plain_script_errors(path: Path) -> Iterator[None]:
    """The same for a script that runs: only errors of syntax and of imports are turned."""
    try:
        yield
    except (ImportError, SyntaxError) as error:
        raise TargetError(_explain(path, path.parent, error)) from error


def _explain(what: Path | str, folder: Path, error: BaseException) -> str:
    where, line = _place(error, folder)
    at = f" at {where}:{line}" if where else ""
    words = error.msg if isinstance(error, SyntaxError) else str(error)
    said = f"{type(error).__name__}: {words}" if words else type(error).__name__
    return f"{_short(what)} cannot be imported{at}: {said.rstrip('.')}. {_mend(error)}"


def _mend(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        return f"Install what provides {package!r} into this environment, or correct the name."
    if isinstance(error, ImportError) and "relative import" in str(error):
        return "A file of a package is run by its module name: package.module, not FILE.py."
    if isinstance(error, SyntaxError):
        return "Correct that line."
    return "Correct that, or add --debug to see the whole traceback."


def _place(error: BaseException, folder: Path) -> tuple[str, int]:
    """File and line to look at: the user's last line on the way to the error."""
    if isinstance(error, SyntaxError) and error.filename:
        return _short(Path(error.filename)), error.lineno or 1
    frames = traceback.extract_tb(error.__traceback__)
    mine = [f for f in frames if _is_inside(Path(f.filename), folder)]
    last = mine[-1] if mine else None
    return (_short(Path(last.filename)), last.lineno or 1) if last else ("", 0)


def _is_inside(path: Path, folder: Path) -> bool:
    return path.is_relative_to(folder.resolve()) and "site-packages" not in path.parts


def _short(what: Path | str) -> str:
    """A path as seen from here if it lies below, else in full."""
    path = Path(what)
    if isinstance(what, Path) and path.is_absolute() and path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return str(what)


def _is_prefix(name: str, module: str) -> bool:
    return module == name or module.startswith(name + ".")


def _no_module(module: str, missing: str, folder: Path) -> str:
    parent = folder.joinpath(*missing.split(".")[:-1])
    near = get_close_matches(missing.rpartition(".")[2], _names(parent), n=1, cutoff=0.5)
    hint = ""
    if near:
        stem = ".".join([*missing.split(".")[:-1], near[0]])
        hint = f"Did you mean {stem}? "
    return (
        f"There is no module {module!r}"
        + ("" if missing == module else f", since there is no {missing!r}")
        + f". {hint}It must be importable from {folder} or be installed; a file is named with "
        "its .py ending."
    )


def _names(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    files = [p.stem for p in folder.glob("*.py") if p.stem != "__init__"]
    return sorted([*files, *(p.parent.name for p in folder.glob("*/__init__.py"))])
