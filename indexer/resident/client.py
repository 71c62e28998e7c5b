"""Ask the resident process; whoever finds none, or one that declines, answers by itself."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.errors import Cancelled, DeskRagError
from desk_rag.indexer.resident.protocol import (
    MOST_MESSAGE,
    Connection,
    Lines,
    Message,
    NoResident,
    decode,
    encode,
    greeting,
    transport,
)

if TYPE_CHECKING:
    from desk_rag.answering.events import AnswerEvent

_FIRST_SECONDS = 3.0
"""Time in which a resident process confirms a request; one that is stopped or stuck does not."""
_POLL_SECONDS = 0.05


class ResidentError(DeskRagError):
    """An error that the resident process reports to the user."""

    def __init__(self, message: str, remedy: str, exit_code: int) -> None:
        super().__init__(message, remedy=remedy)
        self.exit_code = exit_code


class ResidentEnded(ResidentError):
    """The resident process ended before its answer did."""


def request(
    data_dir: Path,
    message: Message,
    stop: Callable[[], bool] = lambda: False,
    *,
    stop_seconds: float = math.inf,
) -> Generator[Message, None, None]:
    """Send a request and yield the messages of the answer, without the first and the last, which frame it.

    After `stop()` turns true the resident process is told so, and what it still sends is passed on. Raises NoResident
    before the first message if there is no process to ask; DeskRagError with what it reports; Cancelled if nothing
    comes within `stop_seconds` after the stop.
    """
    yield from answer(send(data_dir, message), stop, stop_seconds=stop_seconds)


def send(data_dir: Path, message: Message) -> Connection:
    """Send a request and return the connection for `answer`. Raises NoResident if there is no process to ask."""
    try:
        connection = transport().connect(data_dir.expanduser().absolute())
    except OSError as error:  # nobody listens: a process ended without removing its socket
        raise NoResident("") from error
    try:
        connection.sendall(encode({**greeting(), **message}))
    except OSError as error:
        connection.close()
        raise NoResident("") from error
    return connection


def answer(
    connection: Connection,
    stop: Callable[[], bool] = lambda: False,
    *,
    first_seconds: float = _FIRST_SECONDS,
    poll_seconds: float = _POLL_SECONDS,
    stop_seconds: float = math.inf,
) -> Generator[Message, None, None]:
    """Yield the messages of the answer to what was sent, as `request` does, and close the connection.

    The first message may take `first_seconds`; `stop` is asked every `poll_seconds` and after each message.
    """
    with connection:
        connection.settimeout(poll_seconds)
        yield from _messages(connection, stop, time.monotonic() + first_seconds, stop_seconds)


def _messages(
    connection: Connection, stop: Callable[[], bool], first_until: float, stop_seconds: float
) -> Iterator[Message]:
    lines, stopped_at, is_confirmed = Lines(connection, MOST_MESSAGE), math.inf, False
    while True:
        if stop() and stopped_at == math.inf:
            stopped_at = time.monotonic()
            with suppress(OSError):
                connection.sendall(b"\n")
        message = _next(lines)
        if message is None and time.monotonic() > stopped_at + stop_seconds:
            raise Cancelled("The process that answers did not react to the stop.")
        if not is_confirmed:
            if message is not None or time.monotonic() > first_until:
                _confirm(message)
                is_confirmed = True
            continue
        if message is None:
            continue
        if "error" in message:
            raise reported(message["error"])
        if "end" in message:
            return
        if not message:
            raise ResidentEnded(
                "The desk-rag that was answering has ended.", "Ask again; this process then answers by itself.", 1
            )
        yield message


def _confirm(first: Message | None) -> None:
    if first is None:
        raise NoResident("it does not answer")
    if "began" not in first:
        raise NoResident(str(first.get("declined", "")))


def _next(lines: Lines) -> Message | None:
    """Return the next message, an empty one at the end; None if there was none in one poll."""
    try:
        line = lines.read()
        return decode(line) if line else {}
    except TimeoutError:
        return None
    except (OSError, ValueError):
        return {}


def answers(messages: Iterator[Message], count: int) -> Generator[Iterator[AnswerEvent], None, None]:
    """Yield the events of each of `count` answers to one request; read those of one before going on to the next.

    An answer's error is raised where its events are read, and so is NoResident where the process has ended before.
    """
    for _ in range(count):
        yield _events_of_next(messages)


def _events_of_next(messages: Iterator[Message]) -> Iterator[AnswerEvent]:
    from desk_rag.indexer.resident import values

    for message in messages:
        if "answered" in message:
            return
        if "failed" in message:
            raise reported(message["failed"])
        if "kind" in message:
            yield values.to_event(message)
    raise NoResident("it has ended")


def reported(error: object) -> DeskRagError:
    """Return the error whose fields the resident process sent, as `protocol.fault` makes them."""
    fields = error if isinstance(error, dict) else {}
    code, message, remedy = fields.get("exit_code"), str(fields.get("message", "")), str(fields.get("remedy", ""))
    if code == Cancelled.exit_code:
        return Cancelled(message, remedy=remedy)
    return ResidentError(message, remedy, code if isinstance(code, int) else 1)
