"""The metrics page of a server, in Prometheus' form: vLLM's own metrics, then ours.

Ours begin with ``autellix_``. Their labels are replicas, levels, states and tenants' names, never
programs or calls, so there is a bound to how many series there are:

    programs{state}, sessions, calls_running{tenant}         now
    calls_total{tenant}, tokens_total{tenant,kind}           since the start
    call_wait_seconds, call_service_seconds{tenant}          histograms over calls
    call_preemptions_total, admission_holds_total, affinity_hits_total{tenant}
    replica_up, _running, _waiting, _seats, _kv_usage, _kv_host_usage, _step_seconds{replica}
    replica_level_calls{replica,level,state}                 occupancy of the levels
    replica_preemptions_total, _promotions_total, _demotions_total, _swaps_total{replica}
"""

from __future__ import annotations

import threading
from collections import Counter as Counted
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric

from ..scheduler.tickets import Receipt
from ..tracing.snapshot import LIVE, ReplicaRow, RunSnapshot
from .client_sessions import ClientSessions
from .run_watch import RunWatch
from .session import Session
from .tenants import EVERYBODY, Tenant

_WAITS_S = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_TENANT = ("tenant",)
_GAUGES: dict[str, tuple[str, Callable[[ReplicaRow], float | None]]] = {
    "running": ("Calls with a seat.", lambda row: row.running),
    "waiting": ("Calls without a seat.", lambda row: row.waiting),
    "seats": ("Calls that can run at once.", lambda row: row.seats),
    "kv_usage": ("Share of the device KV cache in use, 0 to 1.", lambda row: row.kv_usage),
    "kv_host_usage": ("Share of the host KV tier in use.", lambda row: row.kv_host_usage),
    "step_seconds": ("Typical duration of an engine step.", lambda row: row.step_s),
}
_COUNTERS: dict[str, tuple[str, Callable[[ReplicaRow], float]]] = {
    "preemptions": ("Calls that lost their seat.", lambda row: row.preemptions),
    "promotions": ("Calls moved to the best level for having waited.", lambda row: row.promotions),
    "demotions": ("Calls moved down for having used their quantum.", lambda row: row.demotions),
    "swaps": ("Moves of KV between device and host.", lambda row: row.swaps),
}


class ServeMetrics:
    """Counts what happens in a server and makes its page.

    Args:
        run: the server's run; its receipts are counted from now on.
        sessions: the directory of sessions.
        watch: tells the state of the replicas; asked once for each page.
        tenants: who there is.
    """

    def __init__(
        self,
        run: Session,
        sessions: ClientSessions,
        watch: RunWatch,
        tenants: Sequence[Tenant] = (EVERYBODY,),
    ) -> None:
        self._tenants = [tenant.name for tenant in tenants]
        self._run = run
        self._sessions = sessions
        self._watch = watch
        self._registry = CollectorRegistry()
        self._calls = _CallCounts(self._registry)
        self._homes: dict[str, int] = {}
        self._lock = threading.Lock()
        self._registry.register(_Now(self._now))
        run.host.chat.send_receipts_to(self._receipt)

    def close(self) -> None:
        """Count no more."""
        if self._run.is_started:
            self._run.host.chat.send_receipts_to(self._run.programs.receipt)

    def page(self) -> tuple[bytes, str]:
        """The page and its content type; blocks for the engine's state."""
        return generate_latest(REGISTRY) + generate_latest(self._registry), CONTENT_TYPE_LATEST

    def _receipt(self, receipt: Receipt) -> None:
        self._run.programs.receipt(receipt)
        with self._lock:
            last = self._homes.get(receipt.program)
            self._homes[receipt.program] = receipt.replica
            if len(self._homes) > 2 * len(self._sessions) + 1_000:
                open_now = {session.program for session in self._sessions.all()}
                self._homes = {p: r for p, r in self._homes.items() if p in open_now}
        tenant = receipt.program.rpartition("/")[0]
        self._calls.of(tenant).add(receipt, at_home=last == receipt.replica)

    # ── the state of this moment ─────────────────────────────────────────────────────────────

    def _now(self) -> Iterator[Metric]:
        snapshot = self._watch.snapshot()
        yield _programs(snapshot)
        yield GaugeMetricFamily("autellix_sessions", "Open sessions.", len(self._sessions))
        running = GaugeMetricFamily("autellix_calls_running", "Calls under way.", labels=_TENANT)
        open_calls = self._sessions.open_calls_by_tenant()
        for tenant in self._tenants:
            running.add_metric([tenant], open_calls.get(tenant, 0))
        yield running
        yield from _of_replicas(snapshot.replicas)


