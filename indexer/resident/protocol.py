"""Messages between a resident desk-rag and its clients: lines over a Unix socket or a named pipe.

Each message is one line of JSON. A client sends one request; the resident process answers with any number of messages
and ends with one that has the key `end`, `declined` or `error`. Imports nothing heavy: a client starts in moments.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, Self

from desk_rag import __version__
from desk_rag.errors import DeskRagError

PROTOCOL = 1
MOST_REQUEST = 256 * 1024
"""Maximum bytes of a request, which holds a question, folders and settings."""
MOST_MESSAGE = 16 * 1024 * 1024
"""Maximum bytes of a message to a client, which may hold the text of a thousand passages."""
CONNECT_SECONDS = 1.0
REQUEST_SECONDS = 5.0
"""Seconds within which a client must send its request."""
NEW_FOLDER = "a folder was never indexed"
"""Reason to decline a question whose folder is not indexed yet."""
Message = Mapping[str, object]


class NoResident(Exception):
    """No resident process can be reached, or it declines the request; the message is the reason, if there is one."""


class Connection(Protocol):
    """A connection between a client and the resident process, over a Unix socket or a named pipe."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def settimeout(self, seconds: float) -> None: ...

    def recv(self, size: int) -> bytes:
        """Return what has arrived, at most `size` bytes; b"" at the end. Raises TimeoutError, OSError."""

    def sendall(self, data: bytes) -> None: ...

    def is_same_user(self) -> bool:
        """Return whether the process at the other end belongs to this user; asked once, by the resident process."""

    def has_more(self) -> bool:
        """Return whether something has arrived or the other end has closed."""

    def close(self) -> None: ...


class Listener(Protocol):
    """Accepts connections until it is closed."""

    def accept(self) -> Connection:
        """Return the next connection. Raises TimeoutError if none comes for a while, OSError once it is closed."""

    def close(self) -> None:
        """Accept no more, and remove what told clients of this process."""


class Transport(Protocol):
    """A way to reach the resident process: the modules `unix_socket` and `named_pipe`."""

    def connect(self, data_dir: Path) -> Connection:
        """Connect to a process of this user. Raises NoResident, OSError."""

    def listen(self, data_dir: Path, idle_seconds: float) -> Listener:
        """Return a listener whose `accept` waits so long. Raises NoResident with the reason, OSError."""

    def mark(self, data_dir: Path) -> Path:
        """Return the path that exists while a process listens."""


def has_unix_sockets() -> bool:
    """Return whether this system has Unix sockets that Python can use."""
    return hasattr(socket, "AF_UNIX") and os.name == "posix"


def transport() -> Transport:
    """Return the way of this system: a Unix socket, or a named pipe where there are none (Windows)."""
    if has_unix_sockets():
        from desk_rag.indexer.resident.transports import unix_socket

        return unix_socket
    from desk_rag.indexer.resident.transports import named_pipe

    return named_pipe


def encode(message: Message) -> bytes:
    """Return a message as a line."""
    return json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"


def decode(line: bytes) -> dict[str, object]:
    """Return the message of a line. Raises ValueError."""
    try:
        message = json.loads(line)
    except RecursionError as error:
        raise ValueError("a message nests too deep") from error
    if not isinstance(message, dict):
        raise ValueError("a message is an object")
    return message


def fault(error: DeskRagError) -> Message:
    """Return the fields that tell a client of an error."""
    return {"message": error.message, "remedy": error.remedy, "exit_code": error.exit_code}


def greeting() -> dict[str, object]:
    """Return the fields with which every request begins."""
    return {"protocol": PROTOCOL, "version": __version__}


class Readable(Protocol):
    """Source that lines are read from."""

    def recv(self, size: int, /) -> bytes: ...


class Lines:
    """Reads lines of limited length from a connection."""

    def __init__(self, connection: Readable, most: int) -> None:
        self._connection, self._most = connection, most
        self._buffer = bytearray()

    def read(self) -> bytes:
        """Return the next line; b"" at the end. Raises ValueError if it is too long, TimeoutError, OSError."""
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > self._most:
                raise ValueError(f"a line of more than {self._most:,} bytes")
            piece = self._connection.recv(65536)
            if not piece:
                return b""
            self._buffer += piece
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line
