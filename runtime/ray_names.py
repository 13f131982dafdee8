"""Every Ray name the runtime uses, imported and checked in one place.

Importing this module imports Ray, so only what has to do with a cluster does, late.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from autellix.errors import VersionError

log = logging.getLogger("autellix")

TESTED = "2.60"
_OLDEST = (2, 50)
_NEWEST_MAJOR = 2

INSTALL = "pip install 'autellix[ray]'"


def installed_version() -> str | None:
    """Version of the installed Ray, None where there is none."""
    try:
        return version("ray")
    except PackageNotFoundError:
        return None


if (_installed := installed_version()) is None:
    raise VersionError(f"--engine ray needs Ray, which is not installed. Install it: {INSTALL}")
_numbers = tuple(int(part) for part in _installed.split(".")[:2])
if _numbers < _OLDEST or _numbers[0] > _NEWEST_MAJOR:
    raise VersionError(
        f"Ray {_installed} cannot be used: this release was tested with Ray {TESTED} and takes "
        f"{'.'.join(map(str, _OLDEST))} or newer of Ray {_NEWEST_MAJOR}. Install it: {INSTALL}"
    )

# Ray tells its makers how it is used, unless told not to before it is imported.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Its handler of SIGTERM would take the place of ours, and end in an abort after it.
os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")

try:
    import ray
    from ray._private import worker as _worker
    from ray._private.state import available_resources_per_node
    from ray.exceptions import AuthenticationError, RayError
    from ray.util import placement_group, remove_placement_group
    from ray.util.placement_group import PlacementGroup
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    _worker.print_to_stdstream  # noqa: B018
except (ImportError, AttributeError) as cause:
    raise VersionError(
        f"Ray {_installed} cannot be used: {cause}. This release was tested with Ray {TESTED}. "
        f"Install it: {INSTALL}"
    ) from cause


def quiet_ray(*, debug: bool) -> None:
    """Ray's own messages are for ``--debug``, and never among a program's output.

    What happens to machines it prints to standard output, whatever it is told.
    """
    logging.getLogger("ray").setLevel(logging.INFO if debug else logging.ERROR)
    if not debug:
        _worker.print_to_stdstream = _to_log


def _to_log(data: Mapping[str, Any], ignore_prefix: bool = False) -> None:
    for line in data["lines"]:
        log.debug("Ray: %s", line)


__all__ = [
    "TESTED",
    "AuthenticationError",
    "PlacementGroup",
    "PlacementGroupSchedulingStrategy",
    "RayError",
    "available_resources_per_node",
    "installed_version",
    "placement_group",
    "quiet_ray",
    "ray",
    "remove_placement_group",
]
