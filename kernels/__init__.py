"""KV swap kernels and the vLLM offloading plug-in.

Bottom up: ``layout`` (what a pool's bytes look like), ``reference`` (what a move must do), ``runs``
(a move as copies), ``triton_swap`` and ``cuda_swap`` (gather and scatter on a GPU), ``pipeline``
(their order in time), ``calibration`` and ``dispatcher`` (which way to go), ``offload`` (the
plug-in for vLLM) and ``host_tier`` (what is kept for which program).
"""
