"""The state of a store: amounts, faults, interrupted runs, pauses and pins."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from desk_rag.errors import StoreError
from desk_rag.store.catalog.catalog import Catalog
from desk_rag.store.catalog.coordination import SharedRows
from desk_rag.store.catalog.database import Database
from desk_rag.store.catalog.deletion_rows import stays
from desk_rag.store.catalog.paths import Scope
from desk_rag.store.catalog.witness import Witness
from desk_rag.store.kv.budget import BreakEven, Budget, Estimate, break_even, estimate
from desk_rag.store.kv.contents import CacheContents, cache_contents
from desk_rag.store.kv.eviction import auxiliary_of
from desk_rag.store.kv.files import KVFiles
from desk_rag.store.kv.index import KVIndex
from desk_rag.store.layout import Layout
from desk_rag.store.maintenance.sweep import Sweep
from desk_rag.store.types import Activity, Counts, Fault, UnfinishedRun

if TYPE_CHECKING:
    from desk_rag.kv.payload import ChunkFile
    from desk_rag.kv.types import Namespace
    from desk_rag.store.vectors.search import VectorSearch

_CHANGES_LOST = "The last changes of the catalog were lost."


class StoreHealth:
    """Base of `Store`, which sets the attributes."""

    writer: bool
    is_lost: bool
    _layout: Layout
    _database: Database
    _catalog: Catalog
    _rows: KVIndex
    _shared: SharedRows
    _witness: Witness
    _sweep: Sweep
    _budget: Budget
    _kv: KVFiles
    _vectors_guard: threading.Lock
    _lazy_vectors: VectorSearch | None

    def _vectors(self) -> VectorSearch:
        with self._vectors_guard:
            if self._lazy_vectors is None:
                from desk_rag.store.vectors.search import VectorSearch

                self._lazy_vectors = VectorSearch(self._database, self._layout, writer=self.writer)
            return self._lazy_vectors

    def _must_write(self) -> None:
        if not self.writer:
            raise StoreError("This store is open for reading.", remedy="Only the writer changes documents and caches.")

    def counts(
        self, namespace: Namespace | None = None, embedder: str | None = None, under: Sequence[Path] = ()
    ) -> Counts:
        """Return counts; vectors and KV are those of the given embedder and namespace, 0 for None."""
        files, failed, skipped, chunks = self._catalog.count(under)
        with_tokens, token_bytes = (0, 0) if embedder is None else self._vectors().tokens.count(embedder, under)
        return Counts(
            files,
            failed,
            skipped,
            chunks,
            with_vectors=0 if embedder is None else self._vectors().count(embedder, under),
            warm=0 if namespace is None else self._rows.warm(str(namespace), under),
            kv_bytes=self._kv_bytes(),
            budget_bytes=self._budget.limit(self._kv_bytes()),
            with_tokens=with_tokens,
            token_bytes=token_bytes,
        )

    def _kv_bytes(self) -> int:
        """Return the bytes of all chunk KV on disk, of which a reader knows by the rows of the writer."""
        return self._budget.used if self.writer else self._rows.total_blocks()

    def missing_vectors(
        self, embedder: str, table: Literal["vectors", "token_vectors"] = "vectors", under: Sequence[Path] = ()
    ) -> int:
        """Return how many chunks in scope wait for a vector; those of documents that are about to be removed do not."""
        from desk_rag.store.vectors.tokens import number_missing_in

        scope = Scope(under)
        with self._database.read() as connection:
            query = number_missing_in(table, scope)
            return int(connection.execute(query, (embedder, *scope.values)).fetchone()[0])

    def missing_kv(self, namespace: Namespace, under: Sequence[Path] = ()) -> int:
        """Return how many chunks in scope have no chunk KV, without those of documents that are about to be removed."""
        scope = Scope(under)
        query = (
            "SELECT count(*) FROM chunks c WHERE NOT EXISTS (SELECT 1 FROM kv_chunks k JOIN kv ON kv.id = k.kv"
            " JOIN namespaces n ON n.id = kv.namespace WHERE k.chunk_id = c.chunk_id AND n.name = ?)"
        )
        with self._database.read() as connection:
            query += f" AND {stays('c.id')}{scope.and_chunk('c.id')}"
            return int(connection.execute(query, (str(namespace), *scope.values)).fetchone()[0])

    def has_spare_room(self) -> bool:
        """Return whether the data directory's drive has more free space than `reserve_gib` leaves."""
        return self._budget.has_room_to_spare(self._layout.root)

    def fullest_namespace(self) -> str | None:
        """Return the namespace with the most chunk KV; None if there is none."""
        return self._rows.fullest_namespace()

    def auxiliary_share(self, under: Sequence[Path] = ()) -> tuple[int, int] | None:
        """Return the bytes of the auxiliary model's chunk KV and the number of its chunks in scope; None without one.

        The bytes are those of all folders.
        """
        with self._database.read() as connection:
            name = auxiliary_of(connection, None)
        if not name:
            return None
        return self._rows.namespace_blocks(name), self._rows.warm(name, under)

    def coverage(self, embedder: str | None = None) -> Counts:
        """Return `counts` for the model, and the embedder if none is given, that cover most."""
        namespace = self._rows.fullest_namespace()
        return self.counts(cast("Namespace | None", namespace), embedder or self._vectors().fullest_embedder())

    def estimate(self, namespace: Namespace, num_tokens: int, bytes_per_token: float) -> Estimate:
        """Estimate what caching `num_tokens` more would take; measured rates replace `bytes_per_token`."""
        rates = self._rows.rates(str(namespace))
        size, seconds = (rates.bytes_per_token, rates.prefill_seconds_per_token) if rates else (bytes_per_token, None)
        present = self._rows.namespace_blocks(str(namespace))
        return estimate(num_tokens, size, self._budget.limit(self._kv_bytes()), seconds, present)

    def outlook(self, namespace: Namespace | None, bytes_per_token: float) -> Estimate | None:
        """Estimate what caching all chunks still without KV would take; None if there is no such chunk.

        Without a namespace, the one with the most KV files is used; None if there is no KV.
        """
        name = str(namespace) if namespace else self._rows.fullest_namespace()
        waiting = self._rows.pending_tokens(name) if name else 0
        return self.estimate(cast("Namespace", name), waiting, bytes_per_token) if waiting else None

    @property
    def kv_place(self) -> Path:
        """The directory of the chunk KV."""
        return self._layout.kv

    def sample_kv_files(self, namespace: Namespace, limit: int) -> list[ChunkFile]:
        """Return up to `limit` KV files of a namespace, least recently read first; no use is counted."""
        return self._kv.sample(str(namespace), limit)

    def break_even(self, namespace: Namespace, *, on_gpu: bool = False) -> BreakEven | None:
        """Return when caching pays, by rates measured here; None if there is too little KV to measure.

        `on_gpu`: a GPU prefills, which costs more than a processor.
        """
        rates = self._rows.rates(str(namespace))
        speed = self._kv.bytes_per_second(str(namespace)) if rates else None
        if rates is None or speed is None or not rates.prefill_seconds_per_token:
            return None
        return break_even(rates.prefill_seconds_per_token, speed, rates.bytes_per_token, on_gpu=on_gpu)

    def read_again(self, path: Path) -> None:
        """Have a damaged document read again at the next scan of its folder; any process may request that."""
        with suppress(StoreError):
            self._catalog.read_again(path)

    def check_some(self) -> None:
        """Check the next part of documents, texts and words against their checksums; see `faults`."""
        self._must_write()
        self._sweep.run()

    def check_beside_answer(self) -> None:
        """Call `check_some`, in any process, until everything was checked once; then again after an hour."""
        self._sweep.run_beside_answer()

    def faults(self) -> tuple[Fault, ...]:
        """Return the damage in the catalog that this process found and that has not been repaired since."""
        return self._database.faults.all()

    def begin_run(self, root: Path | None, reason: str = "") -> None:
        """Record that the index of `root` is incomplete until `end_run`, with the reason if known."""
        self._shared.begin_run(root, reason)

    def end_run(self, root: Path) -> None:
        """Record that the index of `root` is complete as far as its files can be read."""
        self._shared.end_run(root)
        self._catalog.drop_lost_texts()

    def note_rules(self, root: Path, rules: Sequence[str]) -> None:
        """Record that the index of `root` obeys these rules of the user."""
        self._shared.note_rules(root, rules)

    def obeys(self, root: Path, rules: Sequence[str]) -> bool:
        """Return whether the index of `root` was last made by exactly these rules of the user."""
        return self._shared.obeys(root, rules)

    def unfinished_runs(self) -> list[UnfinishedRun]:
        """Return the indexing runs of all processes that have begun and not ended."""
        return self._shared.unfinished()

    def _compare_with_witness(self) -> None:
        """Check that this is the catalog written last, with all its changes."""
        before = self._witness.read()  # first, since the catalog is never behind it
        now = self._catalog.mark()
        if self._catalog.is_empty():
            replaced = before is not None and before.identity != now.identity
            self.is_lost = replaced or (before is None and self._layout.has_kv())
        if before is not None and before.identity == now.identity and before.changes > now.changes:
            self._database.faults.add(_CHANGES_LOST)
            if self.writer:
                self._shared.begin_run(None, "the last changes of the catalog were lost")
                self._catalog.catch_up(before.changes)
                self._catalog.await_texts()
        elif self.writer and before != now and not self.is_lost and not self._catalog.is_empty():
            self._witness.write(now)

    def cache_contents(self, most_next: int = 20) -> CacheContents:
        """Return what the chunk KV is made of, and what would be evicted next."""
        return cache_contents(self._database, most_next)

    def request_full_speed(self, until: float | None) -> None:
        """Ask the writer to fill caches although the computer is busy, until a unix time; None ends that."""
        self._shared.request_full_speed(until)

    def full_speed_requested(self) -> float | None:
        """Return the unix time until which full speed is requested; None if it is not."""
        return self._shared.full_speed_requested()

    def request_pause(self, until: float | None) -> None:
        """Ask the writer to pause until a unix time (math.inf: until resumed); None resumes it."""
        self._shared.request_pause(until)

    def pause_requested(self) -> float | None:
        """Return the unix time until which a pause is requested; None if none is."""
        return self._shared.pause_requested()

    def pin(self, folder: Path) -> None:
        """Pin a folder: its chunks are always cached and evicted last."""
        self._rows.pin(folder, pinned=True)

    def unpin(self, folder: Path) -> None:
        """Unpin a folder."""
        self._rows.pin(folder, pinned=False)

    def pins(self) -> list[Path]:
        """Return the pinned folders."""
        return self._rows.pins()

    def past_notices(self) -> tuple[float, tuple[str, ...]] | None:
        """Return time and notices of the last opening that had any, until a repair finds no fault."""
        return self._shared.noted()

    def publish_activity(self, activity: Activity) -> None:
        """Publish what this process is doing; to be called at least twice a minute."""
        self._shared.publish(activity)

    def activity(self) -> Activity | None:
        """Return what the writer is doing; None if it has ended or been silent for a minute."""
        return self._shared.activity()

    def written_today(self) -> int:
        """Return the bytes of chunk KV that were written since midnight."""
        return self._shared.written_today()
