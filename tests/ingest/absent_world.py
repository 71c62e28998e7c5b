"""One indexed folder in a real store, with chunk KV for every chunk; for tests of absent folders and vanished files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from desk_rag.config import IndexSettings
from desk_rag.documents.status import FileState
from desk_rag.ingest.events import DeletionsWaiting, FileEvent, IndexEvent, RootAbsent
from desk_rag.ingest.pipeline import index_path, sync_folder
from desk_rag.model.prompt import PromptFormat
from desk_rag.store.catalog.clock import Reading
from desk_rag.store.store import Store
from tests.store import made

HOUR = 3600.0


def never() -> bool:
    return False


class Clocks:
    """The clocks of a computer that can be set, slept and started again."""

    def __init__(self) -> None:
        self.reading = Reading(1_800_000_000.0, "first boot", 1000.0)

    def __call__(self) -> Reading:
        return self.reading

    def pass_by(self, seconds: float) -> None:
        now = self.reading
        self.reading = replace(now, wall=now.wall + seconds, since_boot=now.since_boot + seconds)

    def set_wall(self, by: float) -> None:
        self.reading = replace(self.reading, wall=self.reading.wall + by)

    def restart(self, wall_by: float) -> None:
        """Begin another boot after `wall_by` seconds by the wall clock, right or wrong."""
        self.reading = Reading(self.reading.wall + wall_by, self.reading.boot + "+", 5.0)


class World:
    """A folder `root`, a store and clocks of its own."""

    def __init__(self, place: Path, prompt: PromptFormat) -> None:
        self.root, self.data, self._prompt = place / "docs", place / "data", prompt
        self.root.mkdir(parents=True, exist_ok=True)
        self.clocks = Clocks()
        self.settings = IndexSettings()
        self.store = self._open()

    def _open(self) -> Store:
        store = Store.open(self.data, made.settings(), writer=True)
        store.clock.read = self.clocks
        return store

    def reopen(self) -> None:
        """Close the store and open it again, as another process would."""
        self.store.close()
        self.store = self._open()

    def write(self, count: int, folder: str = "", *, about: str = "the canal") -> list[Path]:
        """Write small documents."""
        place = self.root / folder
        place.mkdir(parents=True, exist_ok=True)
        files = [place / f"{number}.txt" for number in range(count)]
        for file in files:
            file.write_text(f"Note {file.stem} of {folder or 'the root'} about {about}.\n")
        return files

    def sync(self, stop: Callable[[], bool] = never) -> list[IndexEvent]:
        """Look at the folder once."""
        return list(sync_folder(self.store, self.root, self._prompt, self._prompt.chunk_size, self.settings, stop))

    def path(self, path: Path) -> FileEvent:
        """Look at one file."""
        return index_path(self.store, path, self.root, self._prompt, self._prompt.chunk_size, self.settings)

    def index(self) -> None:
        """Look at the folder and give every chunk its KV."""
        self.sync()
        for chunk in self.store.chunks_without_kv(made.NS, 1000):
            key = made.key(chunk.chunk_id)
            assert self.store.put_kv(key, made.kv_for(key), [chunk.chunk_id], 0.5)

    def documents(self) -> set[Path]:
        """Return what is indexed."""
        return {row.path for row in self.store.documents() if row.state is FileState.INDEXED}

    def kv(self) -> dict[str, tuple[int, int]]:
        """Return inode and time of every KV file."""
        return {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in made.kv_files(self.data)}

    def is_warm(self) -> bool:
        """Return whether every chunk has its KV, so that nothing would be prefilled."""
        counts = self.store.counts(made.NS)
        return counts.warm == counts.chunks > 0 and not self.store.chunks_without_kv(made.NS, 1)


def absent(events: list[IndexEvent]) -> dict[Path, str]:
    """Return the folders that were found absent, with the reason."""
    return {event.root: event.reason for event in events if isinstance(event, RootAbsent)}


def waiting(events: list[IndexEvent]) -> int:
    """Return how many documents are kept although their files are gone."""
    return sum(event.waiting for event in events if isinstance(event, DeletionsWaiting))


def removed(events: list[IndexEvent]) -> int:
    """Return how many documents were removed."""
    return sum(isinstance(event, FileEvent) and event.state is FileState.REMOVED for event in events)
