"""Finding chunks by words: BM25 over texts and file names.

A question is data: only its letters and digits reach FTS5, each run inside quotes, so no operator of the query
language can be spoken. Terms are joined by OR, BM25 gives rare ones the weight (https://www.sqlite.org/fts5.html).

Scoring a row costs some 25 times as much as stepping over it, so that at most about `MOST_SCORED` rows are scored. If
more match, these are the rows with a rare term, and of the others the newest with the rarest of the frequent terms,
those with a second one first, unless no such row can be as good. To weigh a term, BM25 steps over all of its rows. One
that stands in more than half of all rows weighs nothing, and is left out where there are others.
"""

from __future__ import annotations

import difflib
import math
import random
import re
import sqlite3
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from desk_rag.documents.chunking import ChunkId
from desk_rag.store.catalog.paths import Scope, hold_everything
from desk_rag.store.types import Hit

MOST_TERMS = 64
MOST_SCORED = 20_000
"""See "Word search among a million passages" in bench/LOG.md."""
_SHARE_OF_NO_WEIGHT = 0.5
"""Share of the rows from which on BM25 gives a term no weight (1e-6)."""
_MOST_PER_WEIGHT = 2.2
"""Maximum score of a term as a multiple of its weight: k1 + 1 in FTS5's BM25."""
NAME_WEIGHT = 0.5
"""A match in a file's name counts this much of its own BM25 score."""
_NAMES_LOOKED_AT = 16
_CHUNKS_PER_NAME = 64
_SAMPLED = 8
_SPELLED_ALIKE = 0.8
"""Least likeness in [0, 1] (`difflib`) of a word to what was typed for it."""
_CHUNKS_PER_TERM = 3
PLAIN_WORD = re.compile(r"(?<!\S)[A-Za-z]{4,24}(?=[\s.,;:]|$)")
"""A word that every tokenizer takes for one."""
_RUN = re.compile(r"[^\W_]+(?:[-./:'’_@+][^\W_]+)*")
_PART = re.compile(r"[^\W_]+")
_BEFORE = 12
"""Characters before a word by which it is seen whether a sentence or a line begins with it."""
_SENTENCE_BEGINS = re.compile(r"(?:\A|[.!?]\s|\n)[\W_]*\Z")
# Scripts written without spaces: unicode61 would take a whole sentence for one word.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+"
)
_CAMEL = re.compile(r"(?<=[^\W\d_A-Z])(?=[A-Z])|(?<=\d)(?=[^\W\d_])|(?<=[^\W\d_])(?=\d)")
_ENGLISH = """a an the and or of in on at to for from by with about as is are was were be been am do does did has have
    had it its this that these those there here he she they we you i me my your our their his her them us what which who
    whom whose when where why how can could should would will shall may might must not no"""
_GERMAN = "der die das und oder ein eine ist sind war im in am zu von mit für auf was wer wie wo wann warum"
_FRENCH = "le la les un une des du de et ou est sont que qui quoi dans pour sur avec"
_SPANISH = "el los las una unos y o es son qué quién cómo dónde cuándo en por para con"
STOP_WORDS = frozenset(word for language in (_ENGLISH, _GERMAN, _FRENCH, _SPANISH) for word in language.split())
"""Left out of a question that has other words; a question made of nothing else is searched as it is."""


def grams(text: str) -> str:
    """Return further words to index: single characters and pairs of runs in scripts without spaces, else ''."""
    words: list[str] = []
    for run in _UNSPACED.findall(text):
        words += run
        words += [run[i : i + 2] for i in range(len(run) - 1)]
    return " ".join(words)


def name_words(path: Path) -> str:
    """Return what a file may be asked for by: its name and its folder's, camel case and digits taken apart."""
    parts = [path.name, path.parent.name]
    text = " ".join([*parts, *(_CAMEL.sub(" ", part) for part in parts)])
    return f"{text} {grams(text)}".encode("utf-8", "replace").decode()


def match_expression(question: str) -> str | None:
    """Return an FTS5 expression that finds what the question speaks of, or None if it holds no word."""
    return _any(_terms(question)) or None


