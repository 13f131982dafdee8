"""Measurements: run each as ``python -m benchmarks.NAME``; raw results lie in ``results/``."""
