"""Bring KV files and rows back in step, evict, and quarantine unsound files.

Only the writer does this, except for `quarantine`, which any process may call.
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
from desk_rag.store.kv.budget import Budget, readable
from desk_rag.store.kv.eviction import Candidate
from desk_rag.store.kv.header import check_content, read_header
from desk_rag.store.kv.index import KVIndex, KVRow
from desk_rag.store.kv_directory import KVDirectory
from desk_rag.store.layout import KV_SUFFIX, KVEntry, Layout, allocated_size
from desk_rag.store.ownership import stamp_of

_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A chunk KV that needs room."""

    namespace: str
    size: int
    """Bytes on disk, in whole blocks."""
    rank: float
    pinned: bool


class KVMaintenance:
    """Keeps the KV directory, its rows and the budget of a store consistent."""

    def __init__(self, layout: Layout, rows: KVIndex, kv: KVDirectory) -> None:
        self._layout = layout
        self._rows = rows
        self.kv = kv

    def reconcile(self, catalog: Catalog) -> tuple[int, list[str]]:
        """Compare all files with all rows, in both directions; return the bytes on disk and notices for the user."""
        if not self.kv.in_place():
            return self._rows.total_blocks(), [self.kv.away] if self.kv.away else []
        notices: list[str] = []
        self._layout.remove_temporary()
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
            if entry.aside or self._check_file(entry, row, notices, foreign, orphans, any_chunk=any_chunk):
                seen.add(entry.path)
        if not self.kv.in_place():  # the directory may have been replaced during the scan
            raise ForeignPlace(
                f"{self._layout.kv} was replaced while it was being read.", remedy="Start desk-rag again."
            )
        unreferenced = [] if any_chunk or not catalog.count([])[3] else self._without_chunks()
        if (orphans or unreferenced) and catalog.is_damaged():
            # These files are needed again after a repair, once the texts have been read again.
            catalog.await_texts()
            unreferenced = []
        else:
            for entry in orphans:
                self._remove(entry.path, self._layout.proof(entry.path))
        if catalog_lost and seen:
            catalog.await_texts()
        missing = [row.name for path, row in known.items() if path not in seen]
        if missing:
            self._rows.drop(missing)
            rows = "1 row without a file was" if len(missing) == 1 else f"{len(missing)} rows without files were"
            notices.append(f"{rows} removed.")
        if foreign:
            notices.append(
                f"{len(foreign)} files in {self._layout.kv} that desk-rag did not write were left alone, such as"
                f" '{foreign[0].name}'; `desk-rag doctor` lists them."
            )
        self.remove_rows(unreferenced)
        return sum(entry.counted for entry in self._layout.scan() if entry.named_ours), notices

    def make_room(self, budget: Budget, size: int, newcomer: Newcomer | None) -> bool:
        """Evict until `size` more bytes fit, or nothing if even that would not be enough.

        Order: quarantine, other models, then least saved time per byte; pinned folders last. A newcomer displaces only
        chunk KV of another model or of lower rank. Without a newcomer (the limit has shrunk) anything is evicted.
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
        """Evict down to the limit, which may have shrunk; return notices about it."""
        before = budget.used
        self.make_room(budget, 0, None)
        if before == budget.used:
            return ()
        removed, limit = readable(before - budget.used), readable(budget.limit())
        return (f"{removed} of chunk caches were removed to stay within the limit of {limit}.",)

    def remove_rows(self, rows: Iterable[KVRow]) -> int:
        """Delete rows and their files; return the bytes freed."""
        numbers = [row.row for row in rows]
        return self.unlink(self._rows.mark_deleted(numbers)) if numbers else 0

    def unlink(self, names: Iterable[KVName]) -> int:
        """Unlink files marked as deleted and clear their marks; return the bytes freed.

        A file that has a row again stays. While the KV directory is absent, the marks stay too.
        """
        deleted = list(names)
        if not deleted or not self.kv.in_place():
            return 0
        stored_again = {row.name for row in self._rows.find(deleted)}
        files = [self._layout.kv_file(*name) for name in deleted if name not in stored_again]
        freed = sum(self._remove(file, proven) for file in files)
        for directory in sorted({file.parent for file in files}):
            self._layout.cache.sync(directory)
        self._rows.clear_deleted(deleted)
        return freed

    def remove_unknown(self, name: KVName) -> int:
        """Remove a file without a row if its header proves that it is ours; return the bytes freed."""
        path = self._layout.kv_file(*name)
        return self._remove(path, self._layout.proof(path))

    def quarantine(self, path: Path, proof: Proof = proven) -> bool:
        """Move an unsound file to quarantine; False if it is gone, is not ours or the drive cannot be written.

        A hash of its size and time becomes part of its name, which later proves that we put it there.
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
        """Remove the quarantined files durably, since they may hold text; return the bytes freed."""
        paths = [entry.path for entry in self._layout.scan_quarantine()]
        freed = sum(self._remove(path, self._layout.proof(path)) for path in paths)
        for directory in {path.parent for path in paths}:
            self._layout.owner(directory / "any").sync(directory)
        return freed

    def _remove(self, path: Path, proof: Proof) -> int:
        removed = self._layout.owner(path).remove(path, proof)
        return 0 if removed is None else allocated_size(removed.st_size)

    def _sync_namespaces(self) -> None:
        """Make the names of all folders under kv/ durable; a killed process may not have done so."""
        with self._layout.cache.opened(self._layout.kv) as kv:
            folders = [self._layout.kv / name for name, status in kv.scan() if stat.S_ISDIR(status.st_mode)]
        for directory in (self._layout.kv, *folders):
            with suppress(ForeignPlace):
                self._layout.cache.sync(directory)

    def _finish_deletes(self) -> None:
        self.unlink(self._rows.marked_deleted())

    def _check_file(
        self,
        entry: KVEntry,
        row: KVRow | None,
        notices: list[str],
        foreign: list[Path],
        orphans: list[KVEntry],
        *,
        any_chunk: bool,
    ) -> bool:
        """Check a file under kv/ against the row of its path; True if it stays as ours.

        A sound file without a row is adopted, or added to `orphans` if none of its chunks exists.
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
            header = read_header(path)
            if row is not None:
                check_content(path, row.name)  # sound: then it is the row that is damaged
                self._rows.drop([row.name])
            if self._layout.kv_file(header.namespace, header.tokens) != path:
                raise CorruptKV(f"{path} is not in the place that its header names.")
        except (CorruptKV, UnknownFormat, OSError, AssertionError) as error:
            if self.quarantine(path, proven if row is not None else self._layout.proof(path)):
                notices.append(f"{error} It was moved to quarantine.")
            else:
                foreign.append(path)
            return False
        self._layout.cache.sync(path.parent)  # a killed process may have renamed it without doing so
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

    def _without_chunks(self) -> list[KVRow]:
        """Return the rows none of whose chunks exists; rows that lost their links get them back from their files."""
        rows = []
        for row in self._rows.unreferenced():
            try:
                chunk_ids = read_header(self._layout.kv_file(*row.name)).chunk_ids
            except (CorruptKV, UnknownFormat, OSError):
                chunk_ids = ()
            unlinked = self._rows.unlinked(row.row, chunk_ids)
            if not (unlinked and self._rows.link(row.name, unlinked)):
                rows.append(row)
        return rows

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


def _yields(candidate: Candidate, newcomer: Newcomer) -> bool:
    """Return whether a newcomer may displace this candidate."""
    if candidate.above is None:
        return True
    if candidate.pinned != newcomer.pinned:
        return newcomer.pinned
    if candidate.above:
        return candidate.above > 0
    return candidate.rank < newcomer.rank
