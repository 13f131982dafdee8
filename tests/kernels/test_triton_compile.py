"""Triton's kernels compile for GPUs without one, and to 16-byte instructions."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

ROOT = Path(__file__).resolve().parents[2]
# In a process of its own: here the kernels belong to the interpreter.
CODE = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from autellix.kernels.triton_swap import _move_pages

names = ["bases", "strides", "pages", "offsets", "blocks", "stage", "row_words", "n_blocks",
         "n_regions", "TO_STAGE", "STEP"]
types = ["*i64"] * 6 + ["i64", "i32", "i32", "constexpr", "constexpr"]
aligned = {(i,): [["tt.divisibility", 16]] for i in range(6)}
found = {}
for way in (True, False):
    source = ASTSource(fn=_move_pages, signature=dict(zip(names, types)),
                       constexprs={"TO_STAGE": way, "STEP": 8192}, attrs=aligned)
    made = triton.compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32),
                          options={"num_warps": 8})
    found[str(way)] = {"ptx": made.asm["ptx"], "cubin": len(made.asm["cubin"])}
print(json.dumps(found))
"""


@pytest.mark.parametrize("architecture", [80, 90])
def test_the_kernels_compile_to_16_byte_accesses(architecture: int, tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(architecture)],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for made in json.loads(done.stdout).values():
        assert made["cubin"] > 0
        assert re.search(r"ld\.global[.\w]*\.v2\.b64", made["ptx"])
        assert re.search(r"st\.global[.\w]*\.v2\.b64", made["ptx"])
