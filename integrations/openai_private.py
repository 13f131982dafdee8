"""The names of the ``openai`` package that its requests are recorded by, all of them.

Tested with openai 3.57. What is taken:

- ``openai._base_client``: ``SyncAPIClient.request`` and ``AsyncAPIClient.request``, through which
  every request passes in the context of the code that makes it;
- ``FinalRequestOptions``: ``url``, ``headers`` and ``json_data`` of a request.

The package is heavy and many programs do without it, so nothing here imports it: where it is not
there yet, it is hooked when the program imports it.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Protocol

from autellix.errors import VersionError

_MODULE = "openai._base_client"
_CLIENTS = ("SyncAPIClient", "AsyncAPIClient")
_TAKEN = ("url", "headers", "json_data")

Undo = Callable[[], None]


class SdkCall(Protocol):
    """What a watcher makes of one request."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers to send with it."""
        ...

    @property
    def wants_usage(self) -> bool:
        """Whether a stream of it is to tell the usage, which is left out unless asked for."""
        ...

    @property
    def model(self) -> str:
        """What its model is called where it goes; empty for as it says itself."""
        ...

    def ended(self, error: BaseException | None, *, complete: bool = True) -> None:
        """The caller has the answer, an error, or has closed the stream."""
        ...


class RequestWatch(Protocol):
    """Watches the requests of the package; none of its methods may raise."""

    def is_ours(self, base_url: str) -> bool:
        """Whether a client with this address talks to our endpoint."""
        ...

    def begins(self, path: str, model: str) -> SdkCall | None:
        """A request begins in the running context; None leaves it as it is.

        Args:
            path: its route, without the base URL.
            model: the model's name in it, empty where there is none.
        """
        ...

    def prepare(self) -> None:
        """See that the endpoint serves; may block."""
        ...

    async def aprepare(self) -> None:
        """As ``prepare``, without blocking the caller's loop."""
        ...


def watch_requests(watch: RequestWatch) -> Undo:
    """Let ``watch`` see every request of the ``openai`` package; returns how to end it.

    Raises:
        VersionError: the package is imported already, and is one that cannot be watched.
    """
    undo: list[Undo] = []
    module = sys.modules.get(_MODULE)
    if module is not None:
        undo.append(_hook(module, watch))
    else:
        finder = _Finder(lambda module: undo.append(_hook(module, watch)))
        sys.meta_path.insert(0, finder)
        undo.append(finder.remove)

    def restore() -> None:
        while undo:
            undo.pop()()

    return restore


class _Finder(MetaPathFinder):
    """Finds one module as the import system would, and hooks it once it has been run."""

    def __init__(self, hook: Callable[[ModuleType], None]) -> None:
        self._hook = hook

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        self.remove()
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _HookingLoader(spec.loader, self._hook)
        return spec


class _HookingLoader(Loader):
    def __init__(self, loader: Loader, hook: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._hook = hook

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._hook(module)


def _hook(module: ModuleType, watch: RequestWatch) -> Undo:
    _check(module)
    undo: list[Undo] = []
    for name, around in zip(_CLIENTS, (_around_sync, _around_async), strict=True):
        client = getattr(module, name)
        before = client.request
        after = around(before, watch)
        client.request = after
        undo.append(functools.partial(_restore, client, before, after))

    def restore() -> None:
        for one in undo:
            one()

    return restore


def _restore(client: Any, before: Any, after: Any) -> None:
    if client.__dict__.get("request") is after:
        client.request = before


def _check(module: ModuleType) -> None:
    options = getattr(module, "FinalRequestOptions", None)
    fields = getattr(options, "model_fields", {})
    missing = [f"FinalRequestOptions.{name}" for name in _TAKEN if name not in fields]
    for name in _CLIENTS:
        client = getattr(module, name, None)
        missing += [
            f"{name}.{attribute}"
            for attribute in ("request", "base_url")
            if not hasattr(client, attribute)
        ]
    if missing:
        raise VersionError(
            f"The installed openai package cannot be recorded: it has no {', '.join(missing)}. "
            "This release was tested with openai 3; install that: pip install 'openai>=3,<4'."
        )


def _around_sync(original: Any, watch: RequestWatch) -> Any:
    @functools.wraps(original)
    def request(self: Any, cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        if not watch.is_ours(str(self.base_url)):
            return original(self, cast_to, options, *args, **kwargs)
        watch.prepare()
        call = watch.begins(options.url, _model_of(options))
        if call is None:
            return original(self, cast_to, options, *args, **kwargs)
        try:
            reply = original(self, cast_to, _stamped(options, call), *args, **kwargs)
        except BaseException as error:
            call.ended(error)
            raise
        _end_with(reply, call)
        return reply

    return request


def _around_async(original: Any, watch: RequestWatch) -> Any:
    @functools.wraps(original)
    async def request(self: Any, cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        if not watch.is_ours(str(self.base_url)):
            return await original(self, cast_to, options, *args, **kwargs)
        await watch.aprepare()
        call = watch.begins(options.url, _model_of(options))
        if call is None:
            return await original(self, cast_to, options, *args, **kwargs)
        try:
            reply = await original(self, cast_to, _stamped(options, call), *args, **kwargs)
        except BaseException as error:
            call.ended(error)
            raise
        _end_with(reply, call)
        return reply

    return request


def _model_of(options: Any) -> str:
    body = options.json_data
    return str(body.get("model") or "") if isinstance(body, Mapping) else ""


def _stamped(options: Any, call: SdkCall) -> Any:
    stamped = copy.copy(options)
    headers = options.headers if isinstance(options.headers, Mapping) else {}
    stamped.headers = {**headers, **call.headers}
    body = options.json_data
    if call.model and isinstance(body, Mapping):
        body = stamped.json_data = {**body, "model": call.model}
    if call.wants_usage and isinstance(body, Mapping) and body.get("stream"):
        asked = body.get("stream_options") or {}
        stamped.json_data = {**body, "stream_options": {"include_usage": True, **asked}}
    return stamped


def _end_with(reply: Any, call: SdkCall) -> None:
    """End the call now, or where the answer still streams, when its response is closed."""
    response = next((r for r in _responses(reply) if hasattr(r, "is_closed")), None)
    if response is None or response.is_closed:
        call.ended(None)
        return
    close, aclose = response.close, response.aclose

    @functools.wraps(close)
    def closing() -> None:
        close()
        call.ended(None, complete=False)

    @functools.wraps(aclose)
    async def aclosing() -> None:
        try:
            await aclose()
        finally:
            call.ended(None, complete=False)

    response.close, response.aclose = closing, aclosing


def _responses(reply: Any) -> list[Any]:
    """Where the HTTP response of a reply can be: a raw response, a stream, or the reply itself."""
    return [getattr(reply, "http_response", None), getattr(reply, "response", None), reply]
