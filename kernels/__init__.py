"""KV swap kernels and the vLLM offloading plug-in."""
