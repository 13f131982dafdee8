"""What a tenant may see of a run: its own programs, and how busy the engine is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ..tracing.snapshot import LIVE, ProgramGraph, RunSnapshot
from .run_watch import RunWatch
from .tenants import Tenant


class TenantWatch:
    """A run without the programs of other tenants. Satisfies ``Watch``.

    Args:
        watch: the whole run.
        tenant: one who is no operator.
    """

    def __init__(self, watch: RunWatch, tenant: Tenant) -> None:
        self._watch = watch
        self._prefix = tenant.program_of("")

    async def asnapshot(self) -> RunSnapshot:
        """The run at this moment, its totals over the tenant's programs that are still known."""
        whole = await self._watch.asnapshot()
        own = tuple(row for row in whole.programs if row.id.startswith(self._prefix))
        states = Counter("running" if row.state in LIVE else row.state for row in own)
        tokens = sum(row.tokens for row in own)
        return replace(
            whole,
            programs=own,
            calls_done=sum(row.calls_done for row in own),
            tokens=tokens,
            tokens_per_s=tokens / whole.elapsed_s if whole.elapsed_s > 0 else 0.0,
            service_s=sum(row.attained_s for row in own),
            wait_s=sum(row.wait_s for row in own),
            programs_running=states["running"],
            programs_done=states["done"],
            programs_failed=states["failed"],
            programs_total=len(own),
        )

    def graph(self, program: str) -> ProgramGraph | None:
        """The DAG of a program of the tenant's; None of any other."""
        return self._watch.graph(program) if program.startswith(self._prefix) else None
