"""Run this process on a part of a GPU's multiprocessors, to come near the arithmetic of a smaller GPU."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from desk_rag.errors import ConfigError
from desk_rag.kv.kernels.compiled_launch import on_multiprocessors


@contextmanager
def on_part(count: int) -> Iterator[None]:
    """Run on that many multiprocessors of the first GPU; 0 for all. Raises ConfigError if it cannot be divided."""
    if not count:
        yield
        return
    from torch.cuda.green_contexts import GreenContext

    try:
        context: Any = GreenContext.create(num_sms=count, device_id=0)
    except RuntimeError as error:
        raise ConfigError(f"This GPU cannot be divided: {error}", remedy="Leave --multiprocessors out.") from error

    def enter(*_: object) -> None:
        """Enter the part at a thread's first call: its events must be of the streams' context."""
        sys.setprofile(None)
        context.set_context()

    context.set_context()
    threading.setprofile(enter)
    try:
        with on_multiprocessors(count):
            yield
    finally:
        threading.setprofile(None)
        context.pop_context()
