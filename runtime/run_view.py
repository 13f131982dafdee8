"""Which view a run has: the live one, a progress line, or none."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console

from ..tracing.live_view import LiveView
from ..tracing.view import ProgressView, RunSource, is_drawable
from .settings import Settings


def run_view(
    source: RunSource, settings: Settings, console: Console
) -> AbstractContextManager[object]:
    """The view for a run, shown as long as the block lasts.

    Unless the settings say, it is the live one on a terminal that people watch: not in a pipe and
    not where continuous integration says that it runs.
    """
    if settings.quiet:
        return nullcontext()
    live = settings.live
    if live is None:
        live = is_drawable(console) and not os.environ.get("CI")
    kind = LiveView if live else ProgressView
    return kind(source, console=console, refresh_s=settings.refresh)
