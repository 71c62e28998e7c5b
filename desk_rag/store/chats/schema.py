"""Tables of `chats.sqlite`. A released step is never edited; `user_version` says how many were taken."""

from __future__ import annotations

import sqlite3
from contextlib import suppress

from desk_rag.errors import UnknownFormat

_STEP_1 = (
    """CREATE TABLE chats (
        id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again: `chats show 7` stays the same chat
        title TEXT NOT NULL,
        started_at REAL NOT NULL,
        changed_at REAL NOT NULL)""",
    """CREATE TABLE turns (
        id INTEGER PRIMARY KEY,
        chat INTEGER NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
        question TEXT NOT NULL,
        asked_as TEXT NOT NULL,
        answer TEXT NOT NULL,
        found INTEGER NOT NULL,
        stopped INTEGER NOT NULL,
        forgotten INTEGER NOT NULL DEFAULT 0,
        model TEXT NOT NULL,
        mode TEXT NOT NULL,
        asked_at REAL NOT NULL)""",
    "CREATE INDEX turns_chat ON turns (chat, id)",
    """CREATE TABLE limits (
        turn INTEGER NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
        path BLOB NOT NULL)""",  # os.fsencode: file names need not be UTF-8
    "CREATE INDEX limits_turn ON limits (turn)",
    """CREATE TABLE sources (
        id INTEGER PRIMARY KEY,
        turn INTEGER NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        path BLOB NOT NULL,
        title TEXT NOT NULL,
        heading TEXT NOT NULL,
        page_start INTEGER, page_end INTEGER, line_start INTEGER, line_end INTEGER,
        place TEXT NOT NULL,
        quote TEXT NOT NULL,
        digest TEXT NOT NULL)""",
    "CREATE INDEX sources_turn ON sources (turn, id)",
    "CREATE INDEX sources_path ON sources (path)",
)
_STEP_2 = ("ALTER TABLE turns ADD COLUMN notices TEXT NOT NULL DEFAULT ''",)  # one a line
_STEPS = (_STEP_1, _STEP_2)
VERSION = len(_STEPS)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a new or older database to this version. Raises UnknownFormat for a newer one, sqlite3.Error."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        raise UnknownFormat(
            f"The chats were written by a newer desk-rag (version {version}, this one knows {VERSION}).",
            remedy="Update desk-rag. Until then chats are neither shown nor saved.",
        )
    if version == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])  # another process may have been faster
        for step in _STEPS[version:]:
            for statement in step:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
