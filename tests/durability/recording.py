"""A recorded run: the recorder compiled, a workload run under it, its log read back as operations."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent


class CannotRecord(Exception):
    """This machine has no way to record; the message says why."""


@dataclass(frozen=True, slots=True)
class Op:
    """One recorded change, flush or remark."""

    kind: str
    """C create, W write, T truncate, F flush, M mkdir, R rename, U unlink or rmdir, L link, N note."""
    inode: int = 0
    number: int = 0
    """Offset of W, size of T, 1 for F of a directory."""
    path: str = ""
    target: str = ""
    data: bytes = b""
    note: dict[str, Any] = field(default_factory=dict)


@cache
def library() -> Path:
    """Compile the recorder once per process. Raises CannotRecord."""
    if not sys.platform.startswith("linux"):
        raise CannotRecord("system calls are recorded on Linux only")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise CannotRecord("no C compiler to build the recorder with")
    built = Path(tempfile.mkdtemp(prefix="recorder-")) / "recorder.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(built), str(HERE / "recorder.c"), "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise CannotRecord(f"the recorder does not compile: {done.stderr[-300:]}")
    return built


def begin(root: Path, log: Path) -> None:
    """Start recording in a process that was started with the recorder loaded."""
    if ctypes.CDLL(None).durability_begin(os.fsencode(root), os.fsencode(log)) < 0:
        raise CannotRecord(f"{log} cannot be written")


def note(**facts: object) -> None:
    """Put a remark into the log."""
    text = json.dumps(facts).encode()
    ctypes.CDLL(None).durability_note(text, ctypes.c_size_t(len(text)))


@dataclass(frozen=True, slots=True)
class Job:
    """One run of the workload."""

    seed: int
    steps: int
    broken: str = "nothing"
    kills: int = 0
    """Times that the writer is killed at some call and another one goes on."""


def record(jobs: Sequence[Job], place: Path, timeout: float = 300.0) -> list[list[Op]]:
    """Run the workload once for each job, below `place`; return what each did. Raises CannotRecord."""
    listed = []
    for number, job in enumerate(jobs):
        root = place / f"job{number}"
        root.mkdir(parents=True)
        listed.append([str(root), str(place / f"job{number}.log"), job.seed, job.steps, job.broken, job.kills])
    done = subprocess.run(
        [sys.executable, "-m", "tests.durability.workload", json.dumps(listed)],
        env={**os.environ, "LD_PRELOAD": str(library()), "OMP_NUM_THREADS": "1"},
        cwd=REPOSITORY, capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    if done.returncode:
        raise AssertionError(f"the workload failed: {done.stderr[-3000:]}")
    recorded = [parse(Path(log).read_bytes(), root) for root, log, *_ in listed]
    if not any(op.kind == "W" for op in recorded[0]):
        raise CannotRecord("the recorder saw no write; is this Python linked statically?")
    return recorded


def parse(raw: bytes, root: str) -> list[Op]:
    """Read a log; paths become relative to `root`."""
    ops: list[Op] = []
    offset = 0
    while offset < len(raw):
        end = raw.index(b"\n", offset)
        kind, inode, number, _, first, second = raw[offset:end].decode().split(" ")
        one = raw[end + 1 : end + 1 + int(first)]
        two = raw[end + 1 + int(first) : end + 1 + int(first) + int(second)]
        offset = end + 1 + int(first) + int(second)
        if kind in "WTF":
            ops.append(Op(kind, int(inode), int(number), data=one))
        elif kind == "N":
            ops.append(Op(kind, note=json.loads(one)))
        else:
            ops.append(Op(kind, int(inode), path=_relative(one, root), target=_relative(two, root)))
    return ops


def _relative(place: bytes, root: str) -> str:
    path = os.fsdecode(place)
    return os.path.relpath(path, root) if path else ""
