"""Swap out and in on the real engine: what comes back from the host is what was there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: pip install 'autellix[cpu]'")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """What one engine did; in a process of its own, since an engine's settings are a process's."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("tier_on_engine.py"))],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.engine
def test_greedy_outputs_after_a_host_load_equal_those_after_a_device_hit(report: Any) -> None:
    """Compared with a device hit, not a cold prefill: chunks of other sizes flip near-ties."""
    assert report["host load"]["tokens"] == report["device hit"]["tokens"]
    assert report["spoilt"]["tokens"] != report["device hit"]["tokens"], "nothing was compared"


@pytest.mark.engine
def test_what_the_host_brings_counts_as_cached(report: Any) -> None:
    full = report["cold"]["prompt"] // 32 * 32
    assert report["cold"]["cached"] == 0
    assert report["device hit"]["cached"] == report["host load"]["cached"] == full
    assert report["loaded bytes"] == report["stored"]["bytes"] * full // report["stored"]["tokens"]


@pytest.mark.engine
def test_what_is_stored_is_known_and_freed_by_program(report: Any) -> None:
    assert report["stored"]["tokens"] >= report["cold"]["prompt"] // 32 * 32
    assert report["bytes/s"]["store"] > 0 and report["bytes/s"]["load"] > 0
    assert report["dropped bytes"] > 0 and report["left"] == 0
