"""End a command early by Ctrl+C or SIGTERM, also while libraries are imported or a model is loaded.

The store stands a kill at any moment, so a process that cannot end by itself at once is ended. Loads nothing else,
because it must be at work before all other imports.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

STOPPED = "Stopped. What was read is kept; the same command goes on from here."
INTERRUPTED = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PATIENCE = 0.8
"""Seconds that a command which was asked to stop may take to end by itself."""


class PromptEnd:
    """Ends this process soon after a signal, whatever the main thread does then.

    A thread is told of signals by the C library's handler, so that it need not wait for the main thread's next step in
    Python.
    """

    def __init__(self) -> None:
        self.words, self.code, self.descriptor = "Stopped.", INTERRUPTED, 2
        self.patience = 0.0
        """Seconds that the main thread has for its own end; 0 while it has no way to end early."""
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._before = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
        signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._wait, name="signals", daemon=True).start()

    def release(self) -> None:
        """Leave signals to the main thread from now on."""
        global _prompt_end
        _prompt_end = None
        signal.set_wakeup_fd(-1)
        self._sender.close()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _wait(self) -> None:
        if not self._next_signal():
            return
        self._receiver.settimeout(max(0.01, self.patience))
        with suppress(TimeoutError):
            if not self._next_signal():  # released: the main thread ends by itself
                return
        self._end()

    def _next_signal(self) -> int:
        """Return the number of the next signal; 0 after `release`."""
        while byte := self._receiver.recv(1):
            if byte[0] in _SIGNALS:
                return byte[0]
        return 0

    def _end(self) -> None:
        erase = "\r\x1b[K" if os.isatty(self.descriptor) else ""
        with suppress(OSError):
            os.write(self.descriptor, f"{erase}{self.words}\n".encode())
        parsers = sys.modules.get("desk_rag.documents.parser_process")
        with suppress(Exception):  # half imported
            if parsers is not None:
                parsers.kill_children()
        os._exit(self.code)


_prompt_end: PromptEnd | None = None


def end_promptly() -> None:
    """End this process soon after a signal from now on. For the beginning of a program of its own."""
    global _prompt_end
    _prompt_end = PromptEnd()


def prepare(command: str) -> None:
    """Set what is said and returned when `command` is ended; commands that do not end promptly see to it themselves."""
    end = _prompt_end
    if end is None:
        return
    if command == "index":
        end.words = STOPPED
    elif command == "ask":
        end.words = "Stopped. What was read is kept."
    elif command == "watch":  # for which a signal is the usual end
        end.words, end.code, end.descriptor = "stopped", 0, 1
    else:
        end.release()


@contextmanager
def ending_by_itself() -> Iterator[None]:
    """Give the main thread a moment to end by itself after a signal."""
    end = _prompt_end
    if end is not None:
        end.patience = _PATIENCE
    try:
        yield
    finally:
        if end is not None:
            end.patience = 0.0


@contextmanager
def stoppable(on_stop: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl+C or SIGTERM into a request to stop; a second one ends the command at once.

    Yields a function that tells whether a stop was requested. `on_stop` is called in the signal handler.
    """
    stop_requested = threading.Event()

    def on_signal(_number: int, _frame: object) -> None:
        if stop_requested.is_set():
            raise KeyboardInterrupt
        stop_requested.set()
        on_stop()

    previous = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        with ending_by_itself():
            yield stop_requested.is_set
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if stop_requested.is_set() and _prompt_end is not None:
            _prompt_end.release()
