"""Errors on the command line: one paragraph on stderr and an exit code, no traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape

from autellix.errors import AutellixError, SettingsError, UsageError

from .interrupts import INTERRUPTED

_TYPERS_OWN = (typer.Exit, typer.Abort)


@contextmanager
def plain_errors(
    debug: bool, *, usage: tuple[type[Exception], ...] = (UsageError, SettingsError)
) -> Iterator[None]:
    """Turn errors into one paragraph on stderr and an exit code.

    Args:
        debug: lets them through, with their traceback.
        usage: kinds of error that mean the command was given something wrong: exit code 2, not 1.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except _TYPERS_OWN:
        raise
    except Exception as error:
        if debug:
            raise
        text = str(error)
        if not isinstance(error, AutellixError):
            text = (
                f"{type(error).__name__}: {text}. Nobody expected this; --debug shows where it "
                "comes from."
            )
        Console(stderr=True).print(
            f"[bold red]error:[/bold red] {escape(text)}", soft_wrap=False, highlight=False
        )
        raise typer.Exit(2 if isinstance(error, usage) else 1) from None
