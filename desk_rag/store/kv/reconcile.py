"""Files and rows brought back in step, room made, unsound files put aside. Knows files and rows; knows no tensor.

Only the writer runs this, but for `quarantine`, which any process may use.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from desk_rag.errors import CorruptKV, ForeignPlace, UnknownFormat, of_system
from desk_rag.owned_folder import Proof, proven
from desk_rag.store.catalog.catalog import Catalog, KVName
from desk_rag.store.kv import header as kv_header
from desk_rag.store.kv.budget import Budget, readable
from desk_rag.store.kv.eviction import Candidate
from desk_rag.store.kv.header import KVHeader
from desk_rag.store.kv.index import KVIndex, KVRow
from desk_rag.store.kv_directory import KVDirectory
from desk_rag.store.layout import BLOCK, KV_SUFFIX, KVEntry, Layout, allocated_size
from desk_rag.store.ownership import stamp_of

_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A chunk KV that asks for room."""

    namespace: str
    size: int
    """Bytes as counted."""
    rank: float
    pinned: bool


class KVMaintenance:
    """Keeps the directory, the rows and the budget of one store true to each other."""

    def __init__(self, layout: Layout, rows: KVIndex, kv: KVDirectory) -> None:
        self._layout = layout
        self._rows = rows
        self.kv = kv

    def reconcile(self, catalog: Catalog) -> tuple[int, list[str]]:
        """Compare all files with all rows, in both directions; return the bytes on disk and what was found odd."""
        if not self.kv.in_place():
            return self._rows.total_blocks(), [self.kv.away] if self.kv.away else []
        notes: list[str] = []
        self._layout.remove_cut_off()
        foreign: list[Path] = []
        self._finish_deletes()
        known = {self._layout.kv_file(*row.name): row for row in self._rows.all()}
        catalog_lost = not known and catalog.count([])[3] == 0
        any_chunk = catalog_lost or catalog.is_awaiting_texts()
        seen: set[Path] = set()
        orphans: list[KVEntry] = []
        self._sync_namespaces()
        for entry in self._layout.scan():
            row = known.get(entry.path)
            if entry.aside or self._settle(entry, row, notes, foreign, orphans, any_chunk=any_chunk):
                seen.add(entry.path)
        if not self.kv.in_place():  # what was seen may have been another directory
            raise ForeignPlace(
                f"{self._layout.kv} was exchanged while it was looked through.", remedy="Start desk-rag again."
            )
        unreferenced = [] if any_chunk or not catalog.count([])[3] else self._rows.unreferenced()
        if (orphans or unreferenced) and catalog.is_damaged():
            # Once that is repaired, and the texts are read again, the files are of use.
            catalog.await_texts()
            unreferenced = []
        else:
            for entry in orphans:
                self._remove(entry.path, self._layout.proof(entry.path))
        if catalog_lost and seen:
            catalog.await_texts()
        gone = [row.name for path, row in known.items() if path not in seen]
        if gone:
            self._rows.drop(gone)
            was = "1 row had no file and was" if len(gone) == 1 else f"{len(gone)} rows had no file and were"
            notes.append(f"{was} dropped.")
        if foreign:
            notes.append(
                f"Files in {self._layout.kv} that desk-rag did not make were left alone ({len(foreign)};"
                f" '{foreign[0].name}' for one); `desk-rag doctor` names them."
            )
        self.remove_rows(unreferenced)
        return sum(entry.counted for entry in self._layout.scan() if entry.named_ours), notes

    def make_room(self, budget: Budget, size: int, newcomer: Newcomer | None) -> bool:
        """Evict until `size` more bytes fit; nothing is evicted if even that would not do.

        Order: quarantine, other namespaces, then least saved time per byte; pinned folders last. A newcomer displaces
        only what another model made or what is worth less than itself. None displaces anything: the limit has shrunk.
        """
        if budget.excess(size) <= 0:
            return True
        if not self.kv.in_place():
            return False
        budget.freed(self.empty_quarantine())
        need = budget.excess(size)
        if need <= 0:
            return True
        victims = self._choose(need, newcomer)
        if victims:
            budget.freed(self.unlink(self._rows.mark_deleted([victim.row for victim in victims])))
        return budget.excess(size) <= 0

    def keep_to_limit(self, budget: Budget) -> tuple[str, ...]:
        """Evict what is above the limit, which may have shrunk; return what there is to say about it."""
        before = budget.used
        self.make_room(budget, 0, None)
        if before == budget.used:
            return ()
        given_up, limit = readable(before - budget.used), readable(budget.limit())
        return (f"{given_up} of chunk caches were given up: they may take {limit}.",)

    def remove_rows(self, rows: Iterable[KVRow]) -> int:
        """Delete rows and their files; return the bytes freed."""
        found = list(rows)
        return self.unlink(self._rows.mark_deleted([row.row for row in found])) if found else 0

    def unlink(self, names: Iterable[KVName]) -> int:
        """Unlink doomed files and settle their notes; return the bytes freed. A file that has a row again stays.

        While the directory of the chunk KV is away the notes stay too.
        """
        doomed = list(names)
        if not doomed or not self.kv.in_place():
            return 0
        back = {row.name for row in self._rows.find(doomed)}
        files = [self._layout.kv_file(*name) for name in doomed if name not in back]
        freed = sum(self._remove(file, proven) for file in files)
        for place in sorted({file.parent for file in files}):
            self._layout.cache.sync(place)
        self._rows.clear_deleted(doomed)
        return freed

    def remove_unknown(self, name: KVName) -> int:
        """Remove a file that no row knows, if its header says that it is ours; return the bytes freed."""
        path = self._layout.kv_file(*name)
        return self._remove(path, self._layout.proof(path))

    def quarantine(self, path: Path, proof: Proof = proven) -> bool:
        """Move an unsound file out of use; False if it was gone already, is not ours or the drive does not let it.

        Its size and time become part of its name, which proves later that it was put there by us.
        """
        prefix = f"{path.parent.parent.name}-{path.stem}.{os.getpid()}-{next(_serial)}"
        try:
            return self._layout.cache.move(
                path, self._layout.kv_quarantine, lambda entry: f"{prefix}.{stamp_of(entry.status)}{KV_SUFFIX}", proof
            )
        except OSError as error:
            if of_system(error) is not None:
                return False
            raise

    def empty_quarantine(self) -> int:
        """Remove what was put into quarantine, durably: it may hold text; return the bytes freed."""
        aside = [entry.path for entry in self._layout.scan_quarantine()]
        freed = sum(self._remove(path, self._layout.proof(path)) for path in aside)
        for place in {path.parent for path in aside}:
            self._layout.owner(place / "any").sync(place)
        return freed

    def _remove(self, path: Path, proof: Proof) -> int:
        removed = self._layout.owner(path).remove(path, proof)
        return 0 if removed is None else allocated_size(removed.st_size)

    def _sync_namespaces(self) -> None:
        """Make the names of all folders under kv/ durable: a process that made one may have been killed too early."""
        with self._layout.cache.opened(self._layout.kv) as kv:
            folders = [self._layout.kv / name for name, status in kv.scan() if stat.S_ISDIR(status.st_mode)]
        for place in (self._layout.kv, *folders):
            with suppress(ForeignPlace):
                self._layout.cache.sync(place)

    def _finish_deletes(self) -> None:
        self.unlink(self._rows.marked_deleted())

    def _settle(
        self,
        entry: KVEntry,
        row: KVRow | None,
        notes: list[str],
        foreign: list[Path],
        orphans: list[KVEntry],
        *,
        any_chunk: bool,
    ) -> bool:
        """Decide about one file under kv/, given the row of its path; True if it stays as ours.

        A sound file whose chunks are not there is added to `orphans`.
        """
        if row is not None and entry.named_ours and row.size == entry.size:
            return True
        path = entry.path
        if not entry.named_ours:
            foreign.append(path)
            return False
        if entry.is_temporary:
            if not self._remove(path, self._layout.proof(path)) and path.exists():
                foreign.append(path)
            return False
        try:
            if row is not None:
                raise CorruptKV(f"{path} has another size than when it was written.")
            header = read_header(path)
            if self._layout.kv_file(header.namespace, header.tokens) != path:
                raise CorruptKV(f"{path} is not where its header says.")
        except (CorruptKV, UnknownFormat, OSError, AssertionError) as error:
            if self.quarantine(path, proven if row is not None else self._layout.proof(path)):
                notes.append(f"{error} It was put into quarantine.")
            else:
                foreign.append(path)
            return False
        self._layout.cache.sync(path.parent)  # whoever renamed it may have been killed before doing so
        added = self._rows.add(
            (header.namespace, header.tokens),
            entry.size,
            header.num_tokens,
            header.prefill_seconds,
            header.chunk_ids,
            any_chunk=any_chunk,
        )
        if not added:
            orphans.append(entry)
        return added

    def _choose(self, need: int, newcomer: Newcomer | None) -> list[Candidate]:
        victims: list[Candidate] = []
        with closing(self._rows.candidates(newcomer.namespace if newcomer else None)) as order:
            for candidate in order:
                if newcomer is not None and not _yields(candidate, newcomer):
                    return []
                victims.append(candidate)
                need -= allocated_size(candidate.size)
                if need <= 0:
                    return victims
        return [] if newcomer is not None else victims


def read_header(path: Path) -> KVHeader:
    """Read and check a file's header without torch. Raises CorruptKV, UnknownFormat, OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(BLOCK)
        length = kv_header.header_length(start[:8], size, str(path))
        start += file.read(max(0, length - len(start)))
    return kv_header.decode(start[:length], size, str(path))


def _yields(candidate: Candidate, newcomer: Newcomer) -> bool:
    if candidate.above is None:
        return True
    if candidate.pinned != newcomer.pinned:
        return newcomer.pinned
    if candidate.above:
        return candidate.above > 0
    return candidate.rank < newcomer.rank
