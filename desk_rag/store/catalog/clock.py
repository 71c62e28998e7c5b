"""Store time: elapsed seconds that do not depend on how the computer's clock is set.

Grace periods of days outlive restarts, so a monotonic clock is not enough, and setting the clock forward must not end
them. Within a boot the system's boot clock counts, including sleep. From one boot to the next the wall clock counts,
but for at most a day.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path

from desk_rag.store.catalog.database import Database

_NAME = "store_time"
_LONGEST_GAP = 86_400.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Reading:
    """The computer's clocks at one moment."""

    wall: float
    boot: str
    """Id of the current boot; "" if the system has none."""
    since_boot: float
    """Seconds since boot, including sleep."""


def read_clocks() -> Reading:
    """Read the clocks of this computer."""
    try:
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
        return Reading(time.time(), boot, time.clock_gettime(time.CLOCK_BOOTTIME))
    except (OSError, ValueError, AttributeError):
        return Reading(time.time(), "", 0.0)


class StoreClock:
    """Store time in seconds since an arbitrary moment; never runs backwards."""

    def __init__(self, database: Database, read: Callable[[], Reading] = read_clocks) -> None:
        self._database = database
        self.read = read

    def now(self) -> float:
        """Return the store time."""
        return self._since(self._kept())[0]

    def advance(self) -> None:
        """Record the store time; to be called at every scan, since unrecorded time is capped after a restart."""
        total, reading = self._since(self._kept())
        with self._database.write(durable=False) as connection:
            value = json.dumps([total, *astuple(reading)])
            connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (_NAME, value))

    def _since(self, kept: tuple[float, Reading] | None) -> tuple[float, Reading]:
        reading = self.read()
        if kept is None:
            return 0.0, reading
        total, before = kept
        if reading.boot and reading.boot == before.boot:
            return total + max(0.0, reading.since_boot - before.since_boot), reading
        return total + min(max(0.0, reading.wall - before.wall), _LONGEST_GAP), reading

    def _kept(self) -> tuple[float, Reading] | None:
        with self._database.read() as connection:
            row = connection.execute("SELECT value FROM state WHERE name = ?", (_NAME,)).fetchone()
        try:
            total, wall, boot, since_boot = json.loads(row[0])
            return float(total), Reading(float(wall), str(boot), float(since_boot))
        except (TypeError, ValueError):
            return None
