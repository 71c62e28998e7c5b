"""End the process promptly once the screen is closed, even while a long prefill runs in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

_PATIENCE_SECONDS = 0.5
"""Seconds to wait for work that was asked to stop."""
_GONE_SECONDS = 1.2
"""Seconds in which a program without a terminal should end by itself."""
_CLOSING_SECONDS = 0.6
_LOOK_EVERY = 0.02
_WORKERS = "window-worker"


def new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop whose thread workers `threads_ended` can tell from all other threads."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(ThreadPoolExecutor(thread_name_prefix=_WORKERS))
    return loop


def threads_ended(patience: float = _PATIENCE_SECONDS) -> bool:
    """Wait for the thread workers. False if one is in a step that cannot be interrupted, such as a long prefill.

    The loop's own `shutdown_default_executor` would join the threads however long that takes.
    """
    end = time.monotonic() + patience
    while any(thread.name.startswith(_WORKERS) for thread in threading.enumerate()):
        if time.monotonic() > end:
            return False
        time.sleep(_LOOK_EVERY)
    return True


def leave_unless_ended(code: int, close: Callable[[], object]) -> None:
    """End the process soon, whatever it hangs in; `close` is tried first, but not waited for long."""

    def end() -> None:
        time.sleep(_GONE_SECONDS)
        closing = threading.Thread(target=close, daemon=True)
        closing.start()
        closing.join(_CLOSING_SECONDS)
        leave_at_once(code)

    threading.Thread(target=end, name="end-without-terminal", daemon=True).start()


def leave_at_once(code: int) -> NoReturn:
    """End the process while such a step goes on. The terminal is restored and every transaction is on disk; the
    interpreter's own way out would wait for that step, or unload libraries under it."""
    import psutil

    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            child.kill()
    logging.shutdown()
    os._exit(code)
