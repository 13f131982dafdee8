"""Every guard of the KV tier, and the test that fails without it.

The first column is the condition of order, or the report of a bug elsewhere that taught it. Each
line takes one guard out of a copy of the code and sees that its test fails there. Conditions that
have no line are those of vLLM's own code, which is not changed here; the random lives of
``test_tier_fuzz`` and the two cases at its end watch over them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: pip install 'autellix[cpu]'")

ROOT = Path(__file__).resolve().parents[2]
ORDER = "test_pipeline.py::test_the_result_is_that_of_one_thing_after_the_other"
TIER = "test_host_tier.py::test_"
HOST = "test_host_memory.py::test_"
PIPE = "test_pipeline.py::test_"

# guard, file of kernels/, what stands there, what stands there instead, the test that fails.
GUARDS = [
    (
        "a gather waits for the last writer (vllm#45704)",
        "pipeline.py",
        "        lane.kernels.wait_for(model)\n",
        "        if direction == 'load':\n            lane.kernels.wait_for(model)\n",
        ORDER,
    ),
    (
        "a scatter waits for the last reader (vllm#47282, sglang#20611)",
        "pipeline.py",
        "        lane.kernels.wait_for(model)\n",
        "        if direction == 'store':\n            lane.kernels.wait_for(model)\n",
        ORDER,
    ),
    (
        "a direct copy waits for the model's stream",
        "pipeline.py",
        "            lane.copies.wait_for(model)\n",
        "",
        ORDER,
    ),
    (
        "a slot is copied out when it is full",
        "pipeline.py",
        "                lane.copies.wait_for(lane.kernels.record())\n",
        "",
        ORDER,
    ),
    (
        "a slot is gathered into when it is empty",
        "pipeline.py",
        "                    lane.kernels.wait_for(slot.empty)\n",
        "                    pass\n",
        ORDER,
    ),
    (
        "a slot is scattered when it is full",
        "pipeline.py",
        "                lane.kernels.wait_for(lane.copies.record())\n",
        "",
        ORDER,
    ),
    (
        "a slot is loaded into when it is empty",
        "pipeline.py",
        "                    lane.copies.wait_for(slot.empty)\n",
        "                    pass\n",
        ORDER,
    ),
    (
        "blocks and rows are reused after the move (vllm#48596, #29870, #46951)",
        "pipeline.py",
        "                first.wait_for(other.finished)\n",
        "                pass\n",
        ORDER,
    ),
    (
        "a move is over when it has ended, not before",
        "pipeline.py",
        "        return self.finished.done()\n",
        "        return True\n",
        ORDER,
    ),
    (
        "device memory is not read ahead of its stream (vllm#39306)",
        "pipeline.py",
        '        stable = direction == "load"\n',
        "        stable = True\n",
        ORDER,
    ),
    (
        "host rows that a move writes are not read ahead",
        "pipeline.py",
        "            stable = stable and not in_rows\n",
        "            pass\n",
        PIPE + "only_host_rows_that_nobody_writes_are_read_ahead",
    ),
    (
        "sources are read in the stream's order unless they are stable (vllm#39306)",
        "cuda_runtime.py",
        "_ORDER_ANY if stable_source else _ORDER_STREAM",
        "_ORDER_ANY",
        HOST + "sources_are_read_in_stream_order_unless_they_are_stable",
    ),
    (
        "ids are copied on entry (TensorRT-LLM#15546)",
        "pipeline.py",
        "ids = part.blocks.clone()",
        "ids = part.blocks",
        PIPE + "the_callers_ids_are_its_own_again_at_once",
    ),
    (
        "ids and descriptors are kept until the move is done (TensorRT-LLM#15546)",
        "pipeline.py",
        "            _kept=kept,\n",
        "            _kept=[],\n",
        ORDER,
    ),
    (
        "destinations are unique",
        "pipeline.py",
        '            reference.check_unique(part.blocks if direction == "load" else part.rows)\n',
        "",
        PIPE + "a_destination_named_twice_is_refused",
    ),
    (
        "ids are in range",
        "pipeline.py",
        '            reference.check_range(part.blocks, part.layout.blocks, "Blocks")\n',
        "",
        PIPE + "ids_out_of_range_are_refused",
    ),
    (
        "nothing is queued while a graph is captured (rmm#2518)",
        "pipeline.py",
        "        if self.device.capturing():\n",
        "        if False:\n",
        PIPE + "a_move_during_graph_capture_is_refused",
    ),
    (
        "runs are merged only where both sides touch (FlexKV#202)",
        "runs.py",
        "        breaks = (self.sources[:-1] + ends != self.sources[1:]) | (\n"
        "            self.destinations[:-1] + ends != self.destinations[1:]\n"
        "        )\n",
        "        breaks = self.sources[:-1] + ends != self.sources[1:]\n",
        "test_runs.py::test_copies_that_touch_on_one_side_alone_are_not_merged",
    ),
    (
        "rows with gaps are not moved as one run (FlexKV#202)",
        "layout.py",
        "        return high - low == self.moved_bytes\n",
        "        return True\n",
        PIPE + "a_row_with_gaps_is_not_staged",
    ),
    (
        "the legacy stream, which orders all others, is refused",
        "cuda_runtime.py",
        "        _check_stream(stream)\n        count = len(copies)\n",
        "        count = len(copies)\n",
        HOST + "the_default_stream_is_refused",
    ),
    (
        "a refused registration leaves no error behind (vllm#51080)",
        "cuda_runtime.py",
        '            self._function("cudaGetLastError")()\n        return code == 0\n',
        "            pass\n        return code == 0\n",
        HOST + "a_refusal_is_told_and_leaves_no_error_behind",
    ),
    (
        "large host memory is registered in pieces (vllm#51080)",
        "host_pool.py",
        "base, each = self.rows.data_ptr(), max(1, piece_bytes // row_bytes)",
        "base, each = self.rows.data_ptr(), count",
        HOST + "it_is_registered_in_pieces_that_end_between_rows",
    ),
    (
        "a refused piece leaves none pinned (vllm#51080)",
        "host_pool.py",
        "                    registrar.unregister(done)\n",
        "                    pass\n",
        HOST + "a_refused_piece_leaves_none_pinned",
    ),
    (
        "the pool is not rounded up (vllm#53042)",
        "host_pool.py",
        "mmap.mmap(-1, size, ",
        "mmap.mmap(-1, 1 << size.bit_length(), ",
        HOST + "the_pool_is_of_the_exact_size",
    ),
    (
        "a missing name is an error, not another copy (LMCache#4870)",
        "cuda_runtime.py",
        "            return getattr(self._lib, name)\n",
        '            return getattr(self._lib, name, getattr(self._lib, "cudaMemcpyAsync"))\n',
        HOST + "a_missing_name_is_an_error_not_another_copy",
    ),
    (
        "a page is as long as its block, keys and values alike (LMCache#4463)",
        "layout.py",
        "(tensor.stride(0) * size, 1)",
        "(tensor.stride(0) * size // 2, 1)",
        "test_reference.py::test_packed_keys_and_values_are_one_page",
    ),
    (
        "host memory is taken from the node of the GPU (vllm#30492)",
        "host_pool.py",
        "    return node if node >= 0 else None\n",
        "    return None\n",
        HOST + "the_memory_node_is_read_from_the_bus",
    ),
    (
        "what moves is not evicted",
        "program_lru.py",
        "            elif self.chunks[key].ref_cnt or key in protected:\n",
        "            elif key in protected:\n",
        TIER + "what_moves_is_not_evicted",
    ),
    (
        "what moves is freed when it has arrived",
        "offload_manager.py",
        "            elif chunk.ref_cnt == 0:\n",
        "            else:\n",
        TIER + "what_moves_is_freed_when_it_has_arrived",
    ),
    (
        "vLLM is told of a move when it has ended (vllm#48596)",
        "offload_worker.py",
        "if move.done()]",
        "]",
        "test_offload_jobs.py::"
        "test_a_pipelined_move_is_reported_when_it_is_done_and_waited_for_when_asked",
    ),
    (
        "vLLM waits for stores before it uses their blocks (vllm#46951)",
        "offload_worker.py",
        "                move.wait()\n",
        "                pass\n",
        "test_offload_jobs.py::"
        "test_a_pipelined_move_is_reported_when_it_is_done_and_waited_for_when_asked",
    ),
]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout with kernels of its own; all else is the same."""
    root = tmp_path_factory.mktemp("guards")
    for entry in ROOT.iterdir():
        if entry.name in ("kernels", "autellix"):
            shutil.copytree(entry, root / entry.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif not entry.name.startswith("."):
            (root / entry.name).symlink_to(entry)
    return root


def passes(root: Path, test: str) -> bool:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-o", "addopts=",
         "--import-mode=importlib", f"tests/kernels/{test}"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    return done.returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("file", "guard", "without", "test"),
    [pytest.param(*line[1:], id=line[0]) for line in GUARDS],
)
def test_without_this_guard_its_test_fails(
    copied: Path, file: str, guard: str, without: str, test: str
) -> None:
    source = copied / "kernels" / file
    text = source.read_text(encoding="utf-8")
    assert text.count(guard) == 1, "the guard is written in another way by now: say how"
    source.write_text(text.replace(guard, without), encoding="utf-8")
    try:
        assert not passes(copied, test)
    finally:
        source.write_text(text, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_with_all_guards_these_tests_pass(copied: Path) -> None:
    for test in sorted({line[4] for line in GUARDS}):
        assert passes(copied, test), test
