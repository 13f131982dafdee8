"""Triton's kernels run in its interpreter: a GPU's compiler would need a GPU."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # before the first import of a kernel
