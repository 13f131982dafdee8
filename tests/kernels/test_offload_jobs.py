"""VLLM's jobs become moves: cache groups, chunks of several blocks, padding, ranks."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: pip install 'autellix[cpu]'")

import torch

from autellix.errors import KvMoveError
from autellix.kernels.dispatcher import Dispatcher
from autellix.kernels.offload_jobs import layouts_of, parts_of
from autellix.kernels.offload_worker import HostMemoryWorker, PipelineWorker
from autellix.kernels.pipeline import Pipeline
from autellix.kernels.vllm_names import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    CPULoadStoreSpec,
    GPULoadStoreSpec,
)
from tests.kernels.adversary import Adversary
from tests.kernels.pools import noise

BLOCKS, PAGE = 8, 32


def caches(groups: list[list[tuple[int, int]]], tensors: int = 2) -> CanonicalKVCaches:
    """Tensors of 32-byte pages; for each group (tensor, bytes used of a page) of its layers."""
    return CanonicalKVCaches(
        tensors=[
            CanonicalKVCacheTensor(noise(BLOCKS, PAGE, dtype=torch.int8, seed=i), PAGE)
            for i in range(tensors)
        ],
        group_data_refs=[[CanonicalKVCacheRef(t, used) for t, used in refs] for refs in groups],
    )


def device(blocks: list[int], sizes: list[int], first: list[int]) -> GPULoadStoreSpec:
    return GPULoadStoreSpec(blocks, group_sizes=sizes, block_indices=first)


def test_a_rows_pages_lie_where_their_tensors_are() -> None:
    layouts = layouts_of(caches([[(0, 32), (1, 32)], [(1, 16)]]))
    assert [layout.offsets for layout in layouts] == [(0, 32), (32,)]
    assert [layout.pages for layout in layouts] == [(32, 32), (16,)]
    assert {layout.row_bytes for layout in layouts} == {64}


def test_layers_that_share_a_tensor_are_moved_once() -> None:
    (layout,) = layouts_of(caches([[(0, 16), (0, 32), (1, 8)]]))
    assert layout.pages == (32, 8)


def test_a_job_is_split_by_group() -> None:
    layouts = layouts_of(caches([[(0, 32)], [(1, 32)], [(0, 32)]]))
    spec = device([5, 6, 7, 1], [2, 0, 2], [0, 0, 0])
    parts = parts_of(layouts, spec, CPULoadStoreSpec([9, 4, 3, 8]), 1)
    assert [(p.blocks.tolist(), p.rows.tolist()) for p in parts] == [
        ([5, 6], [9, 4]),
        ([7, 1], [3, 8]),
    ]


def test_the_first_block_may_lie_inside_a_chunk_and_the_last_chunk_be_used_in_part() -> None:
    layouts = layouts_of(caches([[(0, 32)], [(1, 32)]]))
    spec = device([1, 2, 3, 4, 5, 6], [4, 2], [3, 4])
    parts = parts_of(layouts, spec, CPULoadStoreSpec([10, 20, 7]), 4)
    assert parts[0].rows.tolist() == [43, 80, 81, 82]
    assert parts[1].rows.tolist() == [28, 29]


@pytest.mark.parametrize("chunks", [[1], [1, 2, 3]])
def test_chunks_that_do_not_fit_the_blocks_are_refused(chunks: list[int]) -> None:
    layouts = layouts_of(caches([[(0, 32)]]))
    with pytest.raises(KvMoveError, match="does not fit"):
        parts_of(layouts, device([1, 2], [2], [0]), CPULoadStoreSpec(chunks), 1)


def test_each_rank_moves_its_own_part_by_the_same_rows() -> None:
    ranks = [caches([[(0, 32), (1, 32)]]) for _ in range(2)]
    ranks[1].tensors[0].tensor.fill_(1)
    workers = [HostMemoryWorker(rank, chunks=4, blocks_per_chunk=1) for rank in ranks]
    for worker, rank in zip(workers, ranks, strict=True):
        before = [tensor.tensor.clone() for tensor in rank.tensors]
        worker.submit_store(1, device([2, 3], [2], [0]), CPULoadStoreSpec([3, 0]))
        for tensor in rank.tensors:
            tensor.tensor[5:7] = 0
        worker.submit_load(2, CPULoadStoreSpec([3, 0]), device([5, 6], [2], [0]))
        for tensor, was in zip(rank.tensors, before, strict=True):
            assert torch.equal(tensor.tensor[5:7], was[2:4])
        done = worker.get_finished()
        assert [(r.job_id, r.success, r.transfer_size) for r in done] == [
            (1, True, 128),
            (2, True, 128),
        ]
        assert not worker.get_finished()
        worker.shutdown()


def test_a_pipelined_move_is_reported_when_it_is_done_and_waited_for_when_asked() -> None:
    """vllm 48596, 29870, 46951: vLLM waits before it gives a block to somebody else."""
    machine = Adversary(3)
    cache = caches([[(0, 32), (1, 32)]])
    pipeline = Pipeline(machine, torch.zeros((4, 64), dtype=torch.uint8), slot_bytes=64)
    closed: list[bool] = []
    worker = PipelineWorker(
        cache, pipeline, Dispatcher(pipeline), 1, on_shutdown=lambda: closed.append(True)
    )
    was = cache.tensors[0].tensor[2].clone()
    worker.submit_store(1, device([2, 3], [2], [0]), CPULoadStoreSpec([3, 0]))
    worker.submit_store(2, device([4], [1], [0]), CPULoadStoreSpec([1]))
    assert not worker.get_finished(), "nothing runs by itself"
    worker.wait({1, 99})
    cache.tensors[0].tensor.fill_(0)  # the block is somebody else's now
    assert 1 in [result.job_id for result in worker.get_finished()]
    assert torch.equal(pipeline.host[3, :PAGE].view(torch.int8), was)
    worker.shutdown()
    assert closed == [True]
    assert not any(queue.work for queue in machine.queues), "it let what moved arrive"
