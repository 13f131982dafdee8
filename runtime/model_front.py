"""What vLLM's chat front end needs of a model where no engine runs: tokenizer and configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autellix.errors import CallError, ModelError

from ..scheduler.config import SchedulerConfig
from .vllm_arguments import engine_args
from .vllm_names import InputProcessor, VllmConfig, renderer_from_config


class ModelFront:
    """Stands in for an ``AsyncLLM`` whose engine is on another machine; no GPU is needed here.

    Args:
        model: name or folder of the model; its tokenizer and its configuration are read here.
        given: arguments of vLLM's engine.
        served_name: what requests call the model.
        context_tokens: the longest a call may be, as the running engine says.
        tasks: what the model can do, as the running engine says.

    Raises:
        ModelError: tokenizer or configuration cannot be read on this machine.
        SettingsError: bad engine arguments.
    """

    def __init__(
        self,
        model: str,
        given: Mapping[str, Any],
        *,
        served_name: str,
        context_tokens: int,
        tasks: tuple[str, ...],
    ) -> None:
        args = engine_args(model, given, SchedulerConfig(), served_name=served_name)
        try:
            model_config = args.create_model_config()
            # Weights are elsewhere, and so is whatever could compute with them.
            model_config.quantization = None
            model_config.max_model_len = context_tokens
            self.vllm_config = VllmConfig(
                model_config=model_config,
                structured_outputs_config=args.create_structured_outputs_config(),
            )
            self.renderer = renderer_from_config(self.vllm_config)
        except (OSError, ValueError) as cause:
            raise ModelError(
                f"The tokenizer of {model!r} is needed on this machine too, and cannot be read: "
                f"{' '.join(str(cause).split())}"
            ) from cause
        self.model_config = model_config
        self.input_processor = InputProcessor(self.vllm_config, self.renderer)
        self._tasks = tasks

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """What the model can do."""
        return self._tasks

    async def is_tracing_enabled(self) -> bool:
        """Whether vLLM itself sends spans; those of programs are Autellix's own."""
        return False

    async def check_admission(self, *_: Any, **__: Any) -> None:
        """Whether vLLM would take one more request; who waits is decided by the scheduler."""

    async def do_log_stats(self) -> None:
        """VLLM's own figures are told where its engine is."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """What an ``AsyncLLM`` can beside generating."""
        if name.startswith("_"):
            raise AttributeError(name)

        async def refused(*_: Any, **__: Any) -> Any:
            raise CallError(
                f"{name} is not offered by an engine on other machines; use --engine vllm for it."
            )

        return refused
