"""Save, list, search and forget chats. Any process of desk-rag may write."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path

from desk_rag.documents.formats import place_units
from desk_rag.documents.location import Location
from desk_rag.errors import ConfigError, StoreError, of_system
from desk_rag.store.catalog.paths import Scope, from_blob, to_blob
from desk_rag.store.chats.database import ChatsDamaged, ChatsDatabase, ChatsMoved, put_aside
from desk_rag.store.chats.place import clear, places, settle
from desk_rag.store.chats.records import ChatRow, SavedAs, SavedChat, SavedSource, SavedTurn

_LONGEST_TITLE = 80
_SHOWN = 120
_ALL_TEXT = (
    "t.question || char(10) || t.asked_as || char(10) || t.answer || char(10) || t.notices || char(10)"
    " || coalesce((SELECT group_concat(s.title || char(10) || s.heading || char(10) || s.quote, char(10))"
    " FROM sources s WHERE s.turn = t.id), '')"
)
"""SQL for everything that a turn `t` says, its quotes and notices included."""


class Chats:
    """The chats of one data directory."""

    def __init__(self, database: ChatsDatabase, root: Path | None = None) -> None:
        """Hold an open database; with `root`, the data directory, it is opened anew after another process moved it."""
        self._opened = database
        self._root = root

    @property
    def _database(self) -> ChatsDatabase:
        """The database, where it lies now."""
        if self._root is not None and not self._opened.is_current():
            self._opened.close()
            self._opened = ChatsDatabase(settle(self._root), create=True)
        return self._opened

    def add(self, chat_id: int | None, turn: SavedTurn) -> SavedAs:
        """Append a turn to a chat, or begin one if there is none with this id. Raises StoreError subclasses."""
        now = time.time()
        with self._database.write() as connection:
            if chat_id is None or not _touch(connection, chat_id, now):
                title = _title(turn.question)
                row = "INSERT INTO chats (title, started_at, changed_at) VALUES (?, ?, ?)"
                chat_id = int(connection.execute(row, (title, turn.asked_at, now)).lastrowid or 0)
            return SavedAs(chat_id, _insert(connection, chat_id, turn))

    def replace(self, saved: SavedAs, turn: SavedTurn) -> SavedAs:
        """Save a turn in the place of an older one, or as a new one if that is gone."""
        with self._database.write() as connection:
            if connection.execute("DELETE FROM turns WHERE id = ?", (saved.turn_id,)).rowcount:
                _touch(connection, saved.chat_id, time.time())
                return SavedAs(saved.chat_id, _insert(connection, saved.chat_id, turn, saved.turn_id))
        return self.add(saved.chat_id, turn)

    def questions(self, limit: int) -> list[str]:
        """Return the questions asked last, newest first, each once."""
        query = "SELECT question FROM turns GROUP BY question ORDER BY max(id) DESC LIMIT ?"
        with self._database.read() as connection:
            return [str(question) for (question,) in connection.execute(query, (limit,))]

    def rows(self, limit: int = 1_000_000) -> list[ChatRow]:
        """Return the chats, the one changed last first."""
        query = (
            "SELECT c.id, c.title, c.changed_at, (SELECT count(*) FROM turns t WHERE t.chat = c.id) FROM chats c"
            " ORDER BY c.changed_at DESC, c.id DESC LIMIT ?"
        )
        with self._database.read() as connection:
            return [ChatRow(*row) for row in connection.execute(query, (limit,))]

    def latest(self) -> int | None:
        """Return the id of the chat changed last."""
        rows = self.rows(1)
        return rows[0].chat_id if rows else None

    def get(self, chat_id: int) -> SavedChat:
        """Return a whole chat. Raises ConfigError if there is none with this id."""
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT id, title, started_at, changed_at FROM chats WHERE id = ?", (chat_id,)
            ).fetchone()
            if row is None:
                raise _no_chat(chat_id)
            turns = connection.execute(
                "SELECT id, question, asked_as, answer, found, stopped, model, mode, asked_at, forgotten,"
                " notices"
                " FROM turns WHERE chat = ? ORDER BY id",
                (chat_id,),
            ).fetchall()
            return SavedChat(row[0], row[1], row[2], row[3], tuple(_turn(connection, turn) for turn in turns))

    def search(self, words: str, limit: int = 50) -> list[ChatRow]:
        """Return the chats that contain all `words` in what one turn shows or in their title, latest first: question,
        answer, notices, quotes and their files. The excerpt is the part of the turn that contains the first word."""
        wanted = words.casefold().split()
        if not wanted:
            return []
        quotes = (
            "SELECT group_concat(s.quote || char(10) || CAST(s.path AS TEXT), char(10)) FROM sources s"
            " WHERE s.turn = t.id AND s.quote <> ''"
        )
        shown = (
            "t.question || char(10) || t.asked_as || char(10) || t.answer || char(10)"
            f" || t.notices || char(10)"
            f" || coalesce(({quotes}), '')"
        )
        searched = f"c.title || char(10) || {shown}"
        condition = " AND ".join(f"instr(folded({searched}), ?) > 0" for _ in wanted)
        query = (
            "SELECT c.id, c.title, c.changed_at, (SELECT count(*) FROM turns n WHERE n.chat = c.id),"
            f" min(t.id), {shown} FROM turns t JOIN chats c ON c.id = t.chat WHERE {condition}"
            " GROUP BY c.id ORDER BY c.changed_at DESC, c.id DESC LIMIT ?"
        )
        with self._database.read() as connection:
            rows = connection.execute(query, (*wanted, limit)).fetchall()
        return [ChatRow(row[0], row[1], row[2], row[3], _excerpt(row[5], wanted[0])) for row in rows]

    def rename(self, chat_id: int, title: str) -> None:
        """Give a chat another title. Raises ConfigError if there is none with this id."""
        plain = _title(title)
        with self._database.write() as connection:
            if not connection.execute("UPDATE chats SET title = ? WHERE id = ?", (plain, chat_id)).rowcount:
                raise _no_chat(chat_id)

    def delete(self, chat_id: int) -> None:
        """Delete a chat. Raises ConfigError if there is none with this id."""
        with self._database.write() as connection:
            if not connection.execute("DELETE FROM chats WHERE id = ?", (chat_id,)).rowcount:
                raise _no_chat(chat_id)

    def delete_turn(self, saved: SavedAs) -> None:
        """Delete a turn, and its chat if that has no other."""
        with self._database.write() as connection:
            connection.execute("DELETE FROM turns WHERE id = ?", (saved.turn_id,))
            connection.execute(
                "DELETE FROM chats WHERE id = ? AND NOT EXISTS (SELECT 1 FROM turns WHERE chat = chats.id)",
                (saved.chat_id,),
            )

    def texts(self) -> Iterator[str]:
        """Yield all text of every turn, and the titles of the chats."""
        with self._database.read() as connection:
            rows = connection.execute(f"SELECT {_ALL_TEXT} FROM turns t UNION SELECT title FROM chats").fetchall()
        yield from (str(text) for (text,) in rows)

    def forget(self, path: Path, repeated: Sequence[str] = ()) -> int:
        """Delete turns that contain something of the files at or below `path`; return how many.

        These are turns that quote or cite such a file, that read one and say something without a quote, or hold one of
        the `repeated` pieces of text elsewhere than in the line of such a file among their sources. In other turns
        only that line is removed, and rewritten questions, which may repeat a deleted answer, are emptied.
        """
        scope = Scope([path])
        with self._database.write() as connection:
            inside = scope.path_condition("path")
            touched = f"SELECT DISTINCT turn FROM sources WHERE {inside}"
            unsupported = (
                f"id IN ({touched}) AND (stopped = 1 OR instr(answer, '[?]') > 0"
                " OR found = 1 AND NOT EXISTS (SELECT 1 FROM sources s WHERE s.turn = turns.id AND s.quote <> ''))"
            )
            cited = "instr(turns.notices, '[' || number || ']') > 0"
            rows = connection.execute(
                "SELECT id, chat, question FROM turns"
                f" WHERE id IN (SELECT turn FROM sources WHERE (quote <> '' OR {cited}) AND {inside}) OR {unsupported}",
                (*scope.values, *scope.values),
            ).fetchall()
            doomed = {int(turn): (int(chat), str(question)) for turn, chat, question in rows}
            connection.execute(f"DELETE FROM sources WHERE {inside}", scope.values)
            connection.execute(f"DELETE FROM limits WHERE {inside}", scope.values)
            pieces = [piece.casefold() for piece in repeated]
            if pieces:
                for turn, chat, question, text in connection.execute(
                    f"SELECT t.id, t.chat, t.question, {_ALL_TEXT} FROM turns t"
                ).fetchall():
                    if any(piece in text.casefold() for piece in pieces):
                        doomed[int(turn)] = int(chat), str(question)
            for turn, (chat, _) in doomed.items():
                connection.execute("UPDATE turns SET asked_as = '' WHERE chat = ? AND id > ?", (chat, turn))
            connection.executemany("DELETE FROM turns WHERE id = ?", [(turn,) for turn in doomed])
            _retitle(connection, {_title(question) for _, question in doomed.values()}, pieces)
        return len(doomed)

    def close(self) -> None:
        """Close the database."""
        self._opened.close()


def open_chats(root: Path, *, create: bool = True) -> tuple[Chats | None, str]:
    """Open the chats of a data directory; also return a notice, '' if all is well.

    A damaged database is moved to quarantine, and an empty one takes its place. Returns None, and never raises, if
    chats cannot be used: a chat must not stop an answer.
    """
    place = settle(root)
    try:
        if create and place != root:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            return Chats(ChatsDatabase(place, create=create), root), ""
        except ChatsDamaged:
            name = put_aside(place)
            chats = Chats(ChatsDatabase(place, create=True), root)
            notice = f"The saved chats were damaged; they were put aside as quarantine/{name}"
            return chats, f"{notice}, and new ones were started."
    except FileNotFoundError:
        return None, ""
    except ChatsMoved:
        return open_chats(root, create=create)
    except (StoreError, OSError) as error:
        reason = error.message if isinstance(error, StoreError) else str(error)
        return None, f"Chats cannot be saved: {reason}"


def saved_text(root: Path) -> str:
    """Return all text in the chats of a data directory, turn by turn; damaged chats are left out."""
    texts: list[str] = []
    for place in places(root):
        try:
            chats = Chats(ChatsDatabase(place, create=False))
        except (FileNotFoundError, ChatsDamaged):
            continue
        try:
            texts += chats.texts()
        finally:
            chats.close()
    return "\n".join(texts)


def knows(root: Path, path: Path) -> bool:
    """Return whether the chats of a data directory contain something of the files at or below `path`.

    Damaged chats count, because they may.
    """
    scope = Scope([path])
    for place in places(root):
        try:
            database = ChatsDatabase(place, create=False)
        except FileNotFoundError:
            continue
        except ChatsDamaged:
            return True
        try:
            with database.read() as connection:
                query = f"SELECT 1 FROM sources WHERE {scope.path_condition('path')} LIMIT 1"
                if connection.execute(query, scope.values).fetchone():
                    return True
        finally:
            database.close()
    return False


def forget_folder(root: Path, path: Path, repeated: Sequence[str] = ()) -> int:
    """Delete the turns of a data directory that contain something of `path`, as `Chats.forget`; return how many.

    Damaged chats are deleted, because they may contain it. Raises StoreError subclasses.
    """
    return sum(_forget(place, path, repeated) for place in places(root))


def _forget(place: Path, path: Path, repeated: Sequence[str]) -> int:
    try:
        chats = Chats(ChatsDatabase(place, create=False))
    except FileNotFoundError:
        chats = None
    except ChatsDamaged:
        chats = None
        _change(place, lambda: put_aside(place))
    _change(place, lambda: clear(place, all_of_it=False))
    if chats is None:
        return 0
    try:
        return chats.forget(path, repeated)
    finally:
        chats.close()


def _retitle(connection: sqlite3.Connection, titles: Set[str], pieces: Sequence[str]) -> None:
    """Delete chats that have no turn left, and name by their first question those with one of `titles` or `pieces`."""
    connection.execute("DELETE FROM chats WHERE NOT EXISTS (SELECT 1 FROM turns WHERE chat = chats.id)")
    rows = connection.execute(
        "SELECT c.id, c.title, (SELECT question FROM turns WHERE chat = c.id ORDER BY id LIMIT 1) FROM chats c"
    ).fetchall()
    for chat, title, first in rows:
        if title in titles or any(piece in title.casefold() for piece in pieces):
            connection.execute("UPDATE chats SET title = ? WHERE id = ?", (_title(first), chat))


def _title(question: str) -> str:
    return " ".join(question.split())[:_LONGEST_TITLE]


def _change(place: Path, action: Callable[[], object]) -> None:
    """Run `action`; raise StoreError if the system does not allow it."""
    try:
        action()
    except OSError as error:
        raise of_system(error, place) or StoreError(f"{place} cannot be changed: {error}.") from error


def _excerpt(shown: str, word: str) -> str:
    """Return the line that contains a word, from a little before the word if the line is long."""
    line = next((line for line in shown.splitlines() if word in line.casefold()), shown)
    line = " ".join(line.split())
    start = line.casefold().find(word)
    if start + len(word) <= _SHOWN:
        return line[:_SHOWN]
    return "…" + line[start - _SHOWN // 3 :][: _SHOWN - 1]


def _touch(connection: sqlite3.Connection, chat_id: int, now: float) -> bool:
    return bool(connection.execute("UPDATE chats SET changed_at = ? WHERE id = ?", (now, chat_id)).rowcount)


def _insert(connection: sqlite3.Connection, chat_id: int, turn: SavedTurn, turn_id: int | None = None) -> int:
    row = (
        "INSERT INTO turns (id, chat, question, asked_as, answer, found, stopped, model, mode, asked_at,"
        " notices) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    )
    values = (
        turn_id, chat_id, _utf8(turn.question), _utf8(turn.asked_as), _utf8(turn.answer), turn.found, turn.stopped,
        turn.model, turn.mode, turn.asked_at, _utf8("\n".join(turn.notices)),
    )  # fmt: skip
    turn_id = int(connection.execute(row, values).lastrowid or 0)
    connection.executemany(
        "INSERT INTO limits (turn, path) VALUES (?, ?)", [(turn_id, to_blob(path)) for path in turn.limited_to]
    )
    connection.executemany(
        "INSERT INTO sources (turn, number, path, title, heading, page_start, page_end, line_start, line_end, place,"
        " quote, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [_source_values(turn_id, source) for source in turn.sources],
    )
    return turn_id


def _source_values(turn_id: int, source: SavedSource) -> tuple[object, ...]:
    location = source.location
    return (
        turn_id, source.number, to_blob(source.path), _utf8(source.title), _utf8(location.heading), location.page_start,
        location.page_end, location.line_start, location.line_end, source.place, _utf8(source.quote), source.digest,
    )  # fmt: skip


def _turn(connection: sqlite3.Connection, row: Sequence[object]) -> SavedTurn:
    turn_id, question, asked_as, answer, found, stopped, model, mode, asked_at, forgotten, notices = row
    sources = connection.execute(
        "SELECT number, path, title, heading, page_start, page_end, line_start, line_end, place, quote, digest"
        " FROM sources WHERE turn = ? ORDER BY id",
        (turn_id,),
    ).fetchall()
    limits = connection.execute("SELECT path FROM limits WHERE turn = ? ORDER BY rowid", (turn_id,)).fetchall()
    return SavedTurn(
        str(question), str(asked_as), str(answer), bool(found), bool(stopped), str(model), str(mode),
        float(str(asked_at)), tuple(map(_source, sources)), tuple(from_blob(path) for (path,) in limits),
        bool(forgotten), tuple(str(notices).splitlines()), int(str(turn_id)),
    )  # fmt: skip


def _source(row: Sequence[object]) -> SavedSource:
    number, path, title, heading, page_start, page_end, line_start, line_end, place, quote, digest = row
    assert isinstance(path, bytes)
    file = from_blob(path)
    pages, lines = (_int(page_start), _int(page_end)), (_int(line_start), _int(line_end))
    location = Location(str(heading), *pages, *lines, place_units(file.name))
    return SavedSource(int(str(number)), file, str(title), location, str(place), str(quote), str(digest))


def _int(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _no_chat(chat_id: int) -> ConfigError:
    return ConfigError(f"There is no chat {chat_id}.", remedy="desk-rag chats lists them.")
