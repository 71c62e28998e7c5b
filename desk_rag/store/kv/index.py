"""Catalog rows of KV files: their chunks and their use.

A KV row belongs to the chunks whose ids it lists, and exists as long as one of them does (FORMAT.md, invariant 4).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from desk_rag.kv.loading.retention import decayed
from desk_rag.store.catalog.catalog import KVName, mark_deleted
from desk_rag.store.catalog.database import Database
from desk_rag.store.catalog.deletion_rows import stays
from desk_rag.store.catalog.paths import Scope, to_blob
from desk_rag.store.catalog.rows import pending_chunks
from desk_rag.store.kv import eviction, policy
from desk_rag.store.kv.eviction import Candidate, candidates, namespaces_of_model, pinned_folders
from desk_rag.store.layout import is_name
from desk_rag.store.types import PendingChunk

_TICK = "tick"


@dataclass(frozen=True, slots=True)
class KVRow:
    """The catalog row of a KV file."""

    row: int
    name: KVName
    size: int
    """Exact size of the file in bytes."""


@dataclass(frozen=True, slots=True)
class AdmissionScore:
    """Reasons to store a new chunk KV."""

    rank: float
    demand: int
    """Retrievals of the chunk that is retrieved most."""
    pinned: bool


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates measured from the files of a model."""

    bytes_per_token: float
    prefill_seconds_per_token: float


