"""Gives freed memory back to the system between runs. Knows the C library; knows nothing of what the memory held.

Embedding and prefilling chunks of ever different lengths leaves glibc's arenas full of holes: a watcher that indexed
one file a minute grew from 0.83 to 1.16 GB in 20 minutes, and one `malloc_trim` took it back to 0.64 GB.
"""

from __future__ import annotations

import ctypes
import sys


def give_back() -> bool:
    """Return True if the C library gave pages back; False elsewhere than on glibc, where there is nothing to do."""
    if not sys.platform.startswith("linux"):
        return False
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and bool(trim(0))
