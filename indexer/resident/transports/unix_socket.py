"""The Unix socket of a resident process, in the data directory: who may use it, and how long paths are reached."""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from desk_rag.errors import ForeignPlace
from desk_rag.indexer.resident.protocol import CONNECT_SECONDS, NoResident
from desk_rag.owned_directory import OwnedDirectory

SOCKET = "resident.sock"
_LONGEST_PATH = 100
"""Maximum bytes of a socket's path; systems allow 104 or 108."""
_MOST_WAITING = 64


def mark(data_dir: Path) -> Path:
    """Return the path of the socket, which exists while a process listens."""
    return data_dir / "run" / SOCKET


def connect(data_dir: Path) -> UnixConnection:
    """Connect to a process of this user. Raises NoResident, OSError."""
    if not mark(data_dir).exists():
        raise NoResident("")
    connection = UnixConnection(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        connection.settimeout(CONNECT_SECONDS)
        with address(data_dir) as path:
            connection.connect(path)
        if not connection.is_same_user():
            raise NoResident("it belongs to another user")
    except BaseException:
        connection.close()
        raise
    return connection


def listen(data_dir: Path, idle_seconds: float) -> UnixListener:
    """Return a listener whose `accept` waits so long. Raises NoResident with the reason, OSError."""
    return UnixListener(data_dir, idle_seconds)


class UnixConnection:
    """A connected socket."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self.recv, self.sendall, self.settimeout = connected.recv, connected.sendall, connected.settimeout
        self.connect, self.close = connected.connect, connected.close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def is_same_user(self) -> bool:
        """Return whether the process at the other end belongs to this user."""
        return is_same_user(self._socket)

    def has_more(self) -> bool:
        """Return whether something has arrived or the other end has closed."""
        try:
            return bool(select.select([self._socket], [], [], 0)[0])
        except (OSError, ValueError):
            return True


class UnixListener:
    """A listening socket that only its owner can use."""

    def __init__(self, data_dir: Path, idle_seconds: float) -> None:
        self._data_dir = data_dir
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with address(data_dir) as path:
                if _is_served(path):
                    raise NoResident("another desk-rag answers already")
                self._remove()
                self._socket.bind(path)
                Path(path).chmod(0o600)
            self._socket.listen(_MOST_WAITING)
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(idle_seconds)

    def accept(self) -> UnixConnection:
        """Return the next connection. Raises TimeoutError if none comes for a while, OSError once it is closed."""
        return UnixConnection(self._socket.accept()[0])

    def close(self) -> None:
        """Accept no more, and remove the socket."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._socket.close()
        self._remove()

    def _remove(self) -> None:
        with suppress(OSError, ForeignPlace):
            OwnedDirectory(self._data_dir).remove_socket(mark(self._data_dir))


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


def _is_served(path: str) -> bool:
    """Return whether a process is listening on this socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, suppress(OSError):
        probe.settimeout(CONNECT_SECONDS)
        probe.connect(path)
        return True
    return False
