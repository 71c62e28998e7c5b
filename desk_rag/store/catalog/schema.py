"""The catalog's tables, step by step.

A released step is never edited: a change of schema is a further step, and `user_version` says how many were taken.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache
from pathlib import Path

from desk_rag.errors import UnknownFormat
from desk_rag.store.catalog.checksums import seal_everything

_STEP_1 = (
    """CREATE TABLE documents (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        path BLOB NOT NULL UNIQUE,          -- os.fsencode: file names need not be UTF-8
        title TEXT NOT NULL,
        digest TEXT NOT NULL,
        size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, inode TEXT NOT NULL, parser TEXT NOT NULL,
        state TEXT NOT NULL, reason TEXT NOT NULL,
        indexed_at REAL NOT NULL)""",
    "CREATE INDEX documents_digest ON documents (digest) WHERE digest <> ''",
    """CREATE TABLE chunks (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        chunk_id TEXT NOT NULL UNIQUE,
        text TEXT NOT NULL,
        grams TEXT NOT NULL,                -- further words of the text, for scripts without spaces (words.py)
        num_tokens INTEGER NOT NULL,
        uses INTEGER NOT NULL DEFAULT 0,    -- times retrieved
        wants INTEGER NOT NULL DEFAULT 0,   -- times an answer had to do without its KV
        recent INTEGER NOT NULL)            -- newest mtime_ns among its documents""",
    "CREATE INDEX chunks_order ON chunks (wants DESC, uses DESC, recent DESC)",
    "CREATE INDEX chunks_recent ON chunks (recent DESC, id)",
    """CREATE TABLE places (
        document INTEGER NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
        ordinal INTEGER NOT NULL,
        chunk INTEGER NOT NULL REFERENCES chunks (id),
        heading TEXT NOT NULL,
        page_start INTEGER, page_end INTEGER, line_start INTEGER, line_end INTEGER,
        PRIMARY KEY (document, ordinal)) WITHOUT ROWID""",
    "CREATE INDEX places_chunk ON places (chunk)",
    """CREATE VIRTUAL TABLE chunk_words USING fts5 (text, grams, content='chunks', content_rowid='id',
        tokenize="porter unicode61 remove_diacritics 2")""",
    """CREATE TRIGGER chunks_added AFTER INSERT ON chunks BEGIN
        INSERT INTO chunk_words (rowid, text, grams) VALUES (new.id, new.text, new.grams); END""",
    """CREATE TRIGGER chunks_removed AFTER DELETE ON chunks BEGIN
        INSERT INTO chunk_words (chunk_words, rowid, text, grams)
        VALUES ('delete', old.id, old.text, old.grams); END""",
    """CREATE VIRTUAL TABLE name_words USING fts5 (words, tokenize="unicode61 remove_diacritics 2")""",
    """CREATE TABLE embedders (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, dim INTEGER NOT NULL,
        removals INTEGER NOT NULL DEFAULT 0)""",
    """CREATE TABLE vectors (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again: a larger one is a newer vector
        embedder INTEGER NOT NULL REFERENCES embedders (id),
        chunk INTEGER NOT NULL REFERENCES chunks (id) ON DELETE CASCADE,
        vector BLOB NOT NULL,                   -- float32 little endian, unit length
        UNIQUE (embedder, chunk))""",
    "CREATE INDEX vectors_chunk ON vectors (chunk)",
    """CREATE TRIGGER vectors_removed AFTER DELETE ON vectors BEGIN
        UPDATE embedders SET removals = removals + 1 WHERE id = old.embedder; END""",
    "CREATE TABLE namespaces (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    """CREATE TABLE kv (
        id INTEGER PRIMARY KEY,
        namespace INTEGER NOT NULL REFERENCES namespaces (id),
        tokens TEXT NOT NULL,
        bytes INTEGER NOT NULL, num_tokens INTEGER NOT NULL, prefill_seconds REAL NOT NULL,
        hits REAL NOT NULL, tick INTEGER NOT NULL, rank REAL NOT NULL,    -- see policy.py
        UNIQUE (namespace, tokens))""",
    "CREATE INDEX kv_rank ON kv (namespace, rank)",
    """CREATE TABLE kv_chunks (                   -- by chunk id, not by row: it outlives a lost catalog
        chunk_id TEXT NOT NULL,
        kv INTEGER NOT NULL REFERENCES kv (id) ON DELETE CASCADE,
        PRIMARY KEY (chunk_id, kv)) WITHOUT ROWID""",
    "CREATE INDEX kv_chunks_kv ON kv_chunks (kv)",
    """CREATE TABLE refused (                     -- not admitted; asked again once it is used more
        namespace INTEGER NOT NULL REFERENCES namespaces (id),
        chunk INTEGER NOT NULL REFERENCES chunks (id) ON DELETE CASCADE,
        demand INTEGER NOT NULL,
        PRIMARY KEY (namespace, chunk)) WITHOUT ROWID""",
    "CREATE INDEX refused_chunk ON refused (chunk)",
    """CREATE TABLE doomed (
        namespace TEXT NOT NULL, tokens TEXT NOT NULL, PRIMARY KEY (namespace, tokens)) WITHOUT ROWID""",
    "CREATE TABLE pins (path BLOB PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE state (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID",
)

_STEP_2 = (  # checksums of what an answer shows (checksums.py)
    "ALTER TABLE documents ADD COLUMN num_places INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE documents ADD COLUMN sum TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE places ADD COLUMN sum TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE vectors ADD COLUMN sum TEXT",  # NULL: made before this step; its length of one is all that is checked
    "INSERT INTO state VALUES ('identity', lower(hex(randomblob(16)))), ('changes', 0)",
)

_STEP_3 = (
    """CREATE TABLE volumes (                      -- indexed folders, and mount points inside them, as last seen
        root BLOB NOT NULL, path BLOB NOT NULL,    -- equal for the indexed folder itself
        filesystem TEXT NOT NULL, inode TEXT NOT NULL,
        PRIMARY KEY (root, path)) WITHOUT ROWID""",
    """CREATE TABLE deletions (                    -- documents whose files are gone and that are kept for a while
        document INTEGER PRIMARY KEY REFERENCES documents (id) ON DELETE CASCADE,
        root BLOB NOT NULL,
        since REAL NOT NULL,                       -- store time, see store_clock.py
        decision TEXT NOT NULL DEFAULT '')""",  # '', 'confirmed' or 'kept'
    # A document that is written again has a file again.
    """CREATE TRIGGER documents_back AFTER UPDATE OF path, size, mtime_ns ON documents BEGIN
        DELETE FROM deletions WHERE document = new.id; END""",
    """CREATE TABLE bin (                          -- chunk KV of deleted documents, the first to be evicted
        kv INTEGER PRIMARY KEY REFERENCES kv (id) ON DELETE CASCADE,
        since REAL NOT NULL)""",
    """CREATE TRIGGER chunks_back AFTER INSERT ON chunks BEGIN
        DELETE FROM bin WHERE kv IN (SELECT kv FROM kv_chunks WHERE chunk_id = new.chunk_id); END""",
)

_STEP_4 = (
    """CREATE TABLE token_vectors (                -- for late interaction; made with the vectors or after them
        id INTEGER PRIMARY KEY,
        embedder INTEGER NOT NULL REFERENCES embedders (id),
        chunk INTEGER NOT NULL REFERENCES chunks (id) ON DELETE CASCADE,
        bytes INTEGER NOT NULL,
        signs BLOB NOT NULL,                     -- one bit per dimension of each word piece
        sum TEXT NOT NULL,
        UNIQUE (chunk, embedder))""",
    "CREATE INDEX token_vectors_size ON token_vectors (embedder, bytes)",
)

_STEP_5 = (
    # Places within the chunk, see rows.py; empty in rows of before, whose sums need not be computed again.
    "ALTER TABLE places ADD COLUMN parts TEXT NOT NULL DEFAULT ''",
)

_STEP_6 = (
    # Change time of a file; 0 in rows of before, whose sums need not be computed again.
    "ALTER TABLE documents ADD COLUMN ctime_ns INTEGER NOT NULL DEFAULT 0",
)

STEPS: tuple[tuple[str, ...], ...] = (_STEP_1, _STEP_2, _STEP_3, _STEP_4, _STEP_5, _STEP_6)
_AFTER: dict[int, Callable[[sqlite3.Connection], None]] = {2: seal_everything}
"""Changes that SQL alone cannot make, by the number of the step that asks for them; made after the last step."""
VERSION = len(STEPS)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring a catalog to `VERSION`, all steps or none. Raises UnknownFormat for a newer one, touching nothing."""
    if version(connection) == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        present = version(connection)  # again: another process may have been faster
        if present > VERSION:
            raise UnknownFormat(
                f"{path} was written by a newer desk-rag (schema {present}; this one knows {VERSION}).",
                remedy="Update desk-rag, or give `data_dir` another directory.",
            )
        for step in STEPS[present:]:
            for statement in step:
                connection.execute(statement)
        for number in range(present + 1, VERSION + 1):  # these know the tables of the last step only
            if number in _AFTER:
                _AFTER[number](connection)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # SQLite has rolled back by itself after some errors
            connection.execute("ROLLBACK")
        raise


def is_intact(connection: sqlite3.Connection) -> bool:
    """True if a catalog of `VERSION` has the tables, indexes and triggers that the steps make.

    A damaged definition can stay valid SQL and change what every row means.
    """
    return _definitions(connection) == _expected()


@cache
def _expected() -> frozenset[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, Path(":memory:"))
        return _definitions(connection)


def _definitions(connection: sqlite3.Connection) -> frozenset[tuple[str, str]]:
    """Names and SQL of all objects but the tables that the word indexes keep for themselves."""
    rows = connection.execute(
        "SELECT name, sql FROM sqlite_master"
        " WHERE sql IS NOT NULL AND name NOT GLOB '*_words_*' AND name NOT GLOB 'sqlite_*'"
    )
    return frozenset((str(name), str(sql)) for name, sql in rows.fetchall())


def version(connection: sqlite3.Connection) -> int:
    """Number of steps a catalog has taken."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
