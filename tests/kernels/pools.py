"""Pools in every form that engines use, filled with noise."""

from __future__ import annotations

import torch

KINDS = ("LBHNC", "LBNHC", "BLHNC", "BLNHC", "list", "padded", "half")
DTYPES = (
    torch.bfloat16,
    torch.float32,
    torch.uint8,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)


def noise(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Random bytes as a tensor of any type."""
    size = torch.empty(0, dtype=dtype).element_size()
    for length in shape:
        size *= length
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).view(*shape)


def layers_of(
    kind: str, layers: int, blocks: int, dtype: torch.dtype, seed: int, *, heads: int = 2
) -> list[torch.Tensor]:
    """One tensor a layer, ``[blocks, ...]``, in the order of dimensions that ``kind`` names.

    L layers, B blocks, H heads, N tokens, C channels of keys and values; "list" has an allocation
    for each layer, "padded" room between pages, "half" half of the heads: a tensor-parallel rank.
    """
    tokens, channels = 4, 16
    match kind:
        case "LBHNC":
            pool = noise(layers, blocks, heads, tokens, channels, dtype=dtype, seed=seed)
            return list(pool)
        case "LBNHC":
            pool = noise(layers, blocks, tokens, heads, channels, dtype=dtype, seed=seed)
            return [layer.transpose(1, 2) for layer in pool]
        case "BLHNC":
            pool = noise(blocks, layers, heads, tokens, channels, dtype=dtype, seed=seed)
            return [pool[:, i] for i in range(layers)]
        case "BLNHC":
            pool = noise(blocks, layers, tokens, heads, channels, dtype=dtype, seed=seed)
            return [pool[:, i].transpose(1, 2) for i in range(layers)]
        case "list":
            return [
                noise(blocks, heads, tokens, channels, dtype=dtype, seed=seed + i)
                for i in range(layers)
            ]
        case "padded":
            page = heads * tokens * channels
            pool = noise(layers, blocks, page + 64, dtype=dtype, seed=seed)
            return [layer[:, :page] for layer in pool]
        case "half":
            return layers_of("LBHNC", layers, blocks, dtype, seed, heads=heads // 2)
    raise AssertionError(kind)