def _terms(question: str) -> list[str]:
    """Return the terms of a question, each in quotes."""
    terms: dict[str, None] = {}
    for run in _RUN.findall(question.casefold()):
        parts = _PART.findall(run)
        if len(parts) > 1:
            terms[" ".join(parts)] = None  # an id such as INV-2024-017 is worth more whole
        for part in parts:
            for word in _words(part):
                terms[word] = None
    kept = [term for term in terms if term not in STOP_WORDS] or list(terms)
    return [f'"{term}"' for term in kept[:MOST_TERMS]]


def search(connection: sqlite3.Connection, question: str, limit: int, under: Sequence[Path]) -> tuple[list[Hit], int]:
    """Return at most `limit` chunks under `under` (all, if empty), best first, ties by age in the catalog.

    With them the number of rows that the index names and that do not exist: in a sound catalog none.
    """
    terms = _terms(question)
    if not terms or limit < 1:
        return [], 0
    scope = Scope(() if hold_everything(connection, under) else under)
    scores = _best_rows(connection, _Index("chunk_words", scope.chunk_rows(), scope), terms, limit)
    for row, score in _named(connection, terms, scope).items():
        scores[row] = scores.get(row, 0.0) + NAME_WEIGHT * score
    best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:limit]
    if not best:
        return [], 0
    marks = ",".join("?" * len(best))
    names = dict(connection.execute(f"SELECT id, chunk_id FROM chunks WHERE id IN ({marks})", [row for row, _ in best]))
    hits = [Hit(ChunkId(names[row]), score) for row, score in best if isinstance(names.get(row), str)]
    return hits, len(best) - len(hits)


def has_lost(connection: sqlite3.Connection, question: str, chunk_ids: Sequence[ChunkId]) -> bool:
    """True if the index misses a word of the question in the text of one of these chunks.

    They come from another search, by vectors: a damaged index cannot name what it has lost.
    """
    question_words = {word.casefold() for word in PLAIN_WORD.findall(question.rstrip("?!"))} - STOP_WORDS
    if not question_words:
        return False
    marks = ",".join("?" * len(chunk_ids))
    texts = connection.execute(f"SELECT id, text FROM chunks WHERE chunk_id IN ({marks})", list(chunk_ids)).fetchall()
    return any(not _is_indexed(connection, row, question_words.intersection(_plain_words(text))) for row, text in texts)


def spellings(
    connection: sqlite3.Connection, typed: Collection[str], is_known: Callable[[str], bool]
) -> dict[str, list[str]]:
    """Return words of the documents that are spelled much like those of `typed` that no text and no file name has.

    Words that `is_known` accepts are left out.
    """
    strange = [word for word in typed if not _stands_anywhere(connection, word.casefold()) and not is_known(word)]
    return {word: near for word in strange if (near := _spelled_alike(connection, word.casefold(), is_known))}


def _stands_anywhere(connection: sqlite3.Connection, word: str) -> bool:
    return any(
        connection.execute(f"SELECT 1 FROM {table} WHERE {table} MATCH ? LIMIT 1", (f'"{word}"',)).fetchone()
        for table in ("chunk_words", "name_words")
    )


def _spelled_alike(connection: sqlite3.Connection, wanted: str, is_known: Callable[[str], bool]) -> list[str]:
    """Words that begin alike, best first. The index holds stems, so the words are taken from texts with these stems."""
    vocabulary = "fts5vocab('main', 'chunk_words', 'row')"
    connection.execute(f"CREATE VIRTUAL TABLE IF NOT EXISTS temp.vocabulary USING {vocabulary}")
    rows = connection.execute(
        "SELECT term FROM temp.vocabulary WHERE term >= ? AND term < ? AND length(term) BETWEEN ? AND ?",
        (wanted[0], chr(ord(wanted[0]) + 1), len(wanted) - 4, len(wanted) + 2),
    )
    stems = difflib.get_close_matches(wanted, [term for (term,) in rows], n=3, cutoff=_SPELLED_ALIKE - 0.1)
    near: dict[str, None] = {}
    for stem in stems:
        of_stem = connection.execute(
            "SELECT c.text FROM chunk_words w JOIN chunks c ON c.id = w.rowid WHERE chunk_words MATCH ? LIMIT ?",
            (f'text : "{stem}"', _CHUNKS_PER_TERM),
        )
        for (text,) in of_stem:
            parts = (part for part in _PART.finditer(text) if part[0][0].casefold() == wanted[0])
            near |= dict.fromkeys(_as_spelled(part, is_known) for part in parts)
    folded = {one.casefold(): one for one in near}
    folded |= {one: one for one in near if one.islower() and is_known(one)}  # 'Baker' may be called so, bakers are many
    return [folded[one] for one in difflib.get_close_matches(wanted, folded, n=3, cutoff=_SPELLED_ALIKE)]