class _CallCounts:
    """What is counted of calls, by tenant."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"autellix_{name}", text, (*_TENANT, *labels), registry=registry)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"autellix_{name}", text, _TENANT, buckets=_WAITS_S, registry=registry)

        self.tokens = counter("tokens", "Tokens of calls.", "kind")
        self.calls = counter("calls", "Calls that have a receipt.")
        self.preempted = counter("call_preemptions", "Seats that calls lost.")
        self.held = counter("admission_holds", "Calls that admission control held.")
        self.home = counter("affinity_hits", "Calls served where their program's last one was.")
        self.wait = histogram("call_wait_seconds", "Time of calls in the engine's queues.")
        self.service = histogram("call_service_seconds", "Service time of calls.")
        self._of: dict[str, _TenantCounts] = {}

    def of(self, tenant: str) -> _TenantCounts:
        """A tenant's."""
        found = self._of.get(tenant)
        return found or self._of.setdefault(tenant, _TenantCounts(self, tenant))


class _TenantCounts:
    """One tenant's: the series are looked up once, not for every call."""

    def __init__(self, all: _CallCounts, tenant: str) -> None:
        self._prompt = all.tokens.labels(tenant, "prompt")
        self._cached = all.tokens.labels(tenant, "cached")
        self._output = all.tokens.labels(tenant, "output")
        self._calls = all.calls.labels(tenant)
        self._preempted = all.preempted.labels(tenant)
        self._held = all.held.labels(tenant)
        self._home = all.home.labels(tenant)
        self._wait = all.wait.labels(tenant)
        self._service = all.service.labels(tenant)

    def add(self, receipt: Receipt, *, at_home: bool) -> None:
        """One more call, and whether its program's last one was served by the same replica."""
        self._calls.inc()
        self._prompt.inc(receipt.prompt_tokens)
        self._cached.inc(receipt.cached_tokens)
        self._output.inc(receipt.output_tokens)
        self._wait.observe(receipt.wait_s)
        self._service.observe(receipt.service_s)
        if receipt.preemptions:
            self._preempted.inc(receipt.preemptions)
        if any(decision.kind == "admission" for decision in receipt.decisions):
            self._held.inc()
        if at_home:
            self._home.inc()


class _Now:
    """A collector of metrics that are asked for when the page is made."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self.collect = collect

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering it asks nobody."""
        return ()


def _programs(snapshot: RunSnapshot) -> Metric:
    family = GaugeMetricFamily("autellix_programs", "Programs by state.", labels=("state",))
    states = Counted(row.state for row in snapshot.programs)
    for state in LIVE:
        family.add_metric([state], states[state])
    return family


def _of_replicas(rows: Iterable[ReplicaRow]) -> Iterator[Metric]:
    rows = list(rows)
    label = ("replica",)
    for name, (text, value_of) in _GAUGES.items():
        gauge = GaugeMetricFamily(f"autellix_replica_{name}", text, labels=label)
        for row in rows:
            value = value_of(row)
            if value is not None:
                gauge.add_metric([str(row.index)], value)
        yield gauge
    for name, (text, count_of) in _COUNTERS.items():
        total = CounterMetricFamily(f"autellix_replica_{name}", text, labels=label)
        for row in rows:
            total.add_metric([str(row.index)], count_of(row))
        yield total
    yield _levels(rows)
    up = GaugeMetricFamily("autellix_replica_up", "Whether the replica answers.", labels=label)
    for row in rows:
        up.add_metric([str(row.index)], float(row.seats > 0))
    yield up


def _levels(rows: Iterable[ReplicaRow]) -> Metric:
    text = "Calls of a level, from 1, with and without a seat."
    labels: Any = ("replica", "level", "state")
    family = GaugeMetricFamily("autellix_replica_level_calls", text, labels=labels)
    for row in rows:
        for state, counts in (
            ("running", row.running_by_level),
            ("waiting", row.waiting_by_level),
        ):
            for level, count in enumerate(counts, start=1):
                family.add_metric([str(row.index), str(level), state], count)
    return family
