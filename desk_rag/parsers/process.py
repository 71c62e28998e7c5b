"""The parent's side of the parser process: start, ask, and replace it after a crash, a time-out or long use.

Knows frames and limits; knows no format. The child gets bytes and a file name, never a path to open.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from desk_rag.errors import BrokenDocument, UnreadableDocument

TRY_AGAIN = "It will be read again at the next sweep."
_START_SECONDS = 60.0
_ANSWER_BYTES = 1024 * 1024 * 1024
_FILES_PER_PROCESS = 2000
"""Then a fresh one: native parsers leak a little."""


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    files: int = 0


class ParserProcess:
    """One long-lived child; safe to call from several threads, which take turns."""

    def __init__(self, memory_mib: int) -> None:
        self._memory_mib = memory_mib
        self._lock = threading.Lock()
        self._child: _Child | None = None

    def parse(self, name: str, data: bytes, seconds: float) -> dict[str, object]:
        """The child's JSON reply for a file called `name`.

        Raises BrokenDocument, with a message that is a predicate, when the child dies or runs longer than `seconds`.
        """
        with self._lock:
            used = self._child is not None
            answer = self._ask(name, data, seconds)
            # A child that served others may have been killed from outside since; a fresh one tells whose fault it is.
            if answer is None and used:
                answer = self._ask(name, data, seconds)
            if answer is None:
                raise BrokenDocument(f"crashed its parser or needed more than {self._memory_mib} MiB of memory")
            return answer

    def _ask(self, name: str, data: bytes, seconds: float) -> dict[str, object] | None:
        """The reply; None where the child died over it. Raises BrokenDocument where it ran too long."""
        child = self._child or self._start()
        child.files += 1
        answer, late = self._exchange(child.process, {"name": name, "seconds": seconds}, data, seconds)
        if answer is None or answer.get("last") or child.files >= _FILES_PER_PROCESS:
            self._stop()
        if late:
            raise BrokenDocument(
                f"took longer than {seconds:g} s to parse",
                remedy="Raise parser_seconds in the settings if the file is worth the wait.",
            )
        return answer

    def close(self) -> None:
        """End the child; a later `parse` starts another."""
        with self._lock:
            self._stop()

    @property
    def pid(self) -> int | None:
        """Of the child, while there is one."""
        return self._child.process.pid if self._child else None

    def _start(self) -> _Child:
        package = Path(__file__).resolve().parent.parent.parent
        # -P and an explicit path: a json.py in the folder that desk-rag was started in must not be imported.
        environment = {**os.environ, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "desk_rag.parsers", str(self._memory_mib)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C in the terminal is the parent's business
        )
        self._child = _Child(process)
        ready, _ = self._exchange(process, None, b"", _START_SECONDS)
        if ready is None:
            self._stop()
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
        process.wait()

    @staticmethod
    def _exchange(
        process: subprocess.Popen[bytes], header: dict[str, object] | None, data: bytes, seconds: float
    ) -> tuple[dict[str, object] | None, bool]:
        """(answer or None, whether time ran out). `header` None only waits for the child to be ready."""
        assert process.stdin is not None and process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()  # which ends the blocking read below

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            if header is not None:
                write_frame(process.stdin, header, data)
            frame = read_frame(process.stdout)
            answer = None if frame is None else frame[0] if header is None else json.loads(frame[1])
            return (answer if isinstance(answer, dict) else None), late.is_set()
        except (OSError, ValueError):
            return None, late.is_set()
        finally:
            timer.cancel()


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
