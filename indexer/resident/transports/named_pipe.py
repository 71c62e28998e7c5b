"""The named pipe of a resident process on Windows, by `multiprocessing.connection`; there is no network port.

The pipe's name and a key are in a file of the data directory that only the user can read. Both ends prove that they
know the key, each with a number that the other has just chosen, before anything else is said. On other systems
`multiprocessing.connection` takes a Unix socket instead of the pipe: so the tests run all of this, but not the pipe.
"""

from __future__ import annotations

import hmac
import json
import os
import queue
import threading
import time
from contextlib import suppress
from multiprocessing import connection as pipes
from pathlib import Path
from typing import Any, Self

from desk_rag.errors import ForeignPlace
from desk_rag.indexer.resident.protocol import CONNECT_SECONDS, NoResident
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.owned_folder import Entry
from desk_rag.store.ownership import content_proves

NAME = "resident.pipe"
_PIECE = 65536
"""Maximum bytes of one message of the pipe."""
_NUMBER = 32
_MOST_WAITING = 64
_RETRY_SECONDS = 0.1


def mark(data_dir: Path) -> Path:
    """Return the path of the file with the pipe's name, which exists while a process listens."""
    return data_dir / "run" / NAME


def connect(data_dir: Path) -> PipeConnection:
    """Connect to a process that knows the key. Raises NoResident, OSError."""
    try:
        known = json.loads(mark(data_dir).read_text(encoding="ascii"))
        address, key = str(known["address"]), bytes.fromhex(known["key"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NoResident("") from error
    connection = PipeConnection(pipes.Client(address), key)
    try:
        connection.settimeout(CONNECT_SECONDS)
        if not connection.proves_itself():
            raise NoResident("it belongs to another user")
    except BaseException:
        connection.close()
        raise
    return connection


def listen(data_dir: Path, idle_seconds: float) -> PipeListener:
    """Return a listener whose `accept` waits so long. Raises NoResident with the reason, OSError."""
    if _is_served(data_dir):
        raise NoResident("another desk-rag answers already")
    entry = OwnedDirectory(data_dir).entry(mark(data_dir))
    if entry is not None and not content_proves(f"run/{NAME}")(entry):
        raise NoResident(f"{mark(data_dir)} belongs to another program")
    return PipeListener(data_dir, idle_seconds)


def _is_served(data_dir: Path) -> bool:
    """Return whether a process of this user listens."""
    with suppress(NoResident, OSError):
        connect(data_dir).close()
        return True
    return False


class PipeConnection:
    """One end of the pipe, used like a socket."""

    def __init__(self, pipe: Any, key: bytes) -> None:
        self._pipe, self._key = pipe, key
        self._seconds = CONNECT_SECONDS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def settimeout(self, seconds: float) -> None:
        """Let `recv` wait so long."""
        self._seconds = seconds

    def recv(self, size: int) -> bytes:
        """Return what has arrived, at most `size` bytes; b"" at the end. Raises TimeoutError, OSError."""
        try:
            if not self._pipe.poll(self._seconds):
                raise TimeoutError
            return bytes(self._pipe.recv_bytes(size))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return b""

    def sendall(self, data: bytes) -> None:
        """Send everything, in pieces that the other end accepts."""
        for begin in range(0, len(data), _PIECE):
            self._pipe.send_bytes(data[begin : begin + _PIECE])

    def has_more(self) -> bool:
        """Return whether something has arrived or the other end has closed."""
        try:
            return bool(self._pipe.poll(0))
        except (OSError, EOFError):
            return True

    def close(self) -> None:
        """Close this end."""
        with suppress(OSError):
            self._pipe.close()

    def is_same_user(self) -> bool:
        """Return whether the client knows the key, and prove that this process does."""
        theirs, own = self.recv(_NUMBER), os.urandom(_NUMBER)
        if len(theirs) != _NUMBER:
            return False
        self.sendall(own + self._proof(b"resident", theirs, own))
        return hmac.compare_digest(self.recv(_PIECE), self._proof(b"client", own, theirs))

    def proves_itself(self) -> bool:
        """Return whether the resident process knows the key, and prove that this client does."""
        own = os.urandom(_NUMBER)
        self.sendall(own)
        answer = self.recv(_PIECE)
        theirs = answer[:_NUMBER]
        if not hmac.compare_digest(answer[_NUMBER:], self._proof(b"resident", own, theirs)):
            return False
        self.sendall(self._proof(b"client", theirs, own))
        return True

    def _proof(self, role: bytes, first: bytes, second: bytes) -> bytes:
        return hmac.digest(self._key, role + first + second, "sha256")


class PipeListener:
    """Accepts in a thread of its own, because waiting for a pipe has no time limit."""

    def __init__(self, data_dir: Path, idle_seconds: float) -> None:
        self._data_dir, self._idle_seconds = data_dir, idle_seconds
        self._key, self._closed = os.urandom(_NUMBER), threading.Event()
        self._listener = pipes.Listener(backlog=_MOST_WAITING)
        self._content = json.dumps({"address": self._listener.address, "key": self._key.hex()}).encode("ascii")
        self._accepted: queue.SimpleQueue[Any] = queue.SimpleQueue()
        try:
            OwnedDirectory(data_dir).write(mark(data_dir), self._content)
        except BaseException as error:
            self._listener.close()
            raise NoResident(str(error)) if isinstance(error, ForeignPlace) else error from error
        threading.Thread(target=self._accept, name="resident-pipe", daemon=True).start()

    def accept(self) -> PipeConnection:
        """Return the next connection. Raises TimeoutError if none comes for a while, OSError once it is closed."""
        try:
            pipe = self._accepted.get(timeout=self._idle_seconds)
        except queue.Empty:
            raise TimeoutError from None
        if pipe is None:
            raise OSError("closed")
        return PipeConnection(pipe, self._key)

    def close(self) -> None:
        """Accept no more, and remove the file with the pipe's name."""
        self._closed.set()
        with suppress(OSError, ForeignPlace):
            OwnedDirectory(self._data_dir).remove(mark(self._data_dir), self._is_own)
        with suppress(OSError):
            pipes.Client(self._listener.address).close()  # wakes the thread that accepts
        self._accepted.put(None)

    def _is_own(self, entry: Entry) -> bool:
        return entry.is_file and entry.start() == self._content

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                pipe = self._listener.accept()
            except OSError:  # a client that left at once, for example
                time.sleep(_RETRY_SECONDS)
                continue
            if self._closed.is_set():
                pipe.close()
            else:
                self._accepted.put(pipe)
        self._listener.close()
