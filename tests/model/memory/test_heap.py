"""Freed memory really goes back to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import psutil
from desk_rag.model.memory.heap import trim_memory
blocks = [bytearray(60_000) for _ in range(4000)]  # below malloc's threshold for memory maps of its own
pins = [bytearray(600) for _ in range(200)]
kept = blocks[::400]
del blocks
me = psutil.Process()
before = me.memory_info().rss
given = trim_memory()
print(given, (before - me.memory_info().rss) // 2**20, len(kept), len(pins))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_memory_between_live_blocks_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    returned, megabytes, *_ = done.stdout.split()
    assert returned == "True"
    assert int(megabytes) > 100
