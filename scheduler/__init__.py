"""The scheduling core: pure Python on a given clock; one file adapts it to vLLM."""
