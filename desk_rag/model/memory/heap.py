"""Return freed memory to the operating system, between blocks that are in use.

Tensors of many different lengths fragment glibc's heap: a watcher keeps growing (bench/LOG.md, "Memory of a watcher"),
and a model whose weights are read and packed one by one takes twice its size until that ends.
"""

from __future__ import annotations

import ctypes
import sys


def trim_memory() -> bool:
    """Return True if the C library released memory; False without glibc, where nothing can be done."""
    if not sys.platform.startswith("linux"):
        return False
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and bool(trim(0))
