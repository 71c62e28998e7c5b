"""Files and rows brought back in step, room made, unsound files put aside. Knows files and rows; knows no tensor.

Only the writer runs this, but for `quarantine`, which any process may use.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from desk_rag.errors import CorruptKV, UnknownFormat, of_system
from desk_rag.store import kv_header
from desk_rag.store.budget import Budget
from desk_rag.store.catalog import Catalog, KVName
from desk_rag.store.kv_header import KVHeader
from desk_rag.store.kv_rows import KVRow, KVRows
from desk_rag.store.layout import BLOCK, KV_SUFFIX, KVEntry, Layout, on_disk, sync_directory
from desk_rag.store.leaving import Candidate

_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A chunk KV that asks for room."""

    namespace: str
    size: int
    """Bytes as counted."""
    rank: float
    pinned: bool


class Upkeep:
    """Keeps the directory, the rows and the budget of one store true to each other."""

    def __init__(self, layout: Layout, rows: KVRows) -> None:
        self._layout = layout
        self._rows = rows

    def reconcile(self, catalog: Catalog) -> tuple[int, list[str]]:
        """Compare all files with all rows, in both directions; return the bytes on disk and what was found odd."""
        notes: list[str] = []
        self._layout.remove_cut_off()
        self._finish_deletes()
        known = {self._layout.kv_file(*row.name): row for row in self._rows.all()}
        catalog_lost = not known and catalog.count([])[3] == 0
        seen: set[Path] = set()
        self._sync_namespaces()
        for entry in self._layout.scan():
            if entry.is_temporary:
                entry.path.unlink(missing_ok=True)
                continue
            if entry.path.is_relative_to(self._layout.quarantine):
                continue
            if self._settle(entry, known.get(entry.path), notes, catalog_lost=catalog_lost):
                seen.add(entry.path)
        gone = [row.name for path, row in known.items() if path not in seen]
        if gone:
            self._rows.drop(gone)
            was = "1 row had no file and was" if len(gone) == 1 else f"{len(gone)} rows had no file and were"
            notes.append(f"{was} dropped.")
        if not catalog_lost and catalog.count([])[3]:
            self.remove_rows(self._rows.unreferenced())
        return sum(entry.counted for entry in self._layout.scan()), notes

    def make_room(self, budget: Budget, size: int, newcomer: Newcomer | None) -> bool:
        """Evict until `size` more bytes fit; nothing is evicted if even that would not do.

        Order: quarantine, other namespaces, then least saved time per byte; pinned folders last. A newcomer displaces
        only what another model made or what is worth less than itself. None displaces anything: the limit has shrunk.
        """
        if budget.excess(size) <= 0:
            return True
        budget.freed(self.empty_quarantine())
        need = budget.excess(size)
        if need <= 0:
            return True
        victims = self._choose(need, newcomer)
        if victims:
            budget.freed(self.unlink(self._rows.doom([victim.row for victim in victims])))
        return budget.excess(size) <= 0

    def remove_rows(self, rows: Iterable[KVRow]) -> int:
        """Delete rows and their files; return the bytes freed."""
        found = list(rows)
        return self.unlink(self._rows.doom([row.row for row in found])) if found else 0

    def unlink(self, names: Iterable[KVName]) -> int:
        """Unlink doomed files and settle their notes; return the bytes freed. A file that has a row again stays."""
        found = list(names)
        if not found:
            return 0
        back = {row.name for row in self._rows.find(found)}
        files = [self._layout.kv_file(*name) for name in found if name not in back]
        freed = sum(_unlink(file) for file in files)
        for place in sorted({file.parent for file in files}):
            with suppress(FileNotFoundError):  # none of its files was ever written
                sync_directory(place)
        self._rows.undoom(found)
        return freed

    def quarantine(self, path: Path) -> bool:
        """Move an unsound file out of use; False if it was gone already or the drive does not let it be moved."""
        prefix = path.parent.parent.name
        target = self._layout.quarantine / f"{prefix}-{path.stem}.{os.getpid()}-{next(_serial)}{KV_SUFFIX}"
        try:
            path.replace(target)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or of_system(error) is not None:
                return False
            raise
        return True

    def empty_quarantine(self) -> int:
        """Remove all quarantined files, durably: what was put aside may hold text; return the bytes freed."""
        with os.scandir(self._layout.quarantine) as entries:
            files = [Path(entry.path) for entry in entries]
        freed = sum(_unlink(file) for file in files)
        if files:
            sync_directory(self._layout.quarantine)
        return freed

    def _sync_namespaces(self) -> None:
        """Make the names of all folders under kv/ durable: a process that made one may have been killed too early."""
        with os.scandir(self._layout.kv) as entries:
            folders = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        for place in (self._layout.kv, *folders):
            sync_directory(place)

    def _finish_deletes(self) -> None:
        self.unlink(self._rows.doomed())

    def _settle(self, entry: KVEntry, row: KVRow | None, notes: list[str], *, catalog_lost: bool) -> bool:
        """Decide about one file under kv/, given the row of its path; True if it stays."""
        if row is not None and row.size == entry.size:
            return True
        try:
            if row is not None:
                raise CorruptKV(f"{entry.path} has another size than when it was written.")
            if not entry.is_kv_file:
                raise CorruptKV(f"{entry.path} is no file of this store.")
            header = read_header(entry.path)
            if self._layout.kv_file(header.namespace, header.tokens) != entry.path:
                raise CorruptKV(f"{entry.path} is not where its header says.")
        except (CorruptKV, UnknownFormat, OSError, AssertionError) as error:
            notes.append(f"{error} It was put into quarantine.")
            self.quarantine(entry.path)
            return False
        sync_directory(entry.path.parent)  # whoever renamed it may have been killed before doing so
        added = self._rows.add(
            (header.namespace, header.tokens),
            entry.size,
            header.num_tokens,
            header.prefill_seconds,
            header.chunk_ids,
            any_chunk=catalog_lost,
        )
        if not added:
            _unlink(entry.path)
        return added

    def _choose(self, need: int, newcomer: Newcomer | None) -> list[Candidate]:
        victims: list[Candidate] = []
        with closing(self._rows.candidates(newcomer.namespace if newcomer else None)) as order:
            for candidate in order:
                if newcomer is not None and not _yields(candidate, newcomer):
                    return []
                victims.append(candidate)
                need -= on_disk(candidate.size)
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


def _unlink(path: Path) -> int:
    try:
        size = on_disk(path.stat().st_size)
        path.unlink()
    except FileNotFoundError:
        return 0
    return size
