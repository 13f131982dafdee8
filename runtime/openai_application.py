"""VLLM's own OpenAI application around a front end that is set up already."""

from __future__ import annotations

import logging
from typing import Any

from starlette.datastructures import State
from starlette.requests import Request
from starlette.responses import JSONResponse

from autellix.errors import AutellixError, CallError

from .vllm_names import build_app


def openai_application(state: State) -> Any:
    """The ASGI application; its life-cycle hooks are not for running (``lifespan="off"``).

    Args:
        state: what vLLM's ``init_app_state`` filled in.
    """
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        application = build_app(state.args, ("generate",), state.vllm_config.model_config)
    finally:
        # One of the libraries that it imports sets up logging for the whole process.
        root.setLevel(level)
        root.handlers[:] = handlers
    application.state = state
    application.add_exception_handler(AutellixError, _our_error)
    return application


async def _our_error(request: Request, error: Exception) -> JSONResponse:
    refused = isinstance(error, CallError)
    body = {
        "message": str(error),
        "type": "invalid_request_error" if refused else "server_error",
        "param": None,
        "code": "call_refused" if refused else "engine_unavailable",
    }
    headers = {"x-should-retry": "false"}
    return JSONResponse({"error": body}, status_code=400 if refused else 503, headers=headers)
