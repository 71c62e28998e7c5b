"""The group of all commands: a broken pipe and Ctrl+C become exceptions of ours, which typer would turn into code 1."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.core import TyperGroup

from desk_rag.errors import Cancelled


class ReaderLeft(Exception):
    """The program that read our output has ended."""


class Commands(TyperGroup):
    """A group of commands that raises ReaderLeft on a broken pipe, and Cancelled on Ctrl+C."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Parse the arguments; may print help."""
        with _as_ours():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        with _as_ours():
            return super().invoke(ctx)


@contextmanager
def _as_ours() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderLeft from error
    except KeyboardInterrupt as error:
        raise Cancelled("Stopped.") from error
