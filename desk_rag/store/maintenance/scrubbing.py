"""Scrub deleted text from the files of the store, at intervals."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from desk_rag.errors import StoreError

if TYPE_CHECKING:
    from desk_rag.store.store import Store

_log = logging.getLogger(__name__)

_EVERY_SECONDS = 15.0
"""Seconds between two checks for deleted text, which must be in no file of the store after a minute."""
_LONGEST_WAIT = 40.0


class Scrubber:
    """Scrubs the store of a process that writes for long; safe to use from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._due = 0.0
        """Monotonic time of the next check for deleted text."""

    def keep_on(self, wait: Callable[[float], bool]) -> None:
        """Scrub at intervals; `wait` waits so many seconds, and returns whether to stop."""
        while not wait(1.0):
            self.scrub()

    def scrub(self, *, now: bool = False) -> None:
        """Scrub deleted text from the store if it is time to, or `now`."""
        with self._lock:
            began = time.monotonic()
            if began < self._due and not now:
                return
            try:
                done = not self._store.scrub_owed() or self._store.checkpoint()
            except StoreError as error:
                _log.error("deleted text could not be scrubbed: %s", type(error).__name__)
                done = False
            took = time.monotonic() - began
            # A large catalog takes a while to rewrite; a reader that was in the way is soon gone.
            wait = min(_EVERY_SECONDS + 10 * took, _LONGEST_WAIT) if done else _EVERY_SECONDS / 3
            self._due = time.monotonic() + wait
