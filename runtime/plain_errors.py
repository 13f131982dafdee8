"""Errors on the command line: one paragraph on stderr and an exit code, no traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from autellix.errors import AutellixError, SettingsError, UsageError

from .interrupts import INTERRUPTED

_TYPERS_OWN = (typer.Exit, typer.Abort)
# What typer raises where an option cannot be parsed, whichever click it brings.
_OF_THE_PARSER = next(
    kind
    for kind in typer.BadParameter.__mro__
    if issubclass(kind, Exception) and kind.__name__ == "ClickException"
)


class PlainGroup(TyperGroup):
    """Commands whose options are refused in the same words and form as all else."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run the command line; exits, as typer's own does."""
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **extra)
        try:
            code = super().main(*args, standalone_mode=False, **extra)
        except _OF_THE_PARSER as error:
            text = error.format_message()  # pyright: ignore[reportAttributeAccessIssue]
            if text:
                _say(text)
            sys.exit(2)
        except typer.Abort:
            sys.exit(INTERRUPTED)
        sys.exit(code if isinstance(code, int) else 0)


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
        _say(text)
        raise typer.Exit(2 if isinstance(error, usage) else 1) from None


def _say(text: str) -> None:
    Console(stderr=True).print(
        f"[bold red]error:[/bold red] {escape(text)}", soft_wrap=False, highlight=False
    )
