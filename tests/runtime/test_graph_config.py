"""``langgraph.json`` names graphs; its folders and variables are there while the run lasts."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from autellix.errors import TargetError
from autellix.runtime.graph_config import GraphConfig, read_graph_config


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The application's folder, which is not the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app").mkdir()
    return tmp_path / "app"


def read(folder: Path, **document: Any) -> GraphConfig:
    (folder / "langgraph.json").write_text(json.dumps(document))
    return read_graph_config(Path("app/langgraph.json"))


def complaint(folder: Path, graph: str | None = None, **document: Any) -> str:
    with pytest.raises(TargetError) as raised:
        read(folder, **document).target(graph)
    assert "\n" not in str(raised.value)
    return str(raised.value)


TWO = {"chat": "./chat.py:graph", "search": "pkg.search:make"}


def test_a_path_is_relative_to_the_file(folder: Path) -> None:
    target = read(folder, graphs=TWO).target("chat")
    assert (target.path, target.variable) == (Path("app/chat.py"), "graph")
    assert target.text == "app/chat.py:graph"


def test_a_module_is_left_as_it_is(folder: Path) -> None:
    target = read(folder, graphs=TWO).target("search")
    assert (target.module, target.variable) == ("pkg.search", "make")


def test_the_only_graph_needs_no_name(folder: Path) -> None:
    assert read(folder, graphs={"a": {"path": "a.py", "description": "x"}}).target(None).path


def test_other_keys_are_tolerated(folder: Path) -> None:
    config = read(
        folder,
        graphs={"a": "a.py:g"},
        dependencies=[".", "langchain_openai", "./lib"],
        python_version="3.12",
        store={"index": {}},
        pip_config_file="pip.conf",
    )
    assert config.target("a").variable == "g"


@pytest.mark.parametrize(
    ("document", "graph", "said"),
    [
        ({"graphs": TWO}, None, "holds several graphs: chat, search. Say which one: -c"),
        ({"graphs": TWO}, "serch", "Did you mean search? There is: chat, search."),
        ({"graphs": {}}, None, "names no graphs"),
        ({"nodes": 1}, None, "names no graphs"),
        ({"graphs": {"a": 1}}, None, "Graph 'a' in app/langgraph.json is 1; it must be"),
    ],
)
def test_what_cannot_be_is_told_why(
    folder: Path, document: dict[str, Any], graph: str | None, said: str
) -> None:
    assert said in complaint(folder, graph, **document)


def test_a_file_that_is_missing_or_no_json_is_told_so(folder: Path) -> None:
    with pytest.raises(TargetError, match="There is no configuration file"):
        read_graph_config(Path("app/langgraph.json"))
    (folder / "langgraph.json").write_text("{graphs")
    with pytest.raises(TargetError, match="is not valid JSON"):
        read_graph_config(Path("app/langgraph.json"))


def test_local_dependencies_are_on_the_import_path_while_it_is_applied(folder: Path) -> None:
    (folder / "lib").mkdir()
    before = list(sys.path)
    with read(folder, graphs=TWO, dependencies=[".", "./lib", "requests"]).applied():
        assert sys.path[:2] == [str(folder), str(folder / "lib")]
    assert sys.path == before


def test_variables_come_from_the_file_and_the_environment_wins(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "# keys\nexport ONE='1 # one'\nTWO=2 # two\n\nTAKEN=theirs\nempty\nURL=http://x/?a=b\n"
    (folder / ".env").write_text(text)
    monkeypatch.setenv("TAKEN", "mine")
    for name in ("ONE", "TWO", "URL"):
        monkeypatch.delenv(name, raising=False)
    with read(folder, graphs=TWO, env=".env").applied():
        found = {name: os.environ[name] for name in ("ONE", "TWO", "TAKEN", "URL")}
    assert found == {"ONE": "1 # one", "TWO": "2", "TAKEN": "mine", "URL": "http://x/?a=b"}
    assert "ONE" not in os.environ
    assert os.environ["TAKEN"] == "mine"


def test_variables_can_be_in_the_file_itself(folder: Path) -> None:
    assert read(folder, graphs=TWO, env={"N": 3}).variables == {"N": "3"}


def test_a_missing_variables_file_is_warned_of(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "autellix"):
        assert read(folder, graphs=TWO, env=".env").variables == {}
    assert ".env is not there" in caplog.text
