"""Start and end the process that `ask --keep` leaves behind, which keeps the models loaded for later questions.

It holds the right to write to the store, and gives it up as soon as another command needs it (`make_way`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import desk_rag
from desk_rag.config import Settings
from desk_rag.errors import DeskRagError
from desk_rag.indexer.resident import client, values
from desk_rag.indexer.resident.protocol import Message, NoResident, transport

_START_SECONDS = 60.0
_LEAVE_SECONDS = 30.0
"""Seconds that an answer in progress gets to end before another command continues."""
_POLL_SECONDS = 0.03
_WITHOUT_CONSOLE = getattr(subprocess, "CREATE_NO_WINDOW", 0) | getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
"""On Windows: Ctrl+C in the console, or closing it, does not end the process."""


def status(data_dir: Path) -> Message | None:
    """Return the status of the process that answers for others; None if there is none."""
    try:
        return next(client.request(data_dir, {"do": "status"}), None)
    except (NoResident, DeskRagError):
        return None


def ensure(settings: Settings, settings_file: Path | None = None) -> str:
    """Start a process that keeps the models loaded, unless there is one; return '' or why that failed.

    A kept process with other settings is replaced.
    """
    running = status(settings.data_dir)
    if running is not None and (not running.get("kept") or running.get("settings") == values.settings_key(settings)):
        return ""
    if running is not None:
        make_way(settings.data_dir)
    return _await(start(settings, settings_file), settings.data_dir)


def answers_meanwhile(settings: Settings) -> bool:
    """Return whether a kept process may answer until a UI has loaded its own models: where memory holds both."""
    return settings.model.name == "embedded"


def make_way(data_dir: Path, *, watching: bool = False) -> bool:
    """End a kept process, so that this one can write to the store; with `watching`, `desk-rag watch` as well.

    Returns whether there was one.
    """
    try:
        for _ in client.request(data_dir, {"do": "leave", "watching": watching}):
            pass
    except (NoResident, DeskRagError):
        return False
    end = time.monotonic() + _LEAVE_SECONDS
    mark = transport().mark(data_dir)
    while mark.exists() and time.monotonic() < end:  # removed last
        time.sleep(_POLL_SECONDS)
    return True


def environment() -> dict[str, str]:
    """Return the environment in which another process imports this very desk-rag."""
    source = str(Path(desk_rag.__file__).parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))}


def start(settings: Settings, settings_file: Path | None = None) -> subprocess.Popen[str]:
    """Start the process, which outlives this one, and return at once."""
    child = subprocess.Popen(
        [sys.executable, "-m", "desk_rag.indexer.resident.kept"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=environment(),
        cwd=Path(settings.data_dir.anchor),  # elsewhere it would keep a drive from being unmounted
        start_new_session=True,
        creationflags=_WITHOUT_CONSOLE,
    )
    assert child.stdin is not None
    with child.stdin, suppress(BrokenPipeError):
        child.stdin.write(json.dumps(values.engine_fields(settings, (), settings_file)))
    return child


def _await(child: subprocess.Popen[str], data_dir: Path) -> str:
    """Wait until the process answers; return '' or the last lines that it printed."""
    end = time.monotonic() + _START_SECONDS
    assert child.stderr is not None
    with child.stderr:
        while time.monotonic() < end:
            if status(data_dir) is not None:
                return ""
            if child.poll() is not None:
                return "" if status(data_dir) is not None else child.stderr.read().strip() or "it ended at once"
            time.sleep(_POLL_SECONDS)
    return "it does not answer"
