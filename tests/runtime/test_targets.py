"""A target names a script, or one program in a file or module."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autellix.errors import EngineStartError, TargetError
from autellix.runtime.targets import load_program, parse_target, run_script

GRAPH = """
    from typing import TypedDict
    from langgraph.graph import StateGraph

    class State(TypedDict):
        n: int

    def builder():
        b = StateGraph(State)
        b.add_node("one", lambda s: {"n": s["n"] + 1})
        b.set_entry_point("one")
        return b
"""
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a file of the user's into the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)

    def write(name: str, *texts: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(textwrap.dedent(text) for text in texts))
        return path

    yield write
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def complaint(target: str) -> str:
    with pytest.raises(TargetError) as raised:
        load_program(target)
    message = str(raised.value)
    assert "\n" not in message
    return message


# ── how targets are written ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "path", "module", "variable"),
    [
        ("agent.py", "agent.py", None, None),
        ("some/agent.py:graph", "some/agent.py", None, "graph"),
        ("some/agent", "some/agent", None, None),
        ("pkg.mod", None, "pkg.mod", None),
        ("pkg.mod:graph", None, "pkg.mod", "graph"),
    ],
)
def test_a_target_is_a_file_or_a_module_with_or_without_a_name(
    text: str, path: str | None, module: str | None, variable: str | None
) -> None:
    target = parse_target(text)
    assert target.path == (Path(path) if path else None)
    assert (target.module, target.variable) == (module, variable)


@pytest.mark.parametrize("text", ["", ":", "agent.py:", ":graph", "agent.py:1", "not-a-module"])
def test_anything_else_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(TargetError, match=r"FILE\.py:NAME"):
        parse_target(text)


# ── which program ────────────────────────────────────────────────────────────────────────────


def test_the_one_compiled_graph_is_taken_and_runs(write: Write) -> None:
    write("agent.py", GRAPH, "plus = builder().compile()\nalso = plus\nother = builder()")
    entry = load_program("agent.py")
    assert (entry.name, entry.kind, entry.is_async) == ("agent", "graph", True)
    assert entry.call.invoke({"n": 1}) == {"n": 2}


def test_a_graph_keeps_its_own_name(write: Write) -> None:
    write("agent.py", GRAPH, 'plus = builder().compile(name="adder")')
    assert load_program("agent.py").name == "adder"


def test_a_builder_is_compiled(write: Write) -> None:
    write("agent.py", GRAPH, "plus = builder()")
    assert load_program("agent.py").call.invoke({"n": 1}) == {"n": 2}


def test_a_named_graph_is_taken_among_several(write: Write) -> None:
    write("agent.py", GRAPH, "a = builder().compile()\nb = builder().compile()")
    assert load_program("agent.py:b").name == "b"


def test_several_graphs_are_listed(write: Write) -> None:
    write("agent.py", GRAPH, "a = builder().compile()\nb = builder().compile()")
    message = complaint("agent.py")
    assert "several graphs: a, b" in message
    assert "agent.py:a" in message


def test_a_private_graph_is_left_alone(write: Write) -> None:
    write("agent.py", GRAPH, "_part = builder().compile()\ndef main(input): return input")
    assert load_program("agent.py").kind == "function"


def test_main_is_taken_where_there_is_no_graph(write: Write) -> None:
    write("agent.py", "def main(input): return input * 2")
    entry = load_program("agent.py")
    assert (entry.name, entry.kind, entry.is_async) == ("agent", "function", False)
    assert entry.call(2) == 4


def test_an_async_main_is_known_as_such(write: Write) -> None:
    write("agent.py", "async def main(input): return input\nasync def other(input, n=1): return 1")
    assert load_program("agent.py").is_async
    assert load_program("agent.py:other").is_async


@pytest.mark.parametrize("name", ["make", "make_with_config", "make_builder"])
def test_a_named_factory_gives_its_graph(write: Write, name: str) -> None:
    factories = """
        def make(): return builder().compile()
        def make_with_config(config): return builder().compile()
        def make_builder(): return builder()
    """
    write("agent.py", GRAPH, factories)
    entry = load_program(f"agent.py:{name}")
    assert (entry.name, entry.kind) == (name, "graph")
    assert entry.call.invoke({"n": 1}) == {"n": 2}


def test_a_chain_is_accepted_when_it_is_named(write: Write) -> None:
    write(
        "agent.py",
        "from langchain_core.runnables import RunnableLambda\nchain = RunnableLambda(len)",
    )
    entry = load_program("agent.py:chain")
    assert entry.kind == "graph"
    assert entry.call.invoke("four") == 4


def test_a_module_is_found_from_the_current_folder(write: Write) -> None:
    write("pkg_of_agents/__init__.py", "")
    write("pkg_of_agents/agent.py", "from . import value\ndef main(input): return value.V")
    write("pkg_of_agents/value.py", "V = 3")
    entry = load_program("pkg_of_agents.agent:main")
    assert entry.call(None) == 3


def test_a_file_imports_its_neighbours_and_is_no_main(write: Write) -> None:
    write("some/neighbour.py", "V = 3")
    agent = "import neighbour\ndef main(input): return neighbour.V, __name__"
    write("some/agent_beside.py", agent)
    assert load_program("some/agent_beside.py").call(None) == (3, "agent_beside")


def test_a_file_never_replaces_a_module_of_the_same_name(write: Write) -> None:
    import json

    write("json.py", "def main(input): return 1")
    assert load_program("json.py").call(None) == 1
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "There is no program in agent.py. It needs a compiled LangGraph graph"),
        ("def main(): pass", "main() in agent.py cannot be called with one argument"),
        ("def main(a, b): pass", "main(a, b) in agent.py cannot be called with one argument"),
        ("def main(input): yield 1", "main() in agent.py yields"),
        ("async def main(input): yield 1", "main() in agent.py yields"),
    ],
)
def test_a_module_without_a_program_is_told_what_it_needs(
    write: Write, text: str, said: str
) -> None:
    write("agent.py", text)
    assert said in complaint("agent.py")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("grahp", "Did you mean agent.py:graph?"),
        ("number", "number in agent.py is of type int, which cannot be run"),
        ("nothing", "nothing() in agent.py returned NoneType, not a graph"),
    ],
)
def test_a_name_that_is_no_program_is_told_why(write: Write, name: str, said: str) -> None:
    text = """
        graph = builder().compile()
        number = 1
        def nothing(): pass
    """
    write("agent.py", GRAPH, text)
    assert said in complaint(f"agent.py:{name}")


# ── what cannot be imported ──────────────────────────────────────────────────────────────────


def test_a_missing_script_is_told_the_nearest(write: Write) -> None:
    write("react_agent.py", "")
    assert "Did you mean react_agent.py?" in complaint("react_agnt.py")
    assert "The scripts in this folder: react_agent.py." in complaint("zzz.py")
    Path("empty").mkdir()
    assert "There is no .py file in the folder empty." in complaint("empty/agent.py")
    assert "folder nowhere does not exist" in complaint("nowhere/agent.py")


def test_a_folder_is_no_script(write: Write) -> None:
    write("agents/one.py", "")
    assert "a folder, not a script. Name a file in it: one of one.py" in complaint("agents/")


def test_a_missing_module_is_told_the_nearest(write: Write) -> None:
    write("packaged/__init__.py", "")
    write("packaged/agent.py", "")
    assert "Did you mean packaged.agent?" in complaint("packaged.agnt")
    assert "Did you mean packaged?" in complaint("packagd.agent")
    assert "no module 'zzzz'" in complaint("zzzz")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = (\n", r"agent\.py cannot be imported at agent\.py:1: SyntaxError: '\(' was never"),
        ("\nimport no_such_thing", r"at agent\.py:2: ModuleNotFoundError.*Install what provides"),
        ("from json import nix", r"at agent\.py:1: ImportError: cannot import name 'nix'"),
        ("from . import x", r"at agent\.py:1: ImportError.*by its module name"),
        ("def f(): return 1 / 0\nf()", r"at agent\.py:1: ZeroDivisionError.*--debug"),
        ("import json\n\njson.loads('')", r"at agent\.py:3: JSONDecodeError"),
        ("raise SystemExit(3)", r"agent\.py ended itself \(exit code 3\).*__main__"),
    ],
)
def test_an_error_at_import_is_one_paragraph_with_the_users_line(
    write: Write, text: str, said: str
) -> None:
    write("agent.py", text)
    assert re.search(said, complaint("agent.py"))


def test_the_original_error_is_kept_for_the_traceback(write: Write) -> None:
    write("agent.py", "1 / 0")
    with pytest.raises(TargetError) as raised:
        load_program("agent.py")
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_errors_of_autellix_come_through_as_they_are(write: Write) -> None:
    write(
        "agent.py",
        "from autellix.errors import EngineStartError\nraise EngineStartError('too little memory')",
    )
    with pytest.raises(EngineStartError, match="too little memory"):
        load_program("agent.py")


# ── scripts ──────────────────────────────────────────────────────────────────────────────────


def test_a_script_runs_as_python_runs_it(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    write("some/beside.py", "V = 3")
    path = write(
        "some/script.py",
        """
        import sys, beside
        if __name__ == "__main__":
            print(sys.argv[1:], sys.path[0], beside.V, __file__ == sys.argv[0])
        """,
    )
    argv, paths = list(sys.argv), list(sys.path)
    run_script(Path("some/script.py"), ["-x", "1"])
    assert capsys.readouterr().out == f"['-x', '1'] {path.parent} 3 True\n"
    assert (sys.argv, sys.path) == (argv, paths)


def test_what_a_script_raises_comes_out_as_it_is(write: Write) -> None:
    write("ends.py", "raise SystemExit(4)")
    write("fails.py", "1 / 0")
    with pytest.raises(SystemExit) as ended:
        run_script("ends.py")
    assert ended.value.code == 4
    with pytest.raises(ZeroDivisionError):
        run_script("fails.py")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = (\n", r"at script\.py:1: SyntaxError"),
        ("import no_such_thing", r"at script\.py:1: ModuleNotFoundError"),
    ],
)
def test_a_script_that_is_no_valid_python_is_told_where(write: Write, text: str, said: str) -> None:
    write("script.py", text)
    with pytest.raises(TargetError, match=said):
        run_script("script.py")


def test_a_missing_script_is_not_run(write: Write) -> None:
    write("script.py", "")
    with pytest.raises(TargetError, match=r"Did you mean script\.py\?"):
        run_script("scripts.py")
