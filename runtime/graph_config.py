"""``langgraph.json``: an application's graphs by name, as LangGraph's own tools read them.

Read are ``graphs`` (``{id: "path.py:variable" | "package.module:variable"}``, or an object with
such a ``path``), ``dependencies`` (folders in it are put on the import path) and ``env`` (a file or
an object). Everything else is for deployments and is left alone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from autellix.errors import TargetError

from .targets import Target, parse_target

log = logging.getLogger("autellix")


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphConfig:
    """A configuration file, read.

    Attributes:
        path: the file.
        graphs: where each graph is, by its id.
        folders: go on the import path.
        variables: environment variables that the application expects.
    """

    path: Path
    graphs: Mapping[str, str]
    folders: tuple[Path, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def target(self, graph: str | None) -> Target:
        """The graph of that id; without an id the only one.

        Raises:
            TargetError: there is none of that id, or there are several and none was named.
        """
        listed = ", ".join(self.graphs)
        if graph is None:
            if len(self.graphs) > 1:
                raise TargetError(
                    f"{self.path} holds several graphs: {listed}. Say which one: "
                    f"-c {self.path} {next(iter(self.graphs))}"
                )
            graph = next(iter(self.graphs))
        if graph not in self.graphs:
            near = get_close_matches(graph, self.graphs, n=1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise TargetError(f"{self.path} has no graph {graph!r}. {hint}There is: {listed}.")
        target = parse_target(self.graphs[graph])
        if target.path is None:
            return target
        path = self.path.parent / target.path
        variable = f":{target.variable}" if target.variable else ""
        return replace(target, text=f"{path}{variable}", path=path)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, its folders are on the import path and its variables in the environment.

        What the environment has already stays as it is.
        """
        added = [str(folder) for folder in self.folders if str(folder) not in sys.path]
        sys.path[:0] = added
        new = {name: text for name, text in self.variables.items() if name not in os.environ}
        os.environ.update(new)
        try:
            yield
        finally:
            for name, text in new.items():
                if os.environ.get(name) == text:
                    del os.environ[name]
            for folder in added:
                if folder in sys.path:
                    sys.path.remove(folder)


def read_graph_config(path: Path) -> GraphConfig:
    """Read a ``langgraph.json``.

    Raises:
        TargetError: it is not there, is no JSON, or names no graphs.
    """
    if not path.is_file():
        raise TargetError(f"There is no configuration file {path}. Give -c a langgraph.json.")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as fault:
        raise TargetError(f"{path} is not valid JSON: {fault}.") from fault
    graphs = document.get("graphs") if isinstance(document, dict) else None
    if not isinstance(graphs, dict) or not graphs:
        raise TargetError(
            f'{path} names no graphs. Write {{"graphs": {{"agent": "agent.py:graph"}}}}.'
        )
    folder = path.parent.resolve()
    return GraphConfig(
        path=path,
        graphs={id: _place(path, id, value) for id, value in graphs.items()},
        folders=(folder, *_folders(folder, document.get("dependencies"))),
        variables=_variables(folder, document.get("env")),
    )


def _place(path: Path, id: str, value: Any) -> str:
    place = value.get("path") if isinstance(value, dict) else value
    if not isinstance(place, str) or not place:
        raise TargetError(
            f"Graph {id!r} in {path} is {json.dumps(value)}; it must be "
            '"path.py:variable" or "package.module:variable".'
        )
    return place


def _folders(folder: Path, dependencies: Any) -> Iterator[Path]:
    for dependency in dependencies if isinstance(dependencies, list) else ():
        if isinstance(dependency, str) and dependency.startswith("."):
            inside = (folder / dependency).resolve()
            if inside.is_dir() and inside != folder:
                yield inside


def _variables(folder: Path, env: Any) -> dict[str, str]:
    if isinstance(env, dict):
        return {name: str(value) for name, value in env.items()}
    if not isinstance(env, str):
        return {}
    file = folder / env
    if not file.is_file():
        log.warning("%s is not there; the application's variables must be set already", file)
        return {}
    return dict(filter(None, map(_variable, file.read_text(encoding="utf-8").splitlines())))


def _variable(line: str) -> tuple[str, str] | None:
    """A line ``NAME=text`` of an environment file, quotes and ``export`` taken off."""
    name, equals, text = line.strip().removeprefix("export ").partition("=")
    name, text = name.strip(), text.strip()
    if not equals or name.startswith("#") or not name:
        return None
    if text[:1] in ("'", '"') and text.endswith(text[0]) and len(text) > 1:
        return name, text[1:-1]
    return name, text.partition(" #")[0].strip()