class KVIndex:
    """The rows of KV files in the catalog."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self,
        name: KVName,
        size: int,
        num_tokens: int,
        prefill_seconds: float,
        chunk_ids: Sequence[str],
        *,
        any_chunk: bool = False,
    ) -> bool:
        """Add a row for a file on disk; False, without a row, if none of its chunks exists, unless `any_chunk`."""
        with self._database.write() as connection:
            demands = [
                demand
                for chunk_id in chunk_ids
                for (demand,) in connection.execute("SELECT uses + wants FROM chunks WHERE chunk_id = ?", (chunk_id,))
            ]
            if not demands and not any_chunk:
                return False
            hits, tick = _past_uses(max([1, *demands])), int(_number(connection, _TICK))
            row = connection.execute(
                "INSERT INTO kv (namespace, tokens, bytes, num_tokens, prefill_seconds, hits, tick, rank)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (namespace, tokens) DO UPDATE SET bytes = excluded.bytes"
                " RETURNING id",
                (_namespace(connection, name[0]), name[1], size, num_tokens, prefill_seconds, hits, tick)
                + (policy.rank(hits, policy.Cost(size, prefill_seconds), tick),),
            ).fetchone()[0]
            _link(connection, row, chunk_ids)
            return True

    def link(self, name: KVName, chunk_ids: Sequence[str]) -> bool:
        """Add chunks to a file that has a row; False if it has none."""
        with self._database.write(durable=False) as connection:
            row = _find(connection, name)
            if row is not None:
                _link(connection, row.row, chunk_ids)
            return row is not None

    def find(self, names: Iterable[KVName]) -> list[KVRow]:
        """Return the rows of the given names."""
        with self._database.read() as connection:
            return [row for name in names if (row := _find(connection, name)) is not None]

    def all(self) -> list[KVRow]:
        """Return every row."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT kv.id, n.name, kv.tokens, kv.bytes FROM kv JOIN namespaces n ON n.id = kv.namespace"
            ).fetchall()
        return self._named(rows)

    def unreferenced(self) -> list[KVRow]:
        """Return the rows outside the bin none of whose chunks exists."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT kv.id, n.name, kv.tokens, kv.bytes FROM kv JOIN namespaces n ON n.id = kv.namespace"
                " WHERE NOT EXISTS ("
                "SELECT 1 FROM kv_chunks k JOIN chunks c ON c.chunk_id = k.chunk_id WHERE k.kv = kv.id)"
                " AND kv.id NOT IN (SELECT kv FROM bin)"
            ).fetchall()
        return self._named(rows)

    def binned(self, before: float) -> list[KVRow]:
        """Return the rows that were put into the bin before a store time."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT kv.id, n.name, kv.tokens, kv.bytes FROM bin JOIN kv ON kv.id = bin.kv"
                " JOIN namespaces n ON n.id = kv.namespace WHERE bin.since < ?",
                (before,),
            ).fetchall()
        return self._named(rows)

    def _named(self, rows: Iterable[tuple[int, object, object, object]]) -> list[KVRow]:
        """Return the rows with valid names; a damaged row is reported as a fault and left out."""
        named = []
        for row, namespace, tokens, size in rows:
            if is_name(namespace) and is_name(tokens) and isinstance(size, int):
                named.append(KVRow(row, (str(namespace), str(tokens)), size))
            else:
                self._database.faults.add("A row about a KV file is damaged.")
        return named

    def unlinked(self, row: int, chunk_ids: Sequence[str]) -> list[str]:
        """Return those of the chunks of a file that exist and are not linked to its row."""
        linked = "SELECT chunk_id FROM kv_chunks WHERE kv = ?"
        query = f"SELECT 1 FROM chunks WHERE chunk_id = ? AND chunk_id NOT IN ({linked})"
        with self._database.read() as connection:
            return [chunk_id for chunk_id in chunk_ids if connection.execute(query, (chunk_id, row)).fetchone()]

    def drop(self, names: Iterable[KVName]) -> int:
        """Delete the rows of files that no longer exist; return how many rows there were."""
        dropped = 0
        with self._database.write(durable=False) as connection:
            for name in names:
                dropped += connection.execute(
                    "DELETE FROM kv WHERE tokens = ? AND namespace = (SELECT id FROM namespaces WHERE name = ?)",
                    (name[1], name[0]),
                ).rowcount
        return dropped

    def mark_deleted(self, rows: Sequence[int]) -> list[KVName]:
        """Delete rows and mark their files for removal; their chunks are not warmed again until retrieved."""
        with self._database.write() as connection:
            for row in rows:
                connection.execute(
                    "INSERT OR REPLACE INTO refused SELECT kv.namespace, c.id, c.uses + c.wants FROM kv"
                    " JOIN kv_chunks k ON k.kv = kv.id JOIN chunks c ON c.chunk_id = k.chunk_id WHERE kv.id = ?",
                    (row,),
                )
            return mark_deleted(connection, rows)

    def marked_deleted(self) -> list[KVName]:
        """Return the files that are marked for removal."""
        with self._database.read() as connection:
            rows = connection.execute("SELECT namespace, tokens FROM doomed").fetchall()
        return [(namespace, tokens) for namespace, tokens in rows if is_name(namespace) and is_name(tokens)]

    def clear_deleted(self, names: Iterable[KVName]) -> None:
        """Clear the marks of files that have been removed."""
        with self._database.write(durable=False) as connection:
            connection.executemany("DELETE FROM doomed WHERE namespace = ? AND tokens = ?", names)

    def count_hits(self, names: Mapping[KVName, int]) -> None:
        """Add uses of files; older uses decay with every access to any file."""
        with self._database.write(durable=False) as connection:
            tick = int(_number(connection, _TICK))
            for name, count in names.items():
                tick += count
                usage = connection.execute(
                    "SELECT kv.id, hits, tick, bytes, prefill_seconds FROM kv JOIN namespaces n ON n.id = kv.namespace"
                    " WHERE n.name = ? AND tokens = ?",
                    name,
                ).fetchone()
                if usage is not None:
                    row, hits, last, size, seconds = usage
                    hits = decayed(hits, tick - last) + count
                    values = (hits, tick, policy.rank(hits, policy.Cost(size, seconds), tick), row)
                    connection.execute("UPDATE kv SET hits = ?, tick = ?, rank = ? WHERE id = ?", values)
            _set(connection, _TICK, tick)

    def candidates(self, own: str | None) -> Generator[Candidate, None, None]:
        """Yield rows in the order of eviction, as `eviction.candidates` does."""
        with self._database.snapshot() as connection:
            yield from candidates(connection, own)

    def admission_score(self, chunk_ids: Sequence[str], cost: policy.Cost) -> AdmissionScore:
        """Return the rank and demand that a new file for these chunks would have."""
        with self._database.snapshot() as connection:
            demand = 0
            pinned = False
            folders = Scope(pinned_folders(connection))
            for chunk_id in chunk_ids:
                chunk = connection.execute(
                    "SELECT id, uses + wants FROM chunks WHERE chunk_id = ?", (chunk_id,)
                ).fetchone()
                if chunk is None:
                    continue
                demand = max(demand, chunk[1])
                pinned |= not folders.everything and _is_in_scope(connection, chunk[0], folders)
            tick = int(_number(connection, _TICK))
        return AdmissionScore(policy.rank(_past_uses(max(1, demand)), cost, tick), demand, pinned)

    def refuse(self, namespace: str, chunk_ids: Sequence[str]) -> None:
        """Record that these chunks were not admitted, so that they are not prefilled again in vain."""
        with self._database.write(durable=False) as connection:
            row = _namespace(connection, namespace)
            for chunk_id in chunk_ids:
                connection.execute(
                    "INSERT OR REPLACE INTO refused SELECT ?, id, uses + wants FROM chunks WHERE chunk_id = ?",
                    (row, chunk_id),
                )

    def pending(self, namespace: str, limit: int, under: Sequence[Path], *, demanded_only: bool) -> list[PendingChunk]:
        """Return chunks without KV in this namespace: wanted, then most used, then most recent first.

        `demanded_only` leaves out chunks that were retrieved less than twice and are not pinned.
        """
        scope = Scope(under)
        with self._database.snapshot() as connection:
            pins = Scope(pinned_folders(connection))
            condition, values = "", (*scope.values,)
            if demanded_only:
                or_pinned = "" if pins.everything else f" OR c.id IN {pins.chunk_rows()}"
                condition = f" AND (c.uses + c.wants >= {policy.ADMIT_FROM}{or_pinned})"
                values += pins.values
            statement = (
                "SELECT c.chunk_id, c.text, (SELECT d.path FROM places p JOIN documents d ON d.id = p.document"
                " WHERE p.chunk = c.id ORDER BY d.path LIMIT 1) FROM chunks c"
                " LEFT JOIN namespaces n ON n.name = ? LEFT JOIN refused r ON r.namespace = n.id AND r.chunk = c.id"
                " WHERE NOT EXISTS (SELECT 1 FROM kv_chunks k JOIN kv ON kv.id = k.kv"
                "  WHERE k.chunk_id = c.chunk_id AND kv.namespace = n.id)"
                f" AND (r.demand IS NULL OR c.uses + c.wants > r.demand) AND {stays('c.id')}"
                f"{scope.and_chunk('c.id')}{condition}"
                " ORDER BY c.wants DESC, c.uses DESC, c.recent DESC, c.id LIMIT ?"
            )
            return pending_chunks(connection, statement, (namespace, *values), limit, self._database.faults)

    def pending_tokens(self, namespace: str) -> int:
        """Return the number of tokens without KV, summed over all namespaces of this one's model."""
        query = (
            "SELECT coalesce(sum(num_tokens), 0) FROM chunks c WHERE NOT EXISTS (SELECT 1 FROM kv_chunks k"
            " JOIN kv ON kv.id = k.kv JOIN namespaces n ON n.id = kv.namespace"
            " WHERE k.chunk_id = c.chunk_id AND n.name = ?)"
        )
        with self._database.read() as connection:
            names = namespaces_of_model(connection, namespace)
            return sum(int(connection.execute(query, (name,)).fetchone()[0]) for name in names)

    def least_recently_read(self, namespace: str, limit: int) -> list[KVName]:
        """Return up to `limit` files of a namespace, least recently read first."""
        query = (
            "SELECT tokens FROM kv JOIN namespaces n ON n.id = namespace WHERE name = ? ORDER BY tick, kv.id LIMIT ?"
        )
        with self._database.read() as connection:
            rows = connection.execute(query, (namespace, limit)).fetchall()
        return [(namespace, tokens) for (tokens,) in rows if is_name(tokens)]

    def warm(self, namespace: str, under: Sequence[Path]) -> int:
        """Return how many chunks in scope have KV in this namespace."""
        scope = Scope(under)
        with self._database.read() as connection:
            count: int = connection.execute(
                "SELECT count(DISTINCT c.id) FROM kv JOIN namespaces n ON n.id = kv.namespace"
                " JOIN kv_chunks k ON k.kv = kv.id JOIN chunks c ON c.chunk_id = k.chunk_id"
                f" WHERE n.name = ?{scope.and_chunk('c.id')}",
                (namespace, *scope.values),
            ).fetchone()[0]
        return count

    def fullest_namespace(self) -> str | None:
        """Return the namespace with the most KV files, the auxiliary's as the last resort; None without files."""
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT n.name FROM kv JOIN namespaces n ON n.id = kv.namespace"
                " GROUP BY n.id ORDER BY n.name = ?, count(*) DESC, n.id LIMIT 1",
                (eviction.auxiliary_of(connection, None),),
            ).fetchone()
        return None if row is None else str(row[0])

    def rates(self, namespace: str) -> Rates | None:
        """Return the rates of the namespace's model; None if there is no file."""
        with self._database.read() as connection:
            names = namespaces_of_model(connection, namespace)
            query = (
                "SELECT sum(bytes), sum(prefill_seconds), sum(num_tokens) FROM kv"
                f" JOIN namespaces n ON n.id = kv.namespace WHERE n.name IN ({_marks(names)})"
            )
            size, seconds, tokens = connection.execute(query, names).fetchone()
        return Rates(size / tokens, seconds / tokens) if tokens else None

    def namespace_blocks(self, namespace: str, *, upper: bool = True) -> int:
        """Return the bytes of the files of the namespace's model, in whole blocks.

        Without `upper`, only this namespace and those evicted after it. The bin is left out, being evicted first.
        """
        with self._database.read() as connection:
            family = eviction.family_of(connection, namespace)
            names = namespaces_of_model(connection, namespace) if upper else family[: family.index(namespace) + 1]
            blocks = connection.execute(
                "SELECT coalesce(sum((bytes + 4095) / 4096), 0) FROM kv"
                f" JOIN namespaces n ON n.id = kv.namespace WHERE n.name IN ({_marks(names)})"
                " AND kv.id NOT IN (SELECT kv FROM bin)",
                names,
            ).fetchone()[0]
        return int(blocks) * 4096

    def total_blocks(self) -> int:
        """Return the bytes of all files in whole blocks, from the rows instead of a scan."""
        with self._database.read() as connection:
            blocks = connection.execute("SELECT coalesce(sum((bytes + 4095) / 4096), 0) FROM kv").fetchone()
        return int(blocks[0]) * 4096

    def register_model(self, names: Sequence[str], auxiliary: str) -> None:
        """Record the namespaces of one model and its auxiliary, as `eviction.register_model` does."""
        eviction.register_model(self._database, names, auxiliary)

    def pin(self, folder: Path, *, pinned: bool) -> None:
        """Pin a folder, so that its chunks are evicted last, or unpin it."""
        statement = "INSERT OR IGNORE INTO pins VALUES (?)" if pinned else "DELETE FROM pins WHERE path = ?"
        with self._database.write() as connection:
            connection.execute(statement, (to_blob(folder),))
            if pinned:
                scope = Scope([folder])
                connection.execute(f"DELETE FROM refused WHERE chunk IN {scope.chunk_rows()}", scope.values)

    def pins(self) -> list[Path]:
        """Return the pinned folders."""
        with self._database.read() as connection:
            return pinned_folders(connection)


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _past_uses(demand: int) -> float:
    return float(min(demand, policy.MOST_PAST_USES))


