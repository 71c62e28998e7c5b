"""A program in a real pseudo-terminal, its raw bytes, and the screen they draw."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte
from wcwidth import wcwidth

ROOT = Path(__file__).resolve().parents[2]
OSC = re.compile(rb"\x1b[\]PX^_][^\x07\x1b]*")
_SIZES = ("COLUMNS", "LINES")
"""Would be believed instead of the size of the terminal; test runners set them."""
_CAN_SYNC, _SYNCS = b"\x1b[?2026$p", b"\x1b[?2026;2$y"
_FRAME_BEGINS, _FRAME_ENDS = b"\x1b[?2026h", b"\x1b[?2026l"


class Terminal:
    """Starts `python ARGUMENTS` with a terminal of its own as its controlling terminal."""

    def __init__(
        self,
        arguments: list[str],
        columns: int = 100,
        rows: int = 30,
        env: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
    ) -> None:
        """`before` is a command that takes another one as its last arguments and becomes it."""
        self.raw = b""
        self.code: int | None = None
        self._has_ended = False
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        own = {name: value for name, value in os.environ.items() if name not in _SIZES}
        environment = {**own, "TERM": "xterm-256color", "COLORTERM": "truecolor", **(env or {})}
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            command = [*before, sys.executable, *arguments]
            os.execvpe(command[0], command, environment)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    @property
    def text(self) -> str:
        """The screen, row by row."""
        return "\n".join(_row(self._screen.buffer[y], self._screen.columns) for y in range(self._screen.lines))

    @property
    def _draws(self) -> bool:
        """Whether a frame has begun and not ended, so that the screen shows parts of two."""
        return self.raw.rfind(_FRAME_BEGINS) > self.raw.rfind(_FRAME_ENDS)

    def send(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def send_bytes(self, data: bytes) -> None:
        os.write(self._fd, data)

    def pause(self, seconds: float) -> None:
        """Let the program read what was sent."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._read(max(0.0, end - time.monotonic()))

    def hang_up(self) -> None:
        """Close the terminal, as when its window or connection is closed."""
        os.close(self._fd)
        self._fd = -1

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._screen.resize(rows, columns)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def until(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        """Read until `condition` holds for a whole frame; fails with the screen after `seconds`."""
        end = time.monotonic() + seconds
        while self._draws or not condition():
            assert not self._has_ended, f"the program has ended; the screen:\n{self.text}"
            assert time.monotonic() < end, f"did not happen within {seconds} s; the screen:\n{self.text}"
            self._read(0.1)

    def wait(self, seconds: float = 20.0) -> int:
        """Read to the end and return the exit code."""
        end = time.monotonic() + seconds
        while self.code is None:
            assert time.monotonic() < end, f"did not end within {seconds} s; the screen:\n{self.text}"
            self._read(0.05)
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.code = os.waitstatus_to_exitcode(status)
        self._read(0.2)
        return self.code

    def close(self) -> None:
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        if self._fd >= 0:
            os.close(self._fd)

    def _read(self, seconds: float) -> None:
        if self._fd < 0:
            time.sleep(seconds)
            return
        ready, _, _ = select.select([self._fd], [], [], seconds)
        if not ready:
            return
        try:
            data = os.read(self._fd, 65536)
        except OSError:
            self._has_ended = True
            return
        known = len(self.raw)
        self.raw += data
        self._stream.feed(data)
        if _CAN_SYNC in self.raw[max(0, known - len(_CAN_SYNC)) :]:
            self.send_bytes(_SYNCS)

    def was_restored(self) -> bool:
        """True if the program left the alternate screen, showed the cursor and turned mouse reports off, in the end."""
        pairs = ((b"\x1b[?1049h", b"\x1b[?1049l"), (b"\x1b[?25l", b"\x1b[?25h"), (b"\x1b[?1000h", b"\x1b[?1000l"))
        return all(self.raw.rfind(off) > self.raw.rfind(on) >= 0 for on, off in pairs)


def _row(cells: Mapping[int, pyte.screens.Char], columns: int) -> str:
    """Return a row as text; pyte's own `display` fails where a wide character was overwritten by half."""
    row: list[str] = []
    for column in range(columns):
        character = cells[column].data
        is_second_half = not character and row and row[-1] and wcwidth(row[-1][0]) == 2
        row.append(character or ("" if is_second_half else " "))
    return "".join(row)
