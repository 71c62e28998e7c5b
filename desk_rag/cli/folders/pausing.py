"""Run `desk-rag pause` and `desk-rag resume`: whichever process indexes obeys within a second."""

from __future__ import annotations

import math
import re
import time
from typing import TYPE_CHECKING

from desk_rag.cli.store_access import exists, open_store, print_lines
from desk_rag.config import Settings
from desk_rag.errors import ConfigError, DeskRagError

if TYPE_CHECKING:
    from desk_rag.store.store import Store

_SECONDS = {"m": 60.0, "h": 3600.0, "d": 86_400.0}
_LONGEST = 365 * 86_400.0


def pause(settings: Settings, duration: str) -> int:
    """Ask the process that indexes to pause, until resumed if `duration` is empty.

    Raises ConfigError for a time that is none.
    """
    seconds = _seconds(duration)
    with _store(settings) as store:
        store.request_pause(time.time() + seconds)
        activity = store.activity()
    until = "until `desk-rag resume`"
    if not math.isinf(seconds):
        until = f"until {time.strftime('%Y-%m-%d %H:%M', time.localtime(time.time() + seconds))}"
    who = "" if activity is not None else " No desk-rag is indexing now; one that starts waits as well."
    print_lines([f"Paused {until}.{who}"])
    return 0


def resume(settings: Settings) -> int:
    """End a pause."""
    with _store(settings) as store:
        was_paused = store.pause_requested() is not None
        store.request_pause(None)
    print_lines(["Resumed." if was_paused else "There was no pause."])
    return 0


def _store(settings: Settings) -> Store:
    if not exists(settings):
        raise DeskRagError("Nothing is indexed yet, so there is nothing to pause.", remedy="desk-rag index FOLDER")
    return open_store(settings, writer=False)


def _seconds(duration: str) -> float:
    if not duration:
        return math.inf
    parsed = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([mhd])", duration.strip().lower())
    seconds = float(parsed[1]) * _SECONDS[parsed[2]] if parsed else 0.0
    if not 0 < seconds <= _LONGEST:
        raise ConfigError(f"'{duration}' is not a time.", remedy="Such as 30m, 2h or 1d.")
    return seconds
