"""Finding chunks by words: BM25 over texts and file names.

A question is data: only its letters and digits reach FTS5, each run inside quotes, so no operator of the query
language can be spoken. Terms are joined by OR, BM25 gives rare ones the weight (https://www.sqlite.org/fts5.html).
"""

from __future__ import annotations

import difflib
import random
import re
import sqlite3
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from desk_rag.documents.chunking import ChunkId
from desk_rag.store.catalog.paths import Scope
from desk_rag.store.types import Hit

MOST_TERMS = 64
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
    terms: dict[str, None] = {}
    for run in _RUN.findall(question.casefold()):
        parts = _PART.findall(run)
        if len(parts) > 1:
            terms[" ".join(parts)] = None  # an id such as INV-2024-017 is worth more whole
        for part in parts:
            for word in _words(part):
                terms[word] = None
    kept = [term for term in terms if term not in STOP_WORDS] or list(terms)
    return " OR ".join(f'"{term}"' for term in kept[:MOST_TERMS]) or None


def search(connection: sqlite3.Connection, question: str, limit: int, under: Sequence[Path]) -> tuple[list[Hit], int]:
    """Return at most `limit` chunks under `under` (all, if empty), best first, ties by age in the catalog.

    With them the number of rows that the index names and that do not exist: in a sound catalog none.
    """
    expression = match_expression(question)
    if expression is None or limit < 1:
        return [], 0
    scope = Scope(under)
    scores: dict[int, float] = {}
    chunk_rows = connection.execute(
        "SELECT rowid, -bm25(chunk_words) FROM chunk_words WHERE chunk_words MATCH ?"
        # '+': match first, then filter. Without it SQLite runs the match anew for every row in scope.
        f"{scope.and_chunk('+chunk_words.rowid')} ORDER BY bm25(chunk_words), rowid LIMIT ?",
        (expression, *scope.values, limit),
    )
    for row, score in chunk_rows:
        scores[row] = score
    for row, score in _named(connection, expression, scope).items():
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
    return {word: near for word in strange if (near := _spelled_alike(connection, word.casefold()))}


def _stands_anywhere(connection: sqlite3.Connection, word: str) -> bool:
    return any(
        connection.execute(f"SELECT 1 FROM {table} WHERE {table} MATCH ? LIMIT 1", (f'"{word}"',)).fetchone()
        for table in ("chunk_words", "name_words")
    )


def _spelled_alike(connection: sqlite3.Connection, wanted: str) -> list[str]:
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
            near |= dict.fromkeys(part for part in _PART.findall(text) if part[0].casefold() == wanted[0])
    folded = {one.casefold(): one for one in near}
    return [folded[one] for one in difflib.get_close_matches(wanted, folded, n=3, cutoff=_SPELLED_ALIKE)]


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


def _named(connection: sqlite3.Connection, expression: str, scope: Scope) -> dict[int, float]:
    """Return the score of the best name for the chunks of the documents whose names match best."""
    rows = connection.execute(
        "SELECT p.chunk, max(n.score) FROM places p JOIN ("
        " SELECT d.id AS id, -bm25(name_words) AS score FROM name_words JOIN documents d ON d.id = name_words.rowid"
        f" WHERE name_words MATCH ?{scope.and_path('d.path')} ORDER BY bm25(name_words) LIMIT {_NAMES_LOOKED_AT}"
        f") n ON n.id = p.document WHERE p.ordinal < {_CHUNKS_PER_NAME} GROUP BY p.chunk",
        (expression, *scope.values),
    )
    return {row: score for row, score in rows}
