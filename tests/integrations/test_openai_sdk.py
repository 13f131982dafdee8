"""The ``openai`` package is watched where it lies and left as it was."""

from __future__ import annotations

import subprocess
import sys
import types
from typing import Any

import openai
import pytest

from autellix.errors import VersionError
from autellix.integrations import openai_private

CLIENTS = (openai._base_client.SyncAPIClient, openai._base_client.AsyncAPIClient)


class Watch:
    def is_ours(self, base_url: str) -> bool:
        return False

    def begins(self, path: str, model: str) -> None:
        raise AssertionError("a request to elsewhere is none of ours")

    def prepare(self) -> None:
        raise AssertionError("nor does it start an engine")

    async def aprepare(self) -> None:
        raise AssertionError("nor does it start an engine")


def test_what_is_hooked_is_put_back() -> None:
    before = [client.__dict__["request"] for client in CLIENTS]
    undo = openai_private.watch_requests(Watch())
    during = [client.__dict__["request"] for client in CLIENTS]
    assert not set(before) & set(during)
    undo()
    undo()
    assert [client.__dict__["request"] for client in CLIENTS] == before


def test_requests_to_elsewhere_are_not_touched() -> None:
    undo = openai_private.watch_requests(Watch())
    try:
        client = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=0)
        with pytest.raises(openai.APIConnectionError):
            client.models.list()
    finally:
        undo()


LATE = """
import sys
from autellix.integrations import openai_private as private
class Watch:
    is_ours = staticmethod(lambda base_url: False)
undo = private.watch_requests(Watch())
assert "openai" not in sys.modules
finders = len(sys.meta_path)
import openai
module = sys.modules["openai._base_client"]
assert len(sys.meta_path) == finders - 1
assert hasattr(module.SyncAPIClient.request, "__wrapped__")
assert type(module.__loader__).__module__.endswith("_frozen_importlib_external")
assert module.__spec__.loader is module.__loader__
undo()
assert module.SyncAPIClient.request.__module__ == "openai._base_client"
unused = private.watch_requests(Watch())
unused()
print("fine")
"""


def test_a_package_that_is_imported_later_is_hooked_then() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, cwd=".")
    assert (done.stdout.strip(), done.stderr) == ("fine", "")


def test_a_package_that_cannot_be_watched_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("openai._base_client")
    module.SyncAPIClient = type("SyncAPIClient", (), {"request": None, "base_url": None})
    module.FinalRequestOptions = openai._base_client.FinalRequestOptions
    monkeypatch.setitem(sys.modules, "openai._base_client", module)
    with pytest.raises(VersionError, match=r"AsyncAPIClient.request.*tested with openai 3"):
        openai_private.watch_requests(Watch())
