"""Search raw files for text that must not be in them any more, in a process of its own.

A program that opens a file of an open SQLite database and closes it again loses the locks of its own connections
(POSIX): another process then takes the write-ahead log for its own and deletes it. So no process that may have the
catalog open reads its files directly.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_READ_AT_ONCE = 16 << 20


class SearchFailed(Exception):
    """The files could not be searched."""


def files_with(pieces: Sequence[bytes], files: Sequence[Path]) -> list[Path]:
    """Return the files that contain one of the pieces. Raises SearchFailed."""
    if not pieces or not files:
        return []
    wanted = {"pieces": [piece.hex() for piece in pieces], "files": [os.fsencode(file).hex() for file in files]}
    # -I: nothing from the current folder or from the environment is imported.
    command = [sys.executable, "-I", str(Path(__file__).resolve())]
    try:
        done = subprocess.run(command, input=json.dumps(wanted).encode(), capture_output=True, check=True)
        return [files[number] for number in json.loads(done.stdout)]
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise SearchFailed from error


def _search(pieces: Sequence[bytes], files: Sequence[bytes]) -> list[int]:
    pattern = re.compile(b"|".join(map(re.escape, pieces)))
    longest = max(map(len, pieces))
    return [number for number, file in enumerate(files) if any(map(pattern.search, _blocks(file, longest)))]


def _blocks(file: bytes, overlap: int) -> Iterator[bytes]:
    with open(file, "rb") as opened:  # noqa: PTH123  # its name may be no text
        tail = b""
        while block := opened.read(_READ_AT_ONCE):
            yield tail + block
            tail = block[-overlap:]


def _main() -> None:
    asked = json.loads(sys.stdin.buffer.read())
    pieces, files = ([bytes.fromhex(one) for one in asked[name]] for name in ("pieces", "files"))
    sys.stdout.write(json.dumps(_search(pieces, files)))


if __name__ == "__main__":
    _main()
