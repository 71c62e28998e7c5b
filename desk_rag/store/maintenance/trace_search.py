"""Search files for remains of removed text, in a child process that needs the standard library alone.

POSIX gives up all of a process's locks on a file as soon as the process closes any descriptor of it. If SQLite's files
were read in the process that has the catalog open, the next reader would take itself for the last one and remove the
write-ahead log under the writer.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_READ_AT_ONCE = 16 << 20


def search(files: Sequence[Path], pieces: Sequence[bytes]) -> list[str]:
    """Return the files that hold one of `pieces`, and those that could not be read with the reason."""
    request = {"files": [str(file) for file in files], "pieces": [piece.decode() for piece in pieces]}
    command = [sys.executable, "-I", "-S", str(Path(__file__))]
    child = subprocess.run(command, input=json.dumps(request).encode(), capture_output=True, check=False)
    if child.returncode:
        return [f"files that could not be searched: the search ended with {child.returncode}"]
    traces: list[str] = json.loads(child.stdout)
    return traces


def _search_all(files: Sequence[str], pieces: Sequence[bytes]) -> Iterator[str]:
    pattern = re.compile(b"|".join(re.escape(piece) for piece in pieces))
    longest = max(len(piece) for piece in pieces)
    for name in files:
        try:
            if any(pattern.search(block) for block in _blocks(name, longest)):
                yield name
        except FileNotFoundError:
            continue
        except OSError as error:
            yield f"{name}, perhaps: it could not be searched ({error.strerror})"


def _blocks(name: str, overlap: int) -> Iterator[bytes]:
    with Path(name).open("rb") as opened:
        tail = b""
        while block := opened.read(_READ_AT_ONCE):
            yield tail + block
            tail = block[-overlap:]


if __name__ == "__main__":
    request = json.load(sys.stdin)
    traces = list(_search_all(request["files"], [piece.encode() for piece in request["pieces"]]))
    json.dump(traces, sys.stdout)
