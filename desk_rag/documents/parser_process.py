"""Run the parser process: start it, send requests, and replace it after a crash, a time-out, a stop or long use.

The child gets bytes and a file name, never a path to open. It parses, and cuts the text into chunks if it is given
their sizes and a tokenizer.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from weakref import WeakSet

from desk_rag.errors import BrokenDocument, Cancelled, UnreadableDocument

TRY_AGAIN = "It will be read again at the next sweep."
_START_SECONDS = 60.0
_ANSWER_BYTES = 256 * 1024 * 1024
_GUARD_SECONDS = 0.05
"""Seconds between checks of the clock and of `stop` while the child works."""
_FILES_PER_PROCESS = 2000
"""Files after which the child is replaced: native parsers leak a little memory."""
_ASKED_TO_END = tuple(-getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGINT") if hasattr(signal, name))
"""Exit codes of a child that was asked to end, as all processes are when a service stops or the user logs out."""
_MOST_TRIES = 3


_children: WeakSet[subprocess.Popen[bytes]] = WeakSet()
_this_process_ends = threading.Event()


def kill_children() -> None:
    """Kill every parser process at once, because this process ends without its usual end.

    Threads that wait for one get Cancelled: no file may be taken for the cause.
    """
    _this_process_ends.set()
    for process in list(_children):
        process.kill()


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    files: int = 0
    tokenizer: str = ""
    """The serialized tokenizer it was sent; empty before that."""


@dataclass(frozen=True, slots=True)
class Cutting:
    """Instructions for the child: how to cut text into chunks."""

    tokenizer_json: str
    sizes: tuple[int, int, int]
    """Smallest, target and largest chunk, in tokens."""


@dataclass(frozen=True, slots=True)
class Request:
    """One file for the child."""

    name: str
    data: bytes
    seconds: float
    """Time limit of the whole request; the child is killed after that."""
    most_text: int
    """Bytes of text to keep; the rest is cut off."""
    allow_secrets: bool = False
    """Accept content that is a private key or an access token."""
    cutting: Cutting | None = None
    """None: the reply holds blocks instead of chunks."""
    ocr_seconds: float = 0.0
    """Time for recognising text in pictures of text, in addition to `seconds`; 0 for none."""
    as_archive: bool = False
    """Read the files inside."""
    attachments: bool = True
    """Read the files attached to a mail."""


class ParserProcess:
    """One long-lived child; safe to call from several threads, which take turns."""

    def __init__(self, memory_mib: int) -> None:
        self._memory_mib = memory_mib
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._exit_code: int | None = None
        """Exit code of the last child that ended or was stopped."""

    def parse(self, request: Request, stop: Callable[[], bool]) -> dict[str, object]:
        """The child's JSON reply.

        Raises BrokenDocument, with a message that is a predicate, when the child dies or runs too long; Cancelled soon
        after `stop` answers True, which ends the child, and when this process ends; UnreadableDocument if somebody
        else ends one child after the other.
        """
        with self._lock:
            for _ in range(_MOST_TRIES):
                used = self._child is not None
                answer = self._ask(request, stop)
                if answer is not None:
                    return answer
                if _this_process_ends.is_set():
                    raise Cancelled("Reading was cancelled.")
                # A used child may have been killed from outside; a fresh one shows whether the file is at fault.
                if not used and self._exit_code not in _ASKED_TO_END:
                    raise BrokenDocument(f"crashed its parser or needed more than {self._memory_mib} MiB of memory")
            raise UnreadableDocument("could not be read: another program ended the parser process", remedy=TRY_AGAIN)

    def _ask(self, request: Request, stop: Callable[[], bool]) -> dict[str, object] | None:
        """Return the reply; None if the child died. Raises BrokenDocument if it ran too long, or Cancelled."""
        child = self._child or self._start(stop)
        if child is None:
            return None
        child.files += 1
        header: dict[str, object] = {"name": request.name, "seconds": request.seconds, "most_text": request.most_text}
        header |= {"allow_secrets": request.allow_secrets, "ocr_seconds": request.ocr_seconds}
        header |= {"as_archive": request.as_archive, "attachments": request.attachments}
        guard = _Guard(child.process, request.seconds + request.ocr_seconds, stop)
        answer: dict[str, object] | None = {}
        if request.cutting is not None:
            header["sizes"] = request.cutting.sizes
            if child.tokenizer != request.cutting.tokenizer_json:
                serialized = request.cutting.tokenizer_json.encode("utf-8")
                answer = self._exchange(child.process, {"tokenizer": True}, serialized, guard)
                child.tokenizer = request.cutting.tokenizer_json
        if answer is not None:
            answer = self._exchange(child.process, header, request.data, guard)
        if answer is None or answer.get("last") or child.files >= _FILES_PER_PROCESS:
            self._stop()
        guard.check()
        return answer

    def close(self) -> None:
        """Stop the child; a later `parse` starts another."""
        with self._lock:
            self._stop()

    @property
    def pid(self) -> int | None:
        """Process id of the child; None while there is none."""
        return self._child.process.pid if self._child else None

    def _start(self, stop: Callable[[], bool]) -> _Child | None:
        """Start a child; return None if it was ended from outside. Raises UnreadableDocument or Cancelled."""
        package = Path(__file__).resolve().parent.parent.parent
        # -P and an explicit path: a json.py in the folder that desk-rag was started in must not be imported.
        environment = {**os.environ, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}
        environment["TOKENIZERS_PARALLELISM"] = "false"  # its threads would count against the memory limit
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "desk_rag.documents.parsers", str(self._memory_mib)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C in the terminal is the parent's business
        )
        self._child = _Child(process)
        _children.add(process)
        guard = _Guard(process, _START_SECONDS, stop)
        if self._exchange(process, None, b"", guard) is None:
            self._stop()
            if guard.stopped:
                guard.check()
            if _this_process_ends.is_set() or self._exit_code in _ASKED_TO_END:
                return None
            raise UnreadableDocument("could not be read: the parser process did not start", remedy=TRY_AGAIN)
        return self._child

    def _stop(self) -> None:
        if self._child is None:
            return
        process, self._child = self._child.process, None
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._exit_code = process.wait()

    @staticmethod
    def _exchange(
        process: subprocess.Popen[bytes], header: dict[str, object] | None, data: bytes, guard: _Guard
    ) -> dict[str, object] | None:
        """Return the reply, or None if there is none. With `header` None, only wait for the child to be ready."""
        assert process.stdin is not None and process.stdout is not None
        with guard:
            try:
                if header is not None:
                    write_frame(process.stdin, header, data)
                frame = read_frame(process.stdout)
                answer = None if frame is None else frame[0] if header is None else json.loads(frame[1])
                return answer if isinstance(answer, dict) else None
            except (OSError, ValueError):
                return None


class _Guard:
    """Kills a child that runs too long or is no longer needed, which ends a blocking read of its answer."""

    def __init__(self, process: subprocess.Popen[bytes], seconds: float, stop: Callable[[], bool]) -> None:
        self._process, self._seconds, self._stop = process, seconds, stop
        self._end = time.monotonic() + seconds
        self._done = threading.Event()
        self.late = self.stopped = False

    def __enter__(self) -> None:
        self._done = threading.Event()
        threading.Thread(target=self._watch, args=(self._done,), name="parser-guard", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._done.set()

    def check(self) -> None:
        """Raise Cancelled or BrokenDocument if the child was killed."""
        if self.stopped:
            raise Cancelled("Reading was cancelled.")
        if self.late:
            raise BrokenDocument(
                f"took longer than {self._seconds:g} s to parse",
                remedy="Raise parser_seconds in the settings if the file is worth the wait.",
            )

    def _watch(self, done: threading.Event) -> None:
        while not done.wait(max(0.0, min(_GUARD_SECONDS, self._end - time.monotonic()))):
            self.stopped = self._stop()
            self.late = not self.stopped and time.monotonic() >= self._end
            if self.stopped or self.late:
                self._process.kill()
                return


def write_frame(pipe: IO[bytes], header: dict[str, object], body: bytes) -> None:
    """Write one frame: lengths, JSON header, body."""
    head = json.dumps(header).encode("ascii")
    pipe.write(len(head).to_bytes(4, "big") + len(body).to_bytes(8, "big") + head)
    pipe.write(body)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> tuple[dict[str, object], bytes] | None:
    """Read one frame; None at the end of the stream. Raises ValueError for a frame that is cut off or malformed."""
    lengths = pipe.read(12)
    if not lengths:
        return None
    head_bytes, body_bytes = int.from_bytes(lengths[:4], "big"), int.from_bytes(lengths[4:], "big")
    if len(lengths) < 12 or head_bytes > 65536 or body_bytes > _ANSWER_BYTES:
        raise ValueError("malformed frame")
    head, body = pipe.read(head_bytes), pipe.read(body_bytes)
    if len(head) < head_bytes or len(body) < body_bytes:
        raise ValueError("frame cut off")
    header = json.loads(head)
    if not isinstance(header, dict):
        raise ValueError("malformed frame")
    return header, body
