"""Serve requests of other processes: one thread per client, limits on size, number and time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from desk_rag import __version__
from desk_rag.errors import DeskRagError, told_to_user
from desk_rag.indexer.resident.protocol import (
    MOST_REQUEST,
    PROTOCOL,
    REQUEST_SECONDS,
    Connection,
    Lines,
    Listener,
    Message,
    NoResident,
    decode,
    encode,
    fault,
    transport,
)

_log = logging.getLogger(__name__)

_MOST_CLIENTS = 8
_SEND_SECONDS = 30.0
"""Seconds that a client may take to accept a message."""
_IDLE_EVERY = 10.0
Handle = Callable[[Message, Callable[[], bool]], Iterator[Message]]
"""Function that answers a request with messages; its argument tells whether the client has gone."""


class Server:
    """Listens until stopped. Threads inherit the priority of the thread that calls `start`."""

    def __init__(
        self,
        data_dir: Path,
        handle: Handle,
        idle: Callable[[], None] = lambda: None,
        *,
        idle_every: float = _IDLE_EVERY,
    ) -> None:
        """`idle` is called every `idle_every` seconds while no client connects."""
        self._data_dir, self._handle, self._idle = data_dir.absolute(), handle, idle
        self._idle_every = max(0.05, idle_every)
        self._listener: Listener | None = None
        self._stopping = threading.Event()
        self._clients = threading.BoundedSemaphore(_MOST_CLIENTS)
        self._thread = threading.Thread(target=self._accept, name="resident", daemon=True)

    def start(self) -> str:
        """Listen; return "" or the reason why that is not possible, with nothing changed."""
        try:
            self._listener = transport().listen(self._data_dir, self._idle_every)
        except (OSError, NoResident) as error:
            return str(error) or "its socket cannot be made"
        self._thread.start()
        return ""

    def stop(self, timeout: float = 2.0) -> None:
        """Accept no more requests, and wait at most `timeout` seconds until those in progress have stopped."""
        self._stopping.set()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.drain(timeout)

    def drain(self, timeout: float) -> None:
        """Wait until all requests in progress are answered, at most `timeout` seconds."""
        end = time.monotonic() + timeout
        idle_clients = 0
        for _ in range(_MOST_CLIENTS):  # whoever holds all of them knows that nobody works any more
            idle_clients += self._clients.acquire(timeout=max(0.0, end - time.monotonic()))
        for _ in range(idle_clients):
            self._clients.release()

    def _accept(self) -> None:
        listener = self._listener
        while listener is not None and not self._stopping.is_set():
            try:
                connection = listener.accept()
            except TimeoutError:
                try:
                    self._idle()
                except Exception as error:
                    _log.error("idle work failed: %s", type(error).__name__)
                continue
            except OSError:
                return
            self.serve(connection)

    def serve(self, connection: Connection) -> None:
        """Answer the request of a client in a thread of its own, and close the connection."""
        threading.Thread(target=self._serve, args=(connection,), name="resident-client", daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        with connection, suppress(OSError, ValueError):
            connection.settimeout(REQUEST_SECONDS)
            if not connection.is_same_user():
                return
            request = decode(Lines(connection, MOST_REQUEST).read())
            connection.settimeout(_SEND_SECONDS)
            if not self._clients.acquire(blocking=False):
                connection.sendall(encode({"declined": "it is busy"}))
                return
            try:
                for message in self._answer(request, lambda: self._stopping.is_set() or connection.has_more()):
                    connection.sendall(encode(message))
            finally:
                self._clients.release()

    def _answer(self, request: Message, stop: Callable[[], bool]) -> Iterator[Message]:
        if request.get("protocol") != PROTOCOL or request.get("version") != __version__:
            yield {"declined": f"it is version {__version__}"}
            return
        try:
            for number, message in enumerate(self._handle(request, stop)):
                if not number:
                    yield {"began": True}  # not before: what is declined at once is answered by the client itself
                yield message
        except NoResident as error:
            yield {"declined": str(error)}
        except Exception as error:
            known = told_to_user(error)
            if known is None:
                _log.error("a request failed: %s", type(error).__name__, exc_info=not isinstance(error, ValueError))
                remedy = "Its log says where: logs/indexer.log in the data directory. Asking again is safe."
                known = DeskRagError(f"Something went wrong inside desk-rag ({type(error).__name__}).", remedy=remedy)
            yield {"error": fault(known)}
        else:
            yield {"end": True}
