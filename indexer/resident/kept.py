"""The process that `ask --keep` starts: it answers for others, and ends after an hour without a question.

Reads its settings as JSON from standard input. It watches no folder and fills no caches; every question looks for
changed files by itself.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
from pathlib import Path

from desk_rag.config import Settings
from desk_rag.errors import UNWRITABLE, DeskRagError
from desk_rag.indexer.log import logging_to
from desk_rag.indexer.models import Models
from desk_rag.indexer.parts import lazy_parts
from desk_rag.indexer.resident import values
from desk_rag.indexer.resident.answers import Resident
from desk_rag.indexer.resident.exclusion import FollowedRules
from desk_rag.indexer.resident.server import Server
from desk_rag.store.store import Store

_ANSWER_SECONDS = 25.0
"""Seconds that answers in progress get to end once another command needs the store."""
_SIGNAL_SECONDS = 1.0
_MOST_WAIT = 10.0
"""Seconds between two checks of the time since the last question."""


def run(settings: Settings, settings_file: Path | None) -> int:
    """Answer until no question came for a while, a signal arrives, or another command needs the store."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        with _open(settings) as store, logging_to(settings.data_dir):
            models = Models(store, settings)
            parts = lazy_parts(store, settings, models)
            resident = Resident(
                settings,
                lambda: parts,
                models.engine,
                lambda: False,
                tuple,
                leave=stop.set,
                is_leaving=stop.is_set,
                rules=FollowedRules(settings_file, settings.index.exclude),
            )
            free, end = settings.resident.free_minutes * 60, settings.resident.exit_minutes * 60

            def idle() -> None:
                if models.idle_seconds() >= end:
                    stop.set()
                elif models.idle_seconds() >= free:
                    models.release()

            server = Server(settings.data_dir, resident.handle, idle, idle_every=min(_MOST_WAIT, free / 2, end / 2))
            if reason := server.start():
                return _fail(f"it cannot answer for others: {reason}", 1)
            _forget_terminal()
            while not stop.wait(_SIGNAL_SECONDS):
                pass  # a signal may arrive in a thread that ends no wait
            server.drain(_ANSWER_SECONDS)
            models.release()
            store.close()
            server.stop(0.1)  # last: whoever waits for the store looks at the socket
            gc.freeze()
    except DeskRagError as error:
        return _fail(error.message, error.exit_code)
    return 0


def _open(settings: Settings) -> Store:
    try:
        return Store.open(settings.data_dir, settings.store, writer=True)
    except UNWRITABLE:
        return Store.open(settings.data_dir, settings.store, writer=False)


def _forget_terminal() -> None:
    """Discard output from now on, because the process that reads it ends."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)


def _fail(reason: str, code: int) -> int:
    sys.stderr.write(f"{reason}\n")
    return code


if __name__ == "__main__":
    fields = json.load(sys.stdin)
    sys.exit(run(values.engine_arguments(fields)[0], values.settings_file(fields)))
