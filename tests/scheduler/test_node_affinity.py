"""A program that cannot go to its replica goes to another one of its machine."""

from __future__ import annotations

import math

import pytest

from autellix.scheduler.balancers import LeastUsed, ProgramLocality
from autellix.scheduler.node_affinity import NodeAffinity
from autellix.scheduler.tickets import Ticket

GONE = math.inf
LONG = 5000
NODES = ["a", "a", "b", "b"]


def place(balancer: NodeAffinity, loads: list[float], program: str = "p") -> int:
    return balancer.place(Ticket(program=program, call="c", prompt_tokens=LONG), loads)


def affine(nodes: list[str] | None = None) -> NodeAffinity:
    return NodeAffinity(ProgramLocality(), lambda: NODES if nodes is None else nodes)


def test_while_its_replica_takes_calls_a_program_stays_there() -> None:
    balancer = affine()
    assert place(balancer, [3, 3, 0, 3]) == 2
    assert place(balancer, [0, 0, 9, 0]) == 2


def test_without_its_replica_it_goes_to_another_of_its_machine() -> None:
    balancer = affine()
    assert place(balancer, [3, 3, 0, 3]) == 2
    assert place(balancer, [0, 0, GONE, 3]) == 3
    assert place(balancer, [0, 0, 0, 3]) == 3, "its prompt is there now"


def test_a_machine_that_has_much_more_to_do_is_left() -> None:
    balancer = affine()
    assert place(balancer, [3, 3, 0, 3]) == 2
    assert place(balancer, [1, 0, GONE, 5]) == 1


@pytest.mark.parametrize("there", [GONE, 0.0])
def test_a_machine_that_is_gone_is_left(there: float) -> None:
    nodes = list(NODES)
    balancer = affine(nodes)
    assert place(balancer, [3, 3, 0, 3]) == 2
    # Its replicas are placed again, on the first machine.
    nodes[2] = nodes[3] = "a"
    assert place(balancer, [1, 0, there, GONE]) in (1, 2)


def test_programs_that_have_no_place_yet_go_where_the_other_balancer_says() -> None:
    balancer = NodeAffinity(LeastUsed(), lambda: NODES)
    assert [place(balancer, [2, 1, 0, 1], f"p{i}") for i in range(2)] == [2, 2]


def test_where_machines_are_not_known_yet_it_changes_nothing() -> None:
    balancer = affine([])
    assert place(balancer, [3, 0]) == 1
    assert place(balancer, [0, GONE]) == 0


def test_a_program_that_has_ended_leaves_nothing_behind() -> None:
    balancer = affine()
    place(balancer, [3, 3, 0, 3])
    balancer.program_ended("p")
    assert place(balancer, [0, 0, GONE, 3]) == 0
    balancer.program_ended("p")
    assert balancer._last == {}
