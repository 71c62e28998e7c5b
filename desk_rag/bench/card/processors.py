"""Run this process on a part of a GPU's multiprocessors, to come near the arithmetic of a smaller GPU."""

from __future__ import annotations

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
    context.set_context()
    try:
        with on_multiprocessors(count):
            yield
    finally:
        context.pop_context()
