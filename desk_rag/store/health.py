"""The part of the store's doorway about its state: faults, runs cut short, pauses and pins."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from desk_rag.errors import StoreError
from desk_rag.store.catalog.catalog import Catalog
from desk_rag.store.catalog.coordination import SharedRows
from desk_rag.store.catalog.database import Database
from desk_rag.store.catalog.witness import Witness
from desk_rag.store.kv.index import KVRows
from desk_rag.store.layout import Layout
from desk_rag.store.types import Activity, Fault, UnfinishedRun

_CHANGES_LOST = "The last changes of the catalog were lost."


class StoreHealth:
    """Base of `Store`, which sets the attributes."""

    writer: bool
    is_lost: bool
    _layout: Layout
    _database: Database
    _catalog: Catalog
    _rows: KVRows
    _shared: SharedRows
    _witness: Witness

    def _must_write(self) -> None:
        if not self.writer:
            raise StoreError("This store is open for reading.", remedy="Only the writer changes documents and caches.")

    def read_again(self, path: Path) -> None:
        """Have a damaged document read anew at the next look at its folder; any process may ask for that."""
        with suppress(StoreError):
            self._catalog.read_again(path)

    def check_some(self) -> None:
        """Check the next part of documents, texts and words against their checksums; see `faults`."""
        self._must_write()
        self._catalog.check_some()

    def faults(self) -> tuple[Fault, ...]:
        """Return what this process has found damaged in the catalog and nobody has repaired since."""
        return self._database.faults.all()

    def begin_run(self, root: Path | None, reason: str = "") -> None:
        """Note that the index of `root` is incomplete until `end_run`, and why, if that is known."""
        self._shared.begin_run(root, reason)

    def end_run(self, root: Path) -> None:
        """The index of `root` is complete as far as its files could be read."""
        self._shared.end_run(root)
        self._catalog.drop_lost_texts()

    def unfinished_runs(self) -> list[UnfinishedRun]:
        """Return the runs of indexing that have begun and not come to their end, in whatever process."""
        return self._shared.unfinished()

    def _compare_with_witness(self) -> None:
        """Find out whether this is the catalog that was written last, and all of it."""
        before = self._witness.read()  # first: it never runs ahead of the catalog
        now = self._catalog.mark()
        if self._catalog.is_empty():
            others = before is not None and before.identity != now.identity
            self.is_lost = others or (before is None and self._layout.has_kv())
        if before is not None and before.identity == now.identity and before.changes > now.changes:
            self._database.faults.add(_CHANGES_LOST)
            if self.writer:
                self._shared.begin_run(None, "the last changes of the catalog were lost")
                self._catalog.catch_up(before.changes)
                self._catalog.await_texts()
        elif self.writer and before != now and not self.is_lost and not self._catalog.is_empty():
            self._witness.write(now)

    def request_pause(self, until: float | None) -> None:
        """Ask the writer to pause until a unix time (math.inf: until told otherwise); None takes it back."""
        self._shared.request_pause(until)

    def pause_requested(self) -> float | None:
        """Return the unix time until which a pause is wished; None if it is not."""
        return self._shared.pause_requested()

    def pin(self, folder: Path) -> None:
        """Evict the chunks of a folder last, and cache them whatever the corpus takes."""
        self._rows.pin(folder, pinned=True)

    def unpin(self, folder: Path) -> None:
        """Treat a folder like the others again."""
        self._rows.pin(folder, pinned=False)

    def pins(self) -> list[Path]:
        """Return the pinned folders."""
        return self._rows.pins()

    def past_notices(self) -> tuple[float, tuple[str, ...]] | None:
        """Return what the last opening that found something odd had to say, and when; until a repair finds no fault."""
        return self._shared.noted()

    def publish_activity(self, activity: Activity) -> None:
        """Tell other processes what this one is doing; at least twice a minute."""
        self._shared.publish(activity)

    def activity(self) -> Activity | None:
        """Return what the writer is doing; None if it is silent or gone."""
        return self._shared.activity()