def _find(connection: sqlite3.Connection, name: KVName) -> KVRow | None:
    row = connection.execute(
        "SELECT kv.id, kv.bytes FROM kv JOIN namespaces n ON n.id = kv.namespace WHERE n.name = ? AND tokens = ?", name
    ).fetchone()
    return None if row is None else KVRow(row[0], name, row[1])


def _link(connection: sqlite3.Connection, row: int, chunk_ids: Sequence[str]) -> None:
    pairs = [(chunk_id, row) for chunk_id in chunk_ids]
    connection.executemany("INSERT OR IGNORE INTO kv_chunks (chunk_id, kv) VALUES (?, ?)", pairs)
    for chunk_id in chunk_ids:
        connection.execute("UPDATE chunks SET wants = 0 WHERE chunk_id = ? AND wants > 0", (chunk_id,))
        connection.execute(
            "DELETE FROM refused WHERE chunk = (SELECT id FROM chunks WHERE chunk_id = ?)"
            " AND namespace = (SELECT namespace FROM kv WHERE id = ?)",
            (chunk_id, row),
        )


def _namespace(connection: sqlite3.Connection, name: str) -> int:
    connection.execute("INSERT OR IGNORE INTO namespaces (name) VALUES (?)", (name,))
    return int(connection.execute("SELECT id FROM namespaces WHERE name = ?", (name,)).fetchone()[0])


def _number(connection: sqlite3.Connection, name: str) -> float:
    row = connection.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
    return 0.0 if row is None else float(row[0])


def _set(connection: sqlite3.Connection, name: str, value: float) -> None:
    connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, value))


def _is_in_scope(connection: sqlite3.Connection, chunk: int, scope: Scope) -> bool:
    place = connection.execute(
        "SELECT 1 FROM places p JOIN documents d ON d.id = p.document WHERE p.chunk = ?"
        f"{scope.and_path('d.path')} LIMIT 1",
        (chunk, *scope.values),
    ).fetchone()
    return place is not None
