"""Where the calls of a DAG stand when it is drawn from top to bottom.

1. A layer holds the calls of one superstep with the same number of calls of that superstep before
   them: supersteps lie below each other, and calls that may run side by side stand side by side.
2. An edge over several layers holds a place in each layer that it passes; edges of one parent share
   it.
3. A call stands in the column of its leftmost parent, or in the next free one to the right: chains
   go straight down, and a growing DAG does not move what is drawn already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .snapshot import CallNode


@dataclass(slots=True, eq=False)
class Slot:
    """A place in a layer: a call, or an edge on its way through (``node`` is None).

    Attributes:
        node: index of the call.
        owner: index of the call, or of the call whose edge passes.
        parents: slots of the layer above that lead here, and whether along the critical path.
        column: from 0.
    """

    node: int | None
    owner: int
    parents: list[tuple[Slot, bool]] = field(default_factory=list)
    column: int = 0


@dataclass(frozen=True, slots=True)
class Layer:
    """Slots from left to right.

    Attributes:
        superstep: from 1.
        is_first: whether the superstep begins here.
    """

    superstep: int
    is_first: bool
    slots: list[Slot]


def layers_of(nodes: Sequence[CallNode]) -> list[Layer]:
    """The layers of a DAG, first one first; ``nodes`` in a topological order."""
    places = _places(nodes)
    order = {place: number for number, place in enumerate(sorted(set(places)))}
    slots: list[list[Slot]] = [[] for _ in order]
    slot_of: list[dict[int, Slot]] = [{} for _ in nodes]  # by layer, from the node's own downwards
    for index, node in enumerate(nodes):
        layer = order[places[index]]
        own = slot_of[index][layer] = Slot(index, index)
        slots[layer].append(own)
        for parent, _ in node.parents:
            critical = node.is_critical and nodes[parent].is_critical
            own.parents.append((_reach(parent, layer - 1, slot_of, slots, critical), critical))
    layers = []
    for (superstep, depth), number in order.items():
        _settle(slots[number])
        layers.append(Layer(superstep, depth == 0 or not layers, slots[number]))
    return layers


def _places(nodes: Sequence[CallNode]) -> list[tuple[int, int]]:
    """Superstep and depth in it, by node."""
    places: list[tuple[int, int]] = []
    for node in nodes:
        inside = [places[p][1] + 1 for p, _ in node.parents if places[p][0] == node.superstep]
        places.append((node.superstep, max(inside, default=0)))
    return places


def _reach(
    parent: int,
    layer: int,
    slot_of: list[dict[int, Slot]],
    slots: list[list[Slot]],
    critical: bool,
) -> Slot:
    """The parent's slot in ``layer``: itself, or the end of its edge so far, made longer."""
    known = slot_of[parent]
    last = max(known)
    for at in range(min(known) + 1, min(layer, last) + 1):
        if critical:
            above, _ = known[at].parents[0]
            known[at].parents[0] = (above, True)
    for at in range(last + 1, layer + 1):
        passing = known[at] = Slot(None, parent, [(known[at - 1], critical)])
        slots[at].append(passing)
    return known[layer]


def _settle(slots: list[Slot]) -> None:
    """Give each slot its column; what passes through goes before what begins at the same place."""

    def wanted(slot: Slot) -> int:
        return min((above.column for above, _ in slot.parents), default=0)

    slots.sort(key=lambda slot: (wanted(slot), slot.node is not None, slot.owner))
    free = 0
    for slot in slots:
        slot.column = max(free, wanted(slot))
        free = slot.column + 1