def _as_spelled(part: re.Match[str], is_known: Callable[[str], bool]) -> str:
    """Return a word as the text has it, but without the capital that 'Quiet hours' has only as the first word."""
    word, before = part[0], part.string[max(0, part.start() - _BEFORE) : part.start()]
    return word.lower() if _SENTENCE_BEGINS.search(before) and is_known(word) else word


def text_is_indexed(connection: sqlite3.Connection, row: int, text: str) -> bool:
    """True if the index finds a chunk by some plain words of its text; each call asks for others."""
    known = connection.execute("SELECT 1 FROM chunk_words_docsize WHERE id = ?", (row,)).fetchone()
    plain = sorted(_plain_words(text))
    return known is not None and _is_indexed(connection, row, random.sample(plain, min(_SAMPLED, len(plain))))


def _plain_words(text: object) -> set[str]:
    return {word.casefold() for word in PLAIN_WORD.findall(text)} if isinstance(text, str) else set()


def _is_indexed(connection: sqlite3.Connection, row: int, plain: Collection[str]) -> bool:
    terms = " ".join(f'"{word}"' for word in plain)
    query = "SELECT 1 FROM chunk_words WHERE chunk_words MATCH ? AND rowid = ?"
    return not terms or connection.execute(query, (terms, row)).fetchone() is not None


def _words(part: str) -> list[str]:
    pieces: list[str] = []
    for run in _UNSPACED.findall(part):
        pieces += [run] if len(run) < 2 else [run[i : i + 2] for i in range(len(run) - 1)]
    return pieces + [word for word in _UNSPACED.sub(" ", part).split() if word]


def _named(connection: sqlite3.Connection, terms: Sequence[str], scope: Scope) -> dict[int, float]:
    """Return the score of the best name for the chunks of the documents whose names match best."""
    named = _best_rows(connection, _Index("name_words", scope.document_rows(), scope), terms, _NAMES_LOOKED_AT)
    marks = ",".join("?" * len(named))
    places = connection.execute(
        f"SELECT chunk, document FROM places WHERE document IN ({marks}) AND ordinal < {_CHUNKS_PER_NAME}", list(named)
    )
    scores: dict[int, float] = {}
    for chunk, document in places:
        scores[chunk] = max(scores.get(chunk, 0.0), named[document])
    return scores


@dataclass(frozen=True, slots=True)
class _Index:
    """A word index, and the rows of it that are searched."""

    table: str
    scope_rows: str
    """SQL of the rows in scope, with the values of `scope`."""
    scope: Scope


def _best_rows(connection: sqlite3.Connection, index: _Index, terms: Sequence[str], limit: int) -> dict[int, float]:
    """Return the BM25 scores of the best rows that hold a term, best first, ties in the order of rows.

    The transaction that the connection is in ends with a rollback.
    """
    table, scope = index.table, index.scope
    within, values = "", scope.values
    if not scope.everything:  # '+': match first, then filter. Without it SQLite runs the match anew for every row
        within = f" AND +{table}.rowid IN {index.scope_rows}"
    anything = _any(terms)
    few = MOST_SCORED + 1
    if _count(connection, f"{table} WHERE {table} MATCH ?", (anything,), few) < few or (
        within and _count(connection, index.scope_rows, values, few) < few
    ):
        return dict(_scored(connection, table, anything, within, values, limit, few))
    if not within:
        return _best_of_many(connection, table, terms, limit)
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS searched (id INTEGER PRIMARY KEY)")
    connection.execute("DELETE FROM temp.searched")
    connection.execute(f"INSERT OR IGNORE INTO temp.searched SELECT * FROM {index.scope_rows}", values)
    return _best_of_many(connection, table, terms, limit, f" AND +{table}.rowid IN temp.searched")


