"""End a command early: by Ctrl+C, SIGTERM, or because nobody reads its output."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from typer.core import TyperGroup


class ReaderLeft(Exception):
    """The program that read our output has ended."""


class Commands(TyperGroup):
    """A group of commands that raises ReaderLeft on a broken pipe, which typer would turn into exit code 1."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Parse the arguments; may print help."""
        with _broken_pipe_as_reader_left():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        with _broken_pipe_as_reader_left():
            return super().invoke(ctx)


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

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop_requested.is_set
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _broken_pipe_as_reader_left() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderLeft from error
