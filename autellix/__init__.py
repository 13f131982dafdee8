"""Autellix: run LLM agents as programs.

The names below are loaded on first use, so that ``import autellix`` stays light.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import AutellixError
    from .integrations.chat_model import ChatAutellix  # pyright: ignore[reportMissingImports]
    from .runtime.connection import connect  # pyright: ignore[reportMissingImports]
    from .runtime.program_scope import program  # pyright: ignore[reportMissingImports]

__version__ = "0.1.0"

_CHECKOUT = Path(__file__).resolve().parent.parent
if (_CHECKOUT / "pyproject.toml").is_file() and str(_CHECKOUT) not in __path__:
    # In a checkout the rooms lie beside this folder, not inside it.
    __path__.append(str(_CHECKOUT))

_FRONT_DOOR = {
    "AutellixError": "autellix.errors",
    "ChatAutellix": "autellix.integrations.chat_model",
    "connect": "autellix.runtime.connection",
    "program": "autellix.runtime.program_scope",
}

__all__ = ["AutellixError", "ChatAutellix", "__version__", "connect", "program"]


def __getattr__(name: str) -> Any:
    if name not in _FRONT_DOOR:
        raise AttributeError(f"module 'autellix' has no attribute {name!r}")
    value = getattr(import_module(_FRONT_DOOR[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_FRONT_DOOR})
