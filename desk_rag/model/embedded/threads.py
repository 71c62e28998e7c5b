"""Number of threads that multiply on a CPU: one for few rows of a small model, else as many as the settings say.

OpenMP's threads wait for each other after every operation. A question's pass over a small model is a thousand short
ones, which several threads make slower wherever another program holds a core; the cores left over read with the
pointer (`answering.evidence.span_scorer`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

_FEW_ROWS = 64
_SMALL = 100_000_000
"""Parameters up to which a model counts as small: reading the weights of a larger one is work for several cores."""
_settled: list[int] = []
"""Threads for many rows, once a model was loaded."""


def settle(count: int | None) -> None:
    """Use `count` threads for many rows from now on; None for torch's present number."""
    if count is not None:
        torch.set_num_threads(count)
    _settled[:] = [torch.get_num_threads()]


def most() -> int:
    """Threads for many rows."""
    return _settled[0] if _settled else torch.get_num_threads()


def for_rows(rows: int, parameters: int) -> AbstractContextManager[None]:
    """Let the calling thread multiply `rows` by the matrices of a model of this size with as many threads as pay."""
    return _limited_to(1 if rows <= _FEW_ROWS and parameters <= _SMALL else most())


def one() -> AbstractContextManager[None]:
    """Let the calling thread multiply alone."""
    return _limited_to(1)


@contextmanager
def _limited_to(wanted: int) -> Iterator[None]:
    before = torch.get_num_threads()
    if wanted == before:
        yield
        return
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_to_one() -> None:
    """Let the calling thread multiply alone for good; the number that new threads begin with stays as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    other = threading.Thread(target=torch.set_num_threads, args=(before,))
    other.start()
    other.join()
