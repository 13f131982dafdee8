"""The executed DAGs as Mermaid text and as GraphML."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence

import networkx as nx

from .trace import TracedCall, TracedProgram

# What XML 1.0 cannot hold, and lone surrogates.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MERMAID = str.maketrans(
    {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;", "\\": "#92;"}
)


def mermaid_text(programs: Sequence[TracedProgram]) -> str:
    """A Mermaid flowchart of what was executed, a subgraph for each program.

    Critical paths are thick, barrier edges dotted, tools have round ends. Ids of nodes are plain
    numbers: ids of calls may hold what Mermaid gives a meaning.
    """
    lines = ["flowchart LR"]
    critical_links: list[int] = []
    links = 0
    for number, program in enumerate(programs, start=1):
        ids = {call.id: f"p{number}c{call.number}" for call in program.calls}
        path = set(zip(program.critical_path, program.critical_path[1:], strict=False))
        lines.append(f'  subgraph p{number}["{_label(program.id)}"]')
        lines += [f"    {ids[call.id]}{_node(call)}" for call in program.calls]
        for call in program.calls:
            for parent in call.parents:
                if parent.id not in ids:
                    continue
                arrow = "-.->" if parent.kind == "barrier" else "-->"
                if (parent.id, call.id) in path:
                    arrow = "==>"
                    critical_links.append(links)
                lines.append(f"    {ids[parent.id]} {arrow} {ids[call.id]}")
                links += 1
        lines.append("  end")
        on_path = [ids[id] for id in program.critical_path if id in ids]
        if on_path:
            lines.append(f"  class {','.join(on_path)} critical")
    lines.append("  classDef critical stroke:#c4287a,stroke-width:3px")
    if critical_links:
        lines.append(f"  linkStyle {','.join(map(str, critical_links))} stroke:#c4287a")
    return "\n".join(lines) + "\n"


def _node(call: TracedCall) -> str:
    if call.kind == "tool":
        lasts = (call.end_s or call.start_s) - call.start_s
        return f'(["{_label(call.title)}<br/>{lasts:.2f} s"])'
    return (
        f'["{_label(call.title)}<br/>service {call.service_s:.2f} s, waited {call.wait_s:.2f} s"]'
    )


def _label(text: str) -> str:
    return " ".join(text.split()).translate(_MERMAID)


def graphml_text(programs: Sequence[TracedProgram]) -> str:
    """All programs as one directed graph in GraphML; networkx, Gephi and yEd read it.

    A node is a call with what was measured of it, an edge has its kind.
    """
    graph = nx.DiGraph()
    for program in programs:
        critical = frozenset(program.critical_path)
        for call in program.calls:
            graph.add_node(_xml(call.id), **dict(_attributes(call, call.id in critical)))
        for call in program.calls:
            for parent in call.parents:
                if _xml(parent.id) in graph:
                    graph.add_edge(_xml(parent.id), _xml(call.id), kind=parent.kind)
    out = io.BytesIO()
    nx.write_graphml_xml(graph, out)
    return out.getvalue().decode("utf-8")


def _attributes(call: TracedCall, is_critical: bool) -> Iterator[tuple[str, str | int | float]]:
    values = {
        "program": call.program,
        "number": call.number,
        "kind": call.kind,
        "title": call.title,
        "name": call.name,
        "node": call.node,
        "status": call.status,
        "error": call.error,
        "start_s": float(call.start_s),
        "end_s": None if call.end_s is None else float(call.end_s),
        "service_s": float(call.service_s),
        "wait_s": float(call.wait_s),
        "attained_s": float(call.attained_s),
        "replica": call.replica,
        "preemptions": call.preemptions,
        "prompt_tokens": call.prompt_tokens,
        "cached_tokens": call.cached_tokens,
        "output_tokens": call.output_tokens,
        "critical": is_critical,
    }
    for name, value in values.items():
        if value is not None:
            yield name, _xml(value) if isinstance(value, str) else value


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
