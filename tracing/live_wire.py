"""What the views show as plain JSON types, for a view in another process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from .snapshot import CallNode, ProgramGraph, ProgramRow, ReplicaRow, RunSnapshot

_TUPLES = ("running_by_level", "waiting_by_level")
_PARTS = ("programs", "replicas")


def _plain(value: Any) -> dict[str, Any]:
    """The fields of a flat dataclass; ``dataclasses.asdict`` would copy each of them deeply."""
    return {name: getattr(value, name) for name in value.__slots__}


def run_to_wire(snapshot: RunSnapshot) -> dict[str, Any]:
    """The run's facts and totals, without its programs and replicas."""
    wire = _plain(snapshot)
    for part in _PARTS:
        del wire[part]
    return wire


def queues_to_wire(snapshot: RunSnapshot) -> list[dict[str, Any]]:
    """The replicas."""
    return [_plain(replica) for replica in snapshot.replicas]


def program_to_wire(row: ProgramRow) -> dict[str, Any]:
    """One program."""
    return _plain(row)


def graph_to_wire(graph: ProgramGraph) -> dict[str, Any]:
    """The DAG of a program."""
    return {**_plain(graph), "nodes": [_plain(node) for node in graph.nodes]}


def snapshot_from_wire(
    run: Mapping[str, Any], queues: list[dict[str, Any]], programs: list[dict[str, Any]]
) -> RunSnapshot:
    """Inverse of the first three; names that this version does not know are left out.

    Raises:
        KeyError, TypeError, ValueError: they are no such parts.
    """
    return RunSnapshot(
        **_known(RunSnapshot, run),
        programs=tuple(ProgramRow(**_known(ProgramRow, row)) for row in programs),
        replicas=tuple(_replica(row) for row in queues),
    )


def graph_from_wire(wire: Mapping[str, Any]) -> ProgramGraph:
    """Inverse of :func:`graph_to_wire`.

    Raises:
        KeyError, TypeError, ValueError: it is no DAG.
    """
    values = _known(ProgramGraph, wire)
    values["nodes"] = tuple(_node(node) for node in wire["nodes"])
    return ProgramGraph(**values)


def _replica(wire: Mapping[str, Any]) -> ReplicaRow:
    values = _known(ReplicaRow, wire)
    for name in _TUPLES:
        values[name] = tuple(values.get(name, ()))
    return ReplicaRow(**values)


def _node(wire: Mapping[str, Any]) -> CallNode:
    values = _known(CallNode, wire)
    values["parents"] = tuple((int(place), kind) for place, kind in wire["parents"])
    return CallNode(**values)


def _known(kind: Any, wire: Mapping[str, Any]) -> dict[str, Any]:
    return {f.name: wire[f.name] for f in fields(kind) if f.name in wire}
