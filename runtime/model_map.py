"""Which model answers to which name."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from autellix.errors import SettingsError

log = logging.getLogger("autellix")


class ModelMap:
    """Any name is answered by the engine's model; one that no one has mapped is warned of, once.

    Args:
        served: the engine's model.
        mapped: the engine's model by the names that programs may give it.

    Raises:
        SettingsError: a name is mapped to a model that the engine does not serve.
    """

    def __init__(self, served: str, mapped: Mapping[str, str]) -> None:
        for name, target in mapped.items():
            if target != served:
                raise SettingsError(
                    f"--model-map {name}={target}: the engine serves no model {target!r}. "
                    f"There is: {served}. Write {name}={served}, or choose another with --model."
                )
        self.served = served
        self._quiet = {served, *mapped}
        self._lock = threading.Lock()

    def model_for(self, name: str | None) -> str:
        """The engine's model for the name that a request gives."""
        if name:
            with self._lock:
                new = name not in self._quiet
                self._quiet.add(name)
            if new:
                log.warning(
                    "model %r is served by the engine's model %s; say with --model-map NAME=%s "
                    "that this is meant",
                    name,
                    self.served,
                    self.served,
                )
        return self.served
