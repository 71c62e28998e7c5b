"""Rows that any process may write: use counts, the writer's activity, pause requests, unfinished runs.

They are committed without waiting for the disk; losing the last ones does no harm.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import psutil

from desk_rag.documents.chunking import ChunkId
from desk_rag.documents.status import IndexStage
from desk_rag.errors import UNWRITABLE
from desk_rag.store.catalog.database import Database
from desk_rag.store.types import Activity, UnfinishedRun

STALE_SECONDS = 60.0
"""Age in seconds from which a heartbeat is ignored, also if it is in the future."""
_FULL_SPEED, _WRITTEN = "full_speed", "written"
_ACTIVITY, _PAUSE, _NOTICES, _RUNS = "activity", "pause", "notices", "unfinished_runs"
_RULES = "rules"


class SharedRows:
    """Rows of the catalog that all processes read and write."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def note_use(self, counts: Mapping[ChunkId, int]) -> None:
        """Count retrievals of chunks; on a full or read-only drive nothing is counted."""
        with suppress(*UNWRITABLE):
            self._add("uses", counts)

    def want(self, chunk_ids: Sequence[ChunkId]) -> None:
        """Count answers that lacked the KV of these chunks; on a full drive nothing is counted."""
        with suppress(*UNWRITABLE):
            self._add("wants", Counter(chunk_ids))

    def publish(self, activity: Activity) -> None:
        """Replace the heartbeat; on a full drive it stays."""
        with suppress(*UNWRITABLE):
            self._set(_ACTIVITY, json.dumps({**asdict(activity), "stage": activity.stage.value}))

    def activity(self) -> Activity | None:
        """Return the heartbeat; None if its process has ended or been silent for a minute."""
        value = self._get(_ACTIVITY)
        if not isinstance(value, str):
            return None
        try:
            fields = json.loads(value)
            notices = tuple((str(a), str(b), str(c)) for a, b, c in fields.get("notices", ()))
            activity = Activity(**{**fields, "stage": IndexStage(fields["stage"]), "notices": notices})
            float(activity.at), int(activity.pid)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None  # damaged; the next heartbeat replaces it
        if abs(time.time() - activity.at) > STALE_SECONDS or not psutil.pid_exists(activity.pid):
            return None
        return activity

    def request_pause(self, until: float | None) -> None:
        """Ask the writer to pause until a unix time (math.inf: until resumed); None resumes it."""
        self._set(_PAUSE, None if until is None or math.isnan(until) else float(until))

    def pause_requested(self) -> float | None:
        """Return the unix time until which a pause is requested; None if none is or it has passed."""
        return self._future(_PAUSE)

    def request_full_speed(self, until: float | None) -> None:
        """Ask the writer to fill caches although the computer is busy, until a unix time; None ends that."""
        self._set(_FULL_SPEED, None if until is None else float(until))

    def full_speed_requested(self) -> float | None:
        """Return the unix time until which full speed is requested; None if it is not or that has passed."""
        return self._future(_FULL_SPEED)

    def _future(self, name: str) -> float | None:
        """Return a stored unix time if it is still to come."""
        value = self._get(name)
        return value if isinstance(value, float) and value > time.time() else None

    def add_written(self, num_bytes: int) -> None:
        """Count bytes of chunk KV written today; on a full drive nothing is counted."""
        if num_bytes > 0:
            with suppress(*UNWRITABLE):
                self._set(_WRITTEN, json.dumps([_today(), self.written_today() + num_bytes]))

    def written_today(self) -> int:
        """Return the bytes of chunk KV written since midnight."""
        value = self._get(_WRITTEN)
        try:
            day, num_bytes = json.loads(value) if isinstance(value, str) else ("", 0)
            return max(0, int(num_bytes)) if day == _today() else 0
        except (ValueError, TypeError):
            return 0

    def note(self, notices: Sequence[str]) -> None:
        """Store the notices of an opening, with the time; no notices delete them."""
        self._set(_NOTICES, json.dumps([time.time(), *notices]) if notices else None)

    def noted(self) -> tuple[float, tuple[str, ...]] | None:
        """Return the last stored notices (unix time, sentences)."""
        value = self._get(_NOTICES)
        if not isinstance(value, str):
            return None
        try:
            noted_at, *notices = json.loads(value)
            return float(noted_at), tuple(map(str, notices))
        except (ValueError, TypeError):
            return None

    def begin_run(self, root: Path | None, reason: str = "") -> None:
        """Record that `root` is not completely indexed until `end_run`; on a full drive nothing is recorded."""
        runs = {run.root: run for run in self.unfinished()}
        if root in runs and not reason:
            return
        runs[root] = UnfinishedRun(root, runs[root].at if root in runs else time.time(), reason)
        with suppress(*UNWRITABLE):
            self._write_runs(runs.values())

    def end_run(self, root: Path) -> None:
        """Record the end of a run over `root`; runs without a root end with it."""
        self.forget_runs(lambda other: other is None or other == root)

    def forget_runs(self, which: Callable[[Path | None], bool]) -> None:
        """Delete the unfinished runs of some roots."""
        runs = self.unfinished()
        remaining = [run for run in runs if not which(run.root)]
        if len(remaining) < len(runs):
            with suppress(*UNWRITABLE):
                self._write_runs(remaining)

    def note_rules(self, root: Path, rules: Sequence[str]) -> None:
        """Record that the index of `root` obeys these rules; only digests are stored, since rules name files."""
        if not self.obeys(root, rules):
            known = self._obeyed()
            known[_digest(str(root))] = _digest(*rules)
            with suppress(*UNWRITABLE):
                self._set(_RULES, json.dumps(known))

    def obeys(self, root: Path, rules: Sequence[str]) -> bool:
        """Return whether the index of `root` was last made by exactly these rules."""
        return self._obeyed().get(_digest(str(root))) == _digest(*rules)

    def _obeyed(self) -> dict[str, str]:
        value = self._get(_RULES)
        try:
            return dict(json.loads(value)) if isinstance(value, str) else {}
        except (ValueError, TypeError):
            return {}

    def unfinished(self) -> list[UnfinishedRun]:
        """Return the runs that have begun and not ended."""
        value = self._get(_RUNS)
        if not isinstance(value, str):
            return []
        try:
            return [
                UnfinishedRun(None if root is None else Path(root), float(began_at), str(reason))
                for root, began_at, reason in json.loads(value)
            ]
        except (ValueError, TypeError):
            return [UnfinishedRun(None, 0.0, "its record is damaged")]

    def _write_runs(self, runs: Iterable[UnfinishedRun]) -> None:
        rows = [(None if run.root is None else str(run.root), run.at, run.reason) for run in runs]
        self._set(_RUNS, json.dumps(rows) if rows else None)

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
            row = connection.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]


def _digest(*texts: str) -> str:
    return hashlib.blake2b(json.dumps(texts).encode(), digest_size=16).hexdigest()


def _today() -> str:
    return time.strftime("%Y-%m-%d")
