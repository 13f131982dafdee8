"""Swap out and in on the real engine: what comes back from the host is what was there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: pip install 'autellix[cpu]'")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.engine
def test_greedy_outputs_after_a_host_load_equal_those_after_a_device_hit() -> None:
    """Compared with a device hit, not a cold prefill: chunks of other sizes flip near-ties."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("tier_on_engine.py"))],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["device hit"] == found["after eviction"], "tokens differ"
    assert found["cached on device"] == found["cached after eviction"] == found["full blocks"]
    assert found["cold hits"] == 0
    assert found["moved"]["store"] > 0 and found["moved"]["load"] > 0
    assert found["loaded"] == found["full blocks"], "they came from the host"
