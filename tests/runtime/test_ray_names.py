"""Without Ray, or with one that is too old or too new, what to install is said."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Iterator

import pytest

from autellix.errors import VersionError

MODULE = "autellix.runtime.ray_names"


@pytest.fixture(autouse=True)
def fresh_module() -> Iterator[None]:
    kept = sys.modules.pop(MODULE, None)
    yield
    sys.modules.pop(MODULE, None)
    if kept is not None:
        sys.modules[MODULE] = kept


@pytest.mark.parametrize("installed", [None, "2.9.3", "3.0.0"])
def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch, installed: str | None) -> None:
    def version(name: str) -> str:
        if name != "ray" or installed is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(VersionError, match=r"pip install 'autellix\[ray\]'"):
        importlib.import_module(MODULE)
