"""The two ends of a process that answers and indexes for one UI, so that loading models holds up no key.

The UI hands over a connection of its own for each request, through a socket that both have from the start; when that
closes, because the UI quits or dies, the process ends.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from desk_rag.config import Settings
from desk_rag.errors import Cancelled, DeskRagError, ModelError
from desk_rag.indexer.resident import client, values
from desk_rag.indexer.resident.attended import Attended, Requests
from desk_rag.indexer.resident.facts import IndexingState, Started
from desk_rag.indexer.resident.keeping import environment
from desk_rag.indexer.resident.protocol import MOST_REQUEST, Message, NoResident, encode, greeting
from desk_rag.indexer.resident.server import Server
from desk_rag.indexer.resident.transports.unix_socket import UnixConnection
from desk_rag.ingest.events import IndexEvent

if TYPE_CHECKING:
    from desk_rag.answering.conversation.turns import Request
    from desk_rag.answering.events import AnswerEvent
    from desk_rag.store.types import PurgeReport

_POLL_SECONDS = 1.0
STOP_SECONDS = 2.0
"""Seconds that a process gets to react to the stop of a question; one that is suspended never does."""
_LEAVE_SECONDS = 2.5
"""Seconds that the process gets to end its indexing and close the store."""
_MOST_REPORT = 400
_MOST_QUESTION = MOST_REQUEST - 16 * 1024
"""Maximum bytes of a message that asks a question, without the greeting and the settings."""


def ask(
    send: Callable[[bool, Callable[[], bool]], Iterator[AnswerEvent]],
    stop: Callable[[], bool],
    wait: Callable[[], bool],
) -> Iterator[AnswerEvent]:
    """Yield the events of another process's answer; it is asked anew, without waiting, once `wait` turns false.

    `send` asks that process, which waits for files if its first argument is true, until its second holds.
    """
    from desk_rag.answering.events import FilesWaiting

    waits = wait()

    def is_hurried() -> bool:
        return waits and not wait() and not stop()

    for event in send(waits, lambda: stop() or is_hurried()):
        if is_hurried():
            break
        yield event
        waits = waits and isinstance(event, FilesWaiting)
    if is_hurried():
        yield from send(False, stop)


def question(request: Request, *, wait: bool) -> Message:
    """Return the message that asks `request`, with as many of its last turns as fit. Raises DeskRagError."""
    while True:
        message = {"do": "ask", "request": values.plain(request), "wait": wait}
        if len(encode(message)) <= _MOST_QUESTION:
            return message
        if not request.earlier:
            remedy = "Save the text as a file in one of your folders, and ask about it."
            raise DeskRagError("The question is too long.", remedy=remedy)
        request = replace(request, earlier=request.earlier[(len(request.earlier) + 1) // 2 :])


def several(
    requests: Sequence[Request], send: Callable[[Message], Generator[Message, None, None]]
) -> Generator[Iterator[AnswerEvent], None, None]:
    """Yield the events of the answers to as many of the first questions as fit into one message, which `send` sends.

    NoResident is raised where the first events are read.
    """

    def message() -> Message:
        return {"do": "ask_all", "wait": True, "requests": values.plain(batch)}

    def sent() -> Generator[Message, None, None]:
        if len(encode(message())) > _MOST_QUESTION:
            raise NoResident("the question is too long")
        yield from send(message())

    batch = list(requests)
    while len(batch) > 1 and len(encode(message())) > _MOST_QUESTION:
        batch.pop()
    with closing(sent()) as messages:
        yield from client.answers(messages, len(batch))


class EndedAtStart(ModelError):
    """The process ended before it could answer, and did not say why."""


class AttendedProcess:
    """An engine in a process of its own; has the methods of `Attended`."""

    def __init__(self, settings: Settings, folders: Sequence[Path], settings_file: Path | None = None) -> None:
        self._settings, self._folders, self._settings_file = settings, tuple(folders), settings_file
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process runs
        self._sending = threading.Lock()
        self._stopping = threading.Event()
        self._news: Iterator[Message] | None = None
        """Messages that the process sends from its start on."""
        self.has_ended = False
        """True once the process has ended by itself."""

    @property
    def pid(self) -> int:
        """Process id; 0 before the start."""
        return 0 if self._process is None else self._process.pid

    def launch(self) -> None:
        """Start the process, which begins to load; `start` waits for it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs, self._sending:
            if self._stopping.is_set():
                ours.close()
                raise Cancelled("The start was stopped.")
            self._control = ours
            self._process = subprocess.Popen(
                [sys.executable, "-m", "desk_rag.indexer.resident.attending", str(theirs.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=environment(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        assert self._process.stdin is not None
        with self._process.stdin as stdin, suppress(BrokenPipeError):
            fields = values.engine_fields(self._settings, self._folders, self._settings_file)
            stdin.write(json.dumps(fields).encode())
        self._news = self._messages({"do": "attend"}, self._stopping.is_set, poll_seconds=_POLL_SECONDS)

    def start(self, report: Callable[[str], None], listen: Callable[[IndexEvent], None]) -> Started:
        """Start the process, unless it was launched, and wait until it can answer. Raises what it reports."""
        try:
            if self._news is None:
                self.launch()
            report("starting")
            assert self._news is not None
            messages = self._news
            for message in messages:
                if "started" in message:
                    listening = threading.Thread(target=self._hear, args=(messages, listen), name="hear", daemon=True)
                    listening.start()
                    return cast(Started, values.built(Started, message["started"]))
                _tell(message, report, listen)
            raise NoResident("")
        except (client.ResidentEnded, NoResident) as error:
            if self._stopping.is_set():
                raise Cancelled("The start was stopped.") from error
            self._release()
            reason = str(error) if isinstance(error, NoResident) else ""
            last_words = self._last_words()
            self.stop()
            if reason:
                ending = f"The process that answers has ended: {reason}.{last_words}"
                raise ModelError(ending, remedy="Start desk-rag again.") from error
            ending = f"The process that answers has ended while it started.{last_words}"
            remedy = "It was started twice. Close programs that need much memory, or choose a smaller model."
            raise EndedAtStart(ending, remedy=remedy) from error
        except BaseException:
            self.stop()
            raise

    def ask(self, request: Request, stop: Callable[[], bool], wait: Callable[[], bool]) -> Iterator[AnswerEvent]:
        """Yield the events of its answer. Raises NoResident before the first if it has ended; DeskRagError."""

        def send(waits: bool, stop: Callable[[], bool]) -> Iterator[AnswerEvent]:
            messages = self._messages(question(request, wait=waits), stop, stop_seconds=STOP_SECONDS)
            return (values.to_event(message) for message in messages if "kind" in message)

        return ask(send, stop, wait)

    def ask_all(
        self, requests: Sequence[Request], stop: Callable[[], bool]
    ) -> Generator[Iterator[AnswerEvent], None, None]:
        """Yield the events of several answers. Raises NoResident."""
        yield from several(requests, lambda message: self._messages(message, stop, stop_seconds=STOP_SECONDS))

    def prefetch(self, question: str) -> None:
        """Bring nearer what `question` will need."""
        self._do("prefetch", question=question)

    def state(self) -> IndexingState:
        """Return the state of the indexing."""
        return cast(IndexingState, values.built(IndexingState, self._do("state")["state"]))

    def sweep(self) -> None:
        """Look through the folders now, if this engine indexes them."""
        self._do("sweep")

    def halt(self) -> bool:
        """Stop indexing; False if another process indexes or a step that cannot be interrupted still runs."""
        return bool(self._do("halt")["halted"])

    def resume(self, settings: Settings, folders: Sequence[Path]) -> None:
        """Index these folders with these settings from now on, after `halt`."""
        self._settings, self._folders = settings, tuple(folders)
        self._do("resume", **values.engine_fields(settings, folders))

    def forget(self, path: Path, *, keep_caches: bool) -> PurgeReport:
        """Remove what was derived from `path`, after `halt`."""
        from desk_rag.store.types import PurgeReport

        answer = self._do("forget", path=str(path), keep_caches=keep_caches)
        return cast(PurgeReport, values.built(PurgeReport, answer["report"]))

    def remove_excluded(self, paths: Iterable[Path]) -> None:
        """Remove the documents at and below `paths`, which a rule leaves out, although indexing may be paused."""
        self._do("remove_excluded", paths=[str(path) for path in paths])

    def stop(self) -> bool:
        """End the process. False if a step that cannot be interrupted kept it from ending by itself."""
        self._stopping.set()
        self._release()
        self._errors.close()
        process = self._process
        if process is None:
            return True
        try:
            process.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()  # every transaction is on disk
            process.wait()
            return False
        return True

    def _release(self) -> None:
        """Close this end of the socket, upon which the process ends."""
        with self._sending:
            control, self._control = self._control, None
        if control is not None:
            control.close()

    def _do(self, what: str, **fields: object) -> Message:
        answer = next(self._messages({"do": what, **fields}, lambda: False), None)
        if answer is None:
            raise NoResident("it has ended")
        return answer

    def _messages(
        self,
        request: Message,
        stop: Callable[[], bool],
        *,
        poll_seconds: float = 0.05,
        stop_seconds: float = math.inf,
    ) -> Generator[Message, None, None]:
        """Send a request over a connection of its own and return the messages of the answer. Raises NoResident."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs, self._sending:
                if self._control is None:
                    raise NoResident("it has ended")
                socket.send_fds(self._control, [b"+"], [theirs.fileno()])
            ours.sendall(encode({**greeting(), **request}))
        except OSError as error:
            ours.close()
            raise NoResident("it has ended") from error
        except NoResident:
            ours.close()
            raise
        # Importing libraries may keep it from answering for seconds; if it ends, the connection is closed.
        return client.answer(
            UnixConnection(ours),
            stop,
            first_seconds=math.inf,
            poll_seconds=poll_seconds,
            stop_seconds=stop_seconds,
        )

    def _hear(self, messages: Iterator[Message], listen: Callable[[IndexEvent], None]) -> None:
        with suppress(DeskRagError, NoResident):
            for message in messages:
                _tell(message, lambda _: None, listen)
        self.has_ended = not self._stopping.is_set()

    def _last_words(self) -> str:
        """Return the end of what the process printed before it ended, with a space before it; '' if nothing."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_LEAVE_SECONDS)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f" {last.strip()[:_MOST_REPORT]}" if last else ""


def _tell(message: Message, report: Callable[[str], None], listen: Callable[[IndexEvent], None]) -> None:
    if "kind" in message:
        listen(values.to_index_event(message))
    elif "report" in message:
        report(str(message["report"]))


# The other end; `attended` holds what it answers -----------------------------------------------------------------


def run(descriptor: int) -> None:
    """Answer what comes through the socket `descriptor`, until the UI closes its end or a signal arrives."""
    control = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGTERM, lambda *_: control.shutdown(socket.SHUT_RD))
    fields = json.load(sys.stdin)
    settings, folders = values.engine_arguments(fields)
    attended = Attended(settings, folders, values.settings_file(fields))
    server = Server(settings.data_dir, Requests(attended, _leave).handle)
    while True:
        try:
            _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        except OSError:
            break
        if not descriptors:
            break
        server.serve(UnixConnection(socket.socket(fileno=descriptors[0])))
    attended.stop()
    _leave()


def _leave() -> None:
    """End the process, even while a step that cannot be interrupted runs in another thread."""
    import psutil

    for child in psutil.Process().children():
        with suppress(psutil.Error):
            child.kill()
    os._exit(0)


if __name__ == "__main__":
    run(int(sys.argv[1]))
