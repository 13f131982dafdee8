"""Whether a library has the private names that an adapter uses; every room may use this.

An adapter lists them once and asks when it is imported, so that another version of the library is
refused in words, not met in the middle of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Names = Iterable[tuple[type, Sequence[str]]]


def missing_names(offered: Names, held: Names) -> list[str]:
    """Those that are not there, as "Class.name".

    Args:
        offered: classes and what they, or classes they inherit from, define.
        held: classes and what their instances are given by ``__init__`` of that very class.
    """
    missing = [
        f"{owner.__name__}.{name}"
        for owner, names in offered
        for name in names
        if name not in dir(owner)
    ]
    for owner, names in held:
        set_there = owner.__init__.__code__.co_names
        missing += [f"{owner.__name__}.{name}" for name in names if name not in set_there]
    return missing