def _best_of_many(
    connection: sqlite3.Connection, table: str, terms: Sequence[str], limit: int, within: str = ""
) -> dict[int, float]:
    """Return the best of about `MOST_SCORED` rows and their scores."""
    known = _by_frequency(connection, table, terms)
    rare, frequent = _any(known.rare), _any(known.frequent)
    scores: dict[int, float] = {}

    def add(expression: str, most: int) -> None:
        scores.update(dict(_scored(connection, table, expression, within, (), limit, most)) | scores)

    if rare and frequent:
        add(f"({rare}) AND ({frequent})", MOST_SCORED)
    if rare:
        add(rare, MOST_SCORED)
    is_settled = len(scores) >= limit and sorted(scores.values())[-limit] >= known.most_without_rare

    def add_several(terms: Sequence[str]) -> None:
        if len(terms) > 1:
            several = f"({terms[0]} AND ({_any(terms[1:])}))"
            add(f"{several} NOT ({rare})" if rare else several, known.room)

    if not is_settled:
        add_several(known.frequent)
    if len(scores) < limit:
        others = [*known.frequent, *known.weightless]
        if known.weightless:
            add_several(others)
        add(others[0], known.room)
    return dict(sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:limit])


@dataclass(frozen=True, slots=True)
class _ByFrequency:
    """The terms of a question by the number of rows that hold them, the fewest first."""

    rare: list[str]
    """Terms all of whose rows are scored."""
    frequent: list[str]
    weightless: list[str]
    """Terms of so many rows that BM25 gives them no weight; none if all are."""
    room: int
    """Number of rows of frequent terms alone to score."""
    most_without_rare: float
    """About the highest score of a row without a rare term."""


def _by_frequency(connection: sqlite3.Connection, table: str, terms: Sequence[str]) -> _ByFrequency:
    """Sort the terms by how frequent they are.

    That is told by the parts of the index, at its beginning and its end, in which a term has `MOST_SCORED` rows.
    """
    few = MOST_SCORED + 1
    oldest = f"SELECT rowid FROM {table} WHERE {table} MATCH ? LIMIT {few}"
    newest = f"SELECT rowid FROM {table} WHERE {table} MATCH ? ORDER BY rowid DESC LIMIT {few}"
    (last,) = connection.execute(f"SELECT ifnull(max(id), 1) FROM {table}_docsize").fetchone()
    frequencies: list[tuple[int, float, int, str]] = []
    for term in terms:
        count, end = connection.execute(f"SELECT count(*), ifnull(max(rowid), 1) FROM ({oldest})", (term,)).fetchone()
        share = count / max(1, last)
        if count == few:
            (begin,) = connection.execute(f"SELECT min(rowid) FROM ({newest})", (term,)).fetchone()
            share = min(count / max(1, end), count / max(1, last - begin + 1))
        frequencies.append((count, share, -end, term))
    frequencies.sort()
    weighty = [one for one in frequencies if one[1] <= _SHARE_OF_NO_WEIGHT] or frequencies
    totals = list(accumulate(count for count, *_ in weighty))
    num_rare = bisect_right(totals, MOST_SCORED)
    names = [term for *_, term in weighty]
    shares = (share for _, share, *_ in weighty[num_rare:])
    weights = (math.log((1 - share) / share) for share in shares if share < _SHARE_OF_NO_WEIGHT)
    room = MOST_SCORED - (totals[num_rare - 1] if num_rare else 0)
    return _ByFrequency(
        rare=names[:num_rare],
        frequent=names[num_rare:],
        weightless=[term for *_, term in frequencies if term not in names],
        room=max(room, MOST_SCORED // 4),
        most_without_rare=_MOST_PER_WEIGHT * sum(weights),
    )


def _any(terms: Sequence[str]) -> str:
    return " OR ".join(terms)


def _scored(
    connection: sqlite3.Connection, table: str, expression: str, within: str, values: Sequence[bytes], limit: int,
    most: int,
) -> list[tuple[int, float]]:  # fmt: skip
    """Return the best `limit` of the newest `most` rows that match, and their scores."""
    return connection.execute(
        f"SELECT id, score FROM (SELECT rowid AS id, -bm25({table}) AS score FROM {table} WHERE {table} MATCH ?{within}"
        " ORDER BY rowid DESC LIMIT ?) ORDER BY score DESC, id LIMIT ?",
        (expression, *values, most, limit),
    ).fetchall()


def _count(connection: sqlite3.Connection, rows: str, values: Sequence[str | bytes], most: int) -> int:
    """Return how many rows there are, counting at most `most`."""
    return int(connection.execute(f"SELECT count(*) FROM (SELECT 1 FROM {rows} LIMIT {most})", values).fetchone()[0])
