"""Type-check the rooms, and make sure that every file of them was read.

A checker that finds no files is green, so the number it reports is compared with the files there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Print what the checker found; 1 if there is an error or a file was left out."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["basedpyright"]
    files = [file for room in settings["include"] for file in (ROOT / room).rglob("*.py")]
    checker = [sys.executable, "-m", "basedpyright", "--outputjson"]
    run = subprocess.run(checker, cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        report = json.loads(run.stdout)
    except ValueError:
        print(run.stdout, run.stderr, sep="\n", file=sys.stderr)
        return 1
    for found in report["generalDiagnostics"]:
        line = found.get("range", {}).get("start", {}).get("line", 0) + 1
        print(f"{found['file']}:{line}: {found['severity']}: {found['message']}")
    read, errors = report["summary"]["filesAnalyzed"], report["summary"]["errorCount"]
    print(f"types: {read} of {len(files)} files read, {errors} errors")
    return int(errors > 0 or read < len(files) or not files)


if __name__ == "__main__":
    sys.exit(main())
