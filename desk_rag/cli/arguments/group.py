"""The group of all commands: a broken pipe, Ctrl+C and wrong arguments become exceptions of ours."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from typer.core import TyperGroup

from desk_rag.cli.arguments.wrong import usage_error
from desk_rag.errors import Cancelled

NO_ROOM = f"The output could not be written: {os.strerror(errno.ENOSPC)}."


class ReaderLeft(Exception):
    """The program that read our output has ended."""


def output_has_no_room(error: Exception) -> bool:
    """Return whether standard output had no room, and not desk-rag's drive; what waits there is given up."""
    if not isinstance(error, OSError) or error.errno != errno.ENOSPC:
        return False
    try:
        sys.stdout.flush()  # what could not be written waits there still
    except OSError as failure:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return failure.errno == errno.ENOSPC
    return False


class Commands(TyperGroup):
    """A group of commands that raises ReaderLeft on a broken pipe, Cancelled on Ctrl+C, ConfigError if misused."""

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
    except Exception as error:
        wrong = usage_error(error)
        if wrong is None:
            raise
        raise wrong from error
