"""The few small rows that any process may write: use counts, wants, what the writer is doing, the wish that it pause.

Knows rows and process ids. None of these is waited for on the disk: losing the last ones costs nothing that matters.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict

import psutil

from desk_rag.chunking import ChunkId
from desk_rag.errors import UNWRITABLE
from desk_rag.index_events import IndexStage
from desk_rag.store.database import Database
from desk_rag.store.types import Activity

STALE_SECONDS = 60.0
"""A heartbeat older than this, or as far in the future, says nothing any more."""
_ACTIVITY, _PAUSE, _NOTICES = "activity", "pause", "notices"


class SharedRows:
    """Small rows of the catalog shared between processes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def note_use(self, counts: Mapping[ChunkId, int]) -> None:
        """Count retrievals of chunks; on a full or read-only drive nothing is counted."""
        with suppress(*UNWRITABLE):
            self._add("uses", counts)

    def want(self, chunk_ids: Sequence[ChunkId]) -> None:
        """Count answers that had to do without the KV of these chunks; as `note_use`."""
        with suppress(*UNWRITABLE):
            self._add("wants", Counter(chunk_ids))

    def publish(self, activity: Activity) -> None:
        """Replace the heartbeat; as `note_use`."""
        with suppress(*UNWRITABLE):
            self._set(_ACTIVITY, json.dumps({**asdict(activity), "stage": activity.stage.value}))

    def activity(self) -> Activity | None:
        """Return the heartbeat, None if its process is gone or has been silent for a minute."""
        value = self._get(_ACTIVITY)
        if not isinstance(value, str):
            return None
        fields = json.loads(value)
        found = Activity(**{**fields, "stage": IndexStage(fields["stage"])})
        if abs(time.time() - found.at) > STALE_SECONDS or not psutil.pid_exists(found.pid):
            return None
        return found

    def request_pause(self, until: float | None) -> None:
        """Ask the writer to pause until a unix time (math.inf: until told otherwise); None takes it back."""
        self._set(_PAUSE, None if until is None or math.isnan(until) else float(until))

    def pause_requested(self) -> float | None:
        """Return the unix time until which a pause is wished, None if it is not or has passed."""
        value = self._get(_PAUSE)
        return value if isinstance(value, float) and value > time.time() else None

    def note(self, notices: Sequence[str]) -> None:
        """Keep what an opening had to say for whoever asks later; nothing takes it back."""
        self._set(_NOTICES, json.dumps([time.time(), *notices]) if notices else None)

    def noted(self) -> tuple[float, tuple[str, ...]] | None:
        """Return when and what was noted last (unix time, sentences)."""
        value = self._get(_NOTICES)
        if not isinstance(value, str):
            return None
        at, *notices = json.loads(value)
        return float(at), tuple(map(str, notices))

    def _add(self, column: str, counts: Mapping[ChunkId, int]) -> None:
        if counts:
            with self._database.write(durable=False) as connection:
                connection.executemany(
                    f"UPDATE chunks SET {column} = {column} + ? WHERE chunk_id = ?",
                    [(count, chunk_id) for chunk_id, count in counts.items()],
                )

    def _set(self, name: str, value: str | float | None) -> None:
        with self._database.write(durable=False) as connection:
            if value is None:
                connection.execute("DELETE FROM state WHERE name = ?", (name,))
            else:
                connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, value))

    def _get(self, name: str) -> object:
        with self._database.read() as connection:
            found = connection.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        return None if found is None else found[0]
