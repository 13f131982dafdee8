"""What ``autellix run`` runs: a script, or a graph or function taken from a file or module.

A target is written in one of four ways::

    agent.py             a script; with inputs, the one graph in it, or its main(input)
    agent.py:graph       a graph, a builder, a factory (see ``factories``), or a function of one
                         argument in it
    package.module       the same for an importable module
    package.module:graph
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import runpy
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from autellix.errors import TargetError

from .factories import Factory, is_factory
from .graph_kinds import BUILDERS, GRAPHS, RUNNABLES, is_a
from .import_errors import plain_import_errors, plain_script_errors

_ACCEPTED = (
    "a compiled LangGraph graph, a StateGraph, or a function main(input) that takes one argument"
)

_DATA = (".json", ".jsonl", ".ndjson")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target as it was written, in its parts.

    Attributes:
        text: as the user wrote it.
        path: the script, None for a module.
        module: the dotted module name, None for a script.
        variable: the name after the colon, None without one.
    """

    text: str
    path: Path | None = None
    module: str | None = None
    variable: str | None = None

    @property
    def place(self) -> str:
        """The file or module as written, without the variable."""
        return self.text.removesuffix(f":{self.variable}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What runs once per input.

    Attributes:
        name: what people call the program.
        kind: "graph" has ``invoke`` and ``ainvoke``; "function" is called with the input.
        call: the graph or function itself.
        is_async: await it (every graph: ``ainvoke``); a function that is not runs in a thread.
        making: makes the graph on the loop that runs it, and closes it afterwards; None where
            ``call`` is there already.
    """

    name: str
    kind: Literal["graph", "function"]
    call: Any
    is_async: bool
    making: Callable[[], AbstractAsyncContextManager[Entry]] | None = None


def parse_target(text: str) -> Target:
    """Take a target apart; whether it exists is not looked at.

    Raises:
        TargetError: it has none of the accepted forms.
    """
    place, colon, variable = text.rpartition(":")
    if not colon:
        place, variable = text, ""
    if not place or (colon and not variable.isidentifier()):
        raise TargetError(
            f"{text!r} is no target: after the colon comes the name of a variable. "
            "Write FILE.py, FILE.py:NAME, package.module or package.module:NAME."
        )
    name = variable or None
    if place.endswith(".py") or "/" in place or Path(place).is_file():
        return Target(text=text, path=Path(place), variable=name)
    if all(part.isidentifier() for part in place.split(".")):
        return Target(text=text, module=place, variable=name)
    raise TargetError(
        f"{place!r} is neither a Python file nor a module name. "
        "Write FILE.py, FILE.py:NAME, package.module or package.module:NAME."
    )


def load_program(target: Target | str) -> Entry:
    """Import the target's module and find what to run in it.

    With a variable: that attribute. Without: the compiled graph of the module, else its one
    builder, else its function ``main``; names that begin with an underscore do not count. A
    variable may also name a factory: a function without arguments, or with one named ``config``,
    that makes a graph; where that needs an event loop the entry is to be ``opened``.

    Raises:
        TargetError: it does not exist, cannot be imported, or holds no program or several; the
            original error, if there was one, is the cause.
    """
    target = parse_target(target) if isinstance(target, str) else target
    module = _import(target)
    if target.variable is not None:
        return _named(target, module, target.variable)
    name, value = _the_one(target, module)
    return _entry(target, name, value, fallback_name=_stem(target))


def run_script(path: Path | str, argv: Sequence[str] = ()) -> None:
    """Run a script as ``python path argv...`` would; returns when it ends.

    What the script raises comes out as it is, SystemExit included.

    Raises:
        TargetError: there is no such script, or it or what it imports is no valid Python.
    """
    path = script_path(Path(path))
    with _as_argv(path, argv), _on_path(path.parent), plain_script_errors(path):
        runpy.run_path(str(path), run_name="__main__")


# ── importing ────────────────────────────────────────────────────────────────────────────────


def _import(target: Target) -> ModuleType:
    if target.path is not None:
        return _import_file(script_path(target.path))
    assert target.module is not None
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    with plain_import_errors(target.module, Path.cwd(), module=target.module):
        return importlib.import_module(target.module)


def _import_file(path: Path) -> ModuleType:
    # The graph's nodes may import their neighbours later on, so this entry stays.
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    # Under its own name, so that type hints and pickles find it; never over another module.
    name = path.stem if loaded is None and path.stem.isidentifier() else f"_target_{path.stem}"
    loader = SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with plain_import_errors(path, path.parent):
            loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def script_path(path: Path) -> Path:
    """The script's absolute path.

    Raises:
        TargetError: there is no such script; the message names what is near.
    """
    if path.is_dir():
        inside = sorted(p.name for p in path.glob("*.py"))[:5]
        hint = f"one of {', '.join(inside)}" if inside else "there is no .py file in it"
        raise TargetError(f"{path} is a folder, not a script. Name a file in it: {hint}.")
    if path.suffix in _DATA:
        raise TargetError(
            f"{path} holds data, not a script. Give it as --input, after the program's own file."
        )
    if path.is_file():
        return path.resolve()
    folder = path.parent
    if not folder.is_dir():
        raise TargetError(f"There is no script {path}: the folder {folder} does not exist.")
    scripts = sorted(p.name for p in folder.glob("*.py"))
    near = get_close_matches(path.name, scripts, n=1, cutoff=0.5)
    where = "this folder" if folder == Path() else f"the folder {folder}"
    hint = f"There is no .py file in {where}."
    if near:
        hint = f"Did you mean {folder / near[0]}?"
    elif scripts:
        hint = f"The scripts in {where}: {', '.join(scripts[:5])}."
    raise TargetError(f"There is no script {path}. {hint}")


@contextmanager
def _as_argv(path: Path, argv: Sequence[str]) -> Iterator[None]:
    before, sys.argv = sys.argv, [str(path), *argv]
    try:
        yield
    finally:
        sys.argv = before


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    # In front of the others and not instead of them: engine processes inherit this list.
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))


# ── finding the program ──────────────────────────────────────────────────────────────────────


def _the_one(target: Target, module: ModuleType) -> tuple[str, Any]:
    """The program of a module that was named without a variable."""
    for kind, what in ((GRAPHS, "graphs"), (BUILDERS, "graph builders")):
        found: dict[int, tuple[str, Any]] = {}
        for name, value in vars(module).items():
            if not name.startswith("_") and is_a(value, kind):
                found.setdefault(id(value), (name, value))
        names = [name for name, _ in found.values()]
        if len(names) == 1:
            return next(iter(found.values()))
        if names:
            raise TargetError(
                f"{target.text} holds several {what}: {', '.join(names)}. "
                f"Say which one: {target.text}:{names[0]}"
            )
    main = getattr(module, "main", None)
    if callable(main):
        return "main", main
    raise TargetError(
        f"There is no program in {target.place}. It needs {_ACCEPTED}. "
        "Without --input it runs as a plain script."
    )


def _named(target: Target, module: ModuleType, name: str) -> Entry:
    if not hasattr(module, name):
        known = [
            n for n, v in vars(module).items() if not n.startswith("_") and _may_run(v, module)
        ]
        near = get_close_matches(name, known, n=1)
        hint = f"Did you mean {target.place}:{near[0]}? " if near else ""
        raise TargetError(
            f"{target.place} has no {name!r}. {hint}"
            + (f"It holds: {', '.join(known)}." if known else f"It needs {_ACCEPTED}.")
        )
    value = getattr(module, name)
    if inspect.isfunction(value) and is_factory(value):
        factory = Factory(value, name, target.place)
        if factory.is_deferred:
            return _deferred(target, name, factory)
        value = factory.make()
    return _entry(target, name, value, fallback_name=name)


def _deferred(target: Target, name: str, factory: Factory) -> Entry:
    @asynccontextmanager
    async def making() -> AsyncIterator[Entry]:
        async with factory.opened() as graph:
            yield _entry(target, name, graph, fallback_name=name)

    return Entry(name=name, kind="graph", call=None, is_async=True, making=making)


@asynccontextmanager
async def opened(entry: Entry) -> AsyncIterator[Entry]:
    """The entry with its graph made, on the event loop that is to run it.

    Raises:
        TargetError: its factory failed, or made no graph.
    """
    if entry.making is None:
        yield entry
        return
    async with entry.making() as made:
        yield made


def _entry(target: Target, name: str, value: Any, *, fallback_name: str) -> Entry:
    if is_a(value, BUILDERS):
        with plain_import_errors(target.path or target.text, Path.cwd()):
            value = value.compile()
    if is_a(value, GRAPHS) or is_a(value, RUNNABLES):
        own = getattr(value, "name", None)
        shown = own if isinstance(own, str) and own not in ("", "LangGraph") else fallback_name
        return Entry(name=shown, kind="graph", call=value, is_async=True)
    if not callable(value) or inspect.isclass(value):
        raise TargetError(
            f"{name} in {target.place} is of type {type(value).__name__}, which cannot be run. "
            f"It must be {_ACCEPTED}."
        )
    _check_function(target, name, value)
    return Entry(name=fallback_name, kind="function", call=value, is_async=_is_async(value))


def _check_function(target: Target, name: str, function: Any) -> None:
    body = function if inspect.isroutine(function) else type(function).__call__
    if inspect.isasyncgenfunction(body) or inspect.isgeneratorfunction(body):
        raise TargetError(
            f"{name}() in {target.place} yields its results; a program returns one. "
            "Collect them and return them at the end."
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(object())
    except TypeError:
        raise TargetError(
            f"{name}{signature} in {target.place} cannot be called with one argument. With --input "
            "it is called with the input of each line: write "
            f"def {name}(input), or leave --input out to run the file as a plain script."
        ) from None


def _may_run(value: Any, module: ModuleType) -> bool:
    if any(is_a(value, kind) for kind in (GRAPHS, BUILDERS)):
        return True
    return inspect.isfunction(value) and value.__module__ == module.__name__


def _is_async(function: Any) -> bool:
    if inspect.iscoroutinefunction(function):
        return True
    return inspect.iscoroutinefunction(type(function).__call__)


def _stem(target: Target) -> str:
    if target.path is not None:
        return target.path.stem
    return (target.module or target.text).rpartition(".")[2]
