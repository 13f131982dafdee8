"""The waiting queue: cheapest rank first, and a rank may change while its owner waits.

Has the methods of vLLM's request queue. There a changed priority means building the heap anew, and
removing one request does too. Here both leave a dead entry behind that is skipped when it comes up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import Generic, Protocol, TypeVar


class Ranked(Protocol):
    """What can wait: hashable by identity, with a rank that no other has."""

    priority: int


T = TypeVar("T", bound=Ranked)
_LEAST_SWEEP = 64


class RankQueue(Generic[T]):
    """Requests by rank; call :meth:`moved` when the rank of one that waits has changed."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, T]] = []
        self._waiting: set[T] = set()

    def add_request(self, request: T) -> None:
        """Add one at the place its rank gives it."""
        self._waiting.add(request)
        self.moved(request)

    def moved(self, request: T) -> None:
        """The rank of a waiting one is another now."""
        heappush(self._heap, (request.priority, request))
        if len(self._heap) > _LEAST_SWEEP + 2 * len(self._waiting):
            self._heap = [(request.priority, request) for request in self._waiting]
            heapify(self._heap)

    def peek_request(self) -> T:
        """The first, which stays.

        Raises:
            IndexError: nobody waits.
        """
        heap, waiting = self._heap, self._waiting
        while heap:
            rank, request = heap[0]
            if rank == request.priority and request in waiting:
                return request
            heappop(heap)
        raise IndexError("the queue is empty; look at its length first")

    def pop_request(self) -> T:
        """The first, which is taken out."""
        request = self.peek_request()
        heappop(self._heap)
        self._waiting.remove(request)
        return request

    def prepend_request(self, request: T) -> None:
        """The same as :meth:`add_request`: the rank alone gives the place."""
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[T]) -> None:
        """Add several."""
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: T) -> None:
        """Take out one that waits."""
        self._waiting.remove(request)

    def remove_requests(self, requests: Iterable[T]) -> None:
        """Take out those of them that wait."""
        self._waiting.difference_update(requests)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        return iter(sorted(self._waiting, key=attrgetter("priority")))
