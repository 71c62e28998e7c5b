"""The socket between a resident desk-rag and its clients: where it is, who may use it, and its lines.

Each message is one line of JSON. A client sends one request; the resident process answers with any number of messages
and ends with one that has the key `end`, `declined` or `error`. Imports nothing heavy: a client starts in moments.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from desk_rag import __version__
from desk_rag.errors import ForeignPlace
from desk_rag.owned_directory import OwnedDirectory

PROTOCOL = 1
SOCKET = "resident.sock"
MOST_REQUEST = 256 * 1024
"""Maximum bytes of a request, which holds a question, folders and settings."""
MOST_MESSAGE = 16 * 1024 * 1024
"""Maximum bytes of a message to a client, which may hold the text of a thousand passages."""
CONNECT_SECONDS = 1.0
REQUEST_SECONDS = 5.0
"""Seconds within which a client must send its request."""
_LONGEST_PATH = 100
"""Maximum bytes of a socket's path; systems allow 104 or 108."""
NEW_FOLDER = "a folder was never indexed"
"""Reason to decline a question whose folder is not indexed yet."""
Message = Mapping[str, object]


class NoResident(Exception):
    """No resident process can be reached, or it declines the request; the message is the reason, if there is one."""


def is_supported() -> bool:
    """Return whether this system has Unix sockets."""
    return hasattr(socket, "AF_UNIX") and os.name == "posix"


@contextmanager
def address(data_dir: Path) -> Iterator[str]:
    """Context with the socket's address, as a path through an open handle of its folder. Raises NoResident."""
    try:
        with OwnedDirectory(data_dir).opened(data_dir / "run") as folder:
            path = str(folder.reach(SOCKET))
            if len(os.fsencode(path)) > _LONGEST_PATH:
                raise NoResident(f"the path of the data directory is too long for a socket: {data_dir}")
            yield path
    except (OSError, ForeignPlace) as error:
        raise NoResident("") from error


def is_same_user(connection: socket.socket) -> bool:
    """Return whether the process at the other end belongs to this user."""
    system: str = sys.platform
    if system == "linux":
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", credentials)[1]) == os.geteuid()
    if system == "darwin":
        local_peercred, version_uid = 1, struct.Struct("=II")
        credentials = connection.getsockopt(0, local_peercred, 76)  # struct xucred
        return int(version_uid.unpack_from(credentials)[1]) == os.geteuid()
    return False


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


def greeting() -> dict[str, object]:
    """Return the fields with which every request begins."""
    return {"protocol": PROTOCOL, "version": __version__}


class Lines:
    """Reads lines of limited length from a socket."""

    def __init__(self, connection: socket.socket, most: int) -> None:
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
