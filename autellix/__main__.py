"""``python -m autellix`` and the ``autellix`` command."""

from __future__ import annotations

from importlib import import_module


def main() -> None:
    """Run the command line."""
    import_module("autellix.runtime.cli").app()


if __name__ == "__main__":
    main()
