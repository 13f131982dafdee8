"""Fairness between tenants: whoever has had less than its share goes before those ahead of theirs.

Inside a tenant the policy decides. Between tenants it cannot: attained service is a program's, and
a tenant that opens many programs, or claims that its calls follow nothing, would always be first.
So the service of all its calls together is counted, over its share (weights: twice the share, twice
the service), as in fair queueing (Virtual Token Counter, arXiv 2401.00588).

1. A tenant is *ahead* when it has had more than the least served of those whose calls wait, by at
   least ``lead_s``. It is so until that one has caught up.
2. Waiting calls of tenants that are ahead come after all others; nobody idles for that: where no
   other call waits they get the seats.
3. Time in which a tenant asked for nothing earns it nothing: when its calls begin to wait, it has
   had at least what the least served has had, less ``lead_s``. So it goes before a tenant that has
   been at it for long, at once, and no further.

With a single tenant there is nothing to count, and nothing is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from .live_call import LiveCall
from .tickets import Ticket

Lead = Callable[[], float]


class TenantLoad:
    """A tenant's calls in the scheduler, and what it has had.

    Attributes:
        had_s: service of its calls so far over its share, seconds.
        seated, waiting: how many of its calls have a seat, and have none.
        ahead: whether its waiting calls come after those of others.
    """

    __slots__ = ("ahead", "had_s", "name", "seated", "share", "waiting")

    def __init__(self, name: str, share: float) -> None:
        self.name = name
        self.share = share
        self.had_s = 0.0
        self.seated = 0
        self.waiting = 0
        self.ahead = False


class TenantShares:
    """Counts what tenants have had, and tells who is ahead.

    Attributes:
        several: whether there is more than one tenant.
    """

    def __init__(self) -> None:
        self.several = False
        self._tenants: dict[str, TenantLoad] = {}

    @property
    def contested(self) -> bool:
        """Whether calls of several tenants wait."""
        return self.several and sum(t.waiting > 0 for t in self._tenants.values()) > 1

    def arrive(self, ticket: Ticket, lead_s: Lead) -> TenantLoad:
        """A call comes, without a seat; its tenant.

        Args:
            lead_s: says by how much a tenant may be ahead, seconds; asked where there are several.
        """
        tenant = self._tenants.get(ticket.tenant)
        if tenant is None:
            tenant = TenantLoad(ticket.tenant, ticket.share)
            least_s = self._least_s(tenant)
            tenant.had_s = 0.0 if least_s is None else least_s - lead_s()
            self._tenants[ticket.tenant] = tenant
            self.several = len(self._tenants) > 1
        tenant.share = ticket.share
        if self.several:
            self._begins_to_wait(tenant, lead_s)
        else:
            tenant.waiting += 1
        return tenant

    def seat(self, tenant: TenantLoad) -> None:
        """One of its waiting calls has got a seat."""
        tenant.waiting -= 1
        tenant.seated += 1

    def unseat(self, tenant: TenantLoad, lead_s: Lead) -> None:
        """One of its calls has lost its seat and waits again."""
        tenant.seated -= 1
        self._begins_to_wait(tenant, lead_s)

    def leave(self, tenant: TenantLoad, *, seated: bool) -> None:
        """One of its calls has ended."""
        if seated:
            tenant.seated -= 1
        else:
            tenant.waiting -= 1

    def charge(self, step_s: float) -> None:
        """A step is over: every call with a seat has had that much, seconds."""
        if self.several:
            for tenant in self._tenants.values():
                if tenant.seated:
                    tenant.had_s += step_s * tenant.seated / tenant.share

    def review(self, lead_s: float) -> list[TenantLoad]:
        """The tenants that are ahead now and were not, or the other way round (rule 1)."""
        waiting = [tenant for tenant in self._tenants.values() if tenant.waiting]
        if len(waiting) < 2:
            return []
        least_s = min(tenant.had_s for tenant in waiting)
        changed = []
        for tenant in waiting:
            over_s = tenant.had_s - least_s
            ahead = over_s > 0 if tenant.ahead else over_s >= lead_s
            if ahead != tenant.ahead:
                tenant.ahead = ahead
                changed.append(tenant)
        return changed

    def check(self, calls: Iterable[LiveCall]) -> None:
        """Assert what must hold between any two calls of the other methods, with these live."""
        counted = Counter((call.tenant.name, call.seated) for call in calls)
        for name, tenant in self._tenants.items():
            assert tenant.seated == counted[name, True], name
            assert tenant.waiting == counted[name, False], name

    def _begins_to_wait(self, tenant: TenantLoad, lead_s: Lead) -> None:
        tenant.waiting += 1
        if tenant.waiting == 1 and self.several:
            least_s = self._least_s(tenant)
            if least_s is not None:
                tenant.had_s = max(tenant.had_s, least_s - lead_s())

    def _least_s(self, but: TenantLoad) -> float | None:
        """What the least served of the others has had that wait, or else have seats, seconds."""
        others = [tenant for tenant in self._tenants.values() if tenant is not but]
        some = [tenant.had_s for tenant in others if tenant.waiting]
        return min(some or (tenant.had_s for tenant in others if tenant.seated), default=None)
