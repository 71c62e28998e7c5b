"""Run a function in a process of its own: what it imports neither holds up keys nor stays in memory.

Run as a module, it reads the function and its arguments from standard input and writes each value that it yields.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from desk_rag.errors import DeskRagError
from desk_rag.indexer.resident.keeping import environment

T = TypeVar("T")


def each(function: Callable[..., Iterable[T]], *arguments: object) -> Iterator[T]:
    """Yield what `function` yields, which is a function of a module. Raises what it raises; ends it when closed."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(),
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        try:
            with process.stdin as stdin:
                pickle.dump((function, arguments), stdin)
            while True:
                value, error = pickle.load(process.stdout)
                if error is not None:
                    raise error
                if value is None:
                    return
                yield value
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise DeskRagError("The process that looked into this has ended.", remedy="Try again.") from error
        finally:
            process.kill()


def one(function: Callable[..., T], *arguments: object) -> T:
    """Return what `function` returns, which is a function of a module. Raises what it raises."""
    values: Iterator[tuple[T]] = each(_alone, function, arguments)
    return next(values)[0]


def _alone(function: Callable[..., T], arguments: tuple[object, ...]) -> Iterator[tuple[T]]:
    yield (function(*arguments),)


def main() -> None:
    """Answer the request on standard input."""
    function, arguments = pickle.load(sys.stdin.buffer)
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as out:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a library may print
        try:
            for value in function(*arguments):
                pickle.dump((value, None), out)
                out.flush()
            pickle.dump((None, None), out)
        except Exception as error:
            pickle.dump((None, error), out)


if __name__ == "__main__":
    main()
