"""``python -m autellix`` and the ``autellix`` command."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from autellix.runtime.cli import app

    app()


if __name__ == "__main__":
    main()
