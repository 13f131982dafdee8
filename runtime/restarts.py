"""When a lost replica is started again, and when its place is given up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """The rule.

    Attributes:
        first_delay_s: before the second try in a row; the first comes at once. Then it doubles.
        longest_delay_s: the most.
        tries: in a row that did not start, or were lost soon and without an answer to any call,
            before the place is given up; more than one call may take with it.
        settled_s: after so much time of service, seconds, a loss is the first one again.
        stall_s: calls are under way and the replica has been silent: after so many seconds it is
            asked whether it is there, and killed when it has not answered in as many.
    """

    first_delay_s: float = 1.0
    longest_delay_s: float = 60.0
    tries: int = 6
    settled_s: float = 60.0
    stall_s: float = 60.0


class Losses:
    """How the replicas of one place have fared.

    Args:
        rule: what follows from it.

    Attributes:
        in_vain: tries in a row that did not start, or were lost soon and answered no call.
    """

    def __init__(self, rule: Restarts) -> None:
        self._rule = rule
        self._soon = 0
        self.in_vain = 0

    def lost(self, *, after_s: float, answered: bool) -> None:
        """A replica was lost.

        Args:
            after_s: time for which it had served, seconds.
            answered: whether it had answered any call.
        """
        settled = after_s >= self._rule.settled_s
        self._soon = 1 if settled else self._soon + 1
        self.in_vain = 0 if settled or answered else self.in_vain + 1

    def not_started(self, *, for_now: bool = False) -> None:
        """One did not come up.

        Args:
            for_now: since file descriptors, memory or disk were short, which may pass.
        """
        self._soon += 1
        self.in_vain += not for_now

    @property
    def hopeless(self) -> bool:
        """Whether the place is to be given up."""
        return self.in_vain >= self._rule.tries

    @property
    def delay_s(self) -> float:
        """How long to wait before the next try, seconds."""
        if self._soon <= 1:
            return 0.0
        exponent = min(self._soon - 2, 64)
        return min(self._rule.first_delay_s * 2**exponent, self._rule.longest_delay_s)
