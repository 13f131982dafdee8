"""The configuration of a small Llama, for vLLM's scheduler without a model."""

from __future__ import annotations

import json
from pathlib import Path

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}


def write_tiny_llama(folder: Path, *, layers: int = 1) -> str:
    """Make ``folder`` a model folder, as far as vLLM's configuration needs one; its path."""
    config = {**_CONFIG, "num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)
