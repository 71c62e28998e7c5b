"""Ctrl+C and SIGTERM become a question that long work asks between its steps. Knows signals; knows no work."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stoppable(stopping: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """While open, the first signal calls `stopping` and makes what is yielded true; a second one ends at once."""
    asked = threading.Event()

    def on_signal(_number: int, _frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        stopping()

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
