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

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
"""Seconds by the first letter of a unit."""
_PART = re.compile(r"(\d{1,6}(?:\.\d+)?)\s*(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)(?![a-z])")
_CLOCK = re.compile(r"(?:until|till|to)\s+(\d{1,2})(?:[:.](\d{2}))?\s*(am|pm)?")
_LONGEST = 365 * 86_400.0


def pause(settings: Settings, duration: str) -> int:
    """Ask the process that indexes to pause, until resumed if `duration` is empty.

    Raises ConfigError for a time that is none.
    """
    now = time.time()
    seconds = seconds_of(duration, now)
    with _store(settings) as store:
        store.request_pause(now + seconds)
        activity = store.activity()
    until = "until `desk-rag resume`"
    if not math.isinf(seconds):
        until = f"until {time.strftime('%Y-%m-%d %H:%M', time.localtime(now + seconds))}"
    who = ""
    if activity is None or activity.waiting == "stopped":
        who = " No desk-rag is indexing now; a `watch` or UI that starts waits as well."
    elif activity.once:
        who = f" The `index` that is running (process {activity.pid}) goes on; Ctrl+C there ends it."
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


def seconds_of(text: str, now: float) -> float:
    """Return how long a pause lasts that begins at the Unix time `now`. Raises ConfigError.

    `text` is '10m', '1h30m', '10 minutes', 'an hour' or 'until 18:00'; empty means until resumed.
    """
    words = text.strip().lower().removeprefix("for ").strip()
    if not words:
        return math.inf
    if (clock := _CLOCK.fullmatch(words)) is not None:
        seconds = _until(clock, now)
    else:
        words = re.sub(r"\b(half an|an?|one)\s+", lambda match: "0.5 " if match[1] == "half an" else "1 ", words)
        parts = _PART.findall(words)
        is_whole = not _PART.sub("", words).replace("and", "").strip(" ,")
        seconds = sum(float(number) * _SECONDS[unit[0]] for number, unit in parts) if is_whole else 0.0
    if not 0 < seconds <= _LONGEST:
        raise ConfigError(f"'{text}' is not a time.", remedy="Such as 10m, 2h, 1d, 90 minutes or until 18:00.")
    return seconds


def _until(clock: re.Match[str], now: float) -> float:
    """Return the seconds until a time of day comes next; 0 if there is no such time."""
    hour, minute, half = int(clock[1]), int(clock[2] or 0), clock[3] or ""
    if half:
        hour = hour % 12 + (12 if half == "pm" else 0) if 1 <= hour <= 12 else 24
    if hour > 23 or minute > 59 or not (clock[2] or half):
        return 0.0
    day = time.localtime(now)
    for later in (0, 1):  # mktime carries a day beyond the month's end, and knows the change to summer time
        moment = time.mktime((day.tm_year, day.tm_mon, day.tm_mday + later, hour, minute, 0, 0, 0, -1))
        if moment > now:
            return moment - now
    return 0.0
