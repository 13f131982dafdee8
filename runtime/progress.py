"""Shows a job of a few steps on standard error: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Steps:
    """The steps of one job, as they begin; a context manager.

    Args:
        title: the job, as people would say it.
        shown: False shows nothing.
        console: where to show it; standard error if None.
    """

    def __init__(self, title: str, *, shown: bool = True, console: Console | None = None) -> None:
        self._title = title
        self._shown = shown
        self._console = console or Console(stderr=True)
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        if self._shown and self._console.is_terminal:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=12),
                TextColumn("{task.fields[what]}"),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task(self._title, total=None, what="")
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, step: int, steps: int, what: str) -> None:
        """Step number ``step`` (from 1) of ``steps`` begins."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step - 1, total=steps, what=what)
        else:
            self._line(f"{what} ({step} of {steps})")

    def note(self, what: str) -> None:
        """Say something about the job that is no step."""
        if self._bar is not None:
            self._bar.update(self._task, what=what)
        else:
            self._line(what)

    def _line(self, what: str) -> None:
        if self._shown:
            self._console.print(f"{self._title}: {what}", soft_wrap=True, markup=False)
