"""Summarise a file or folder by its most central sentences, in the order of the text, each with its place.

A sentence is central if its vector is near the mean of all, and brings something new if it is far from those already
chosen (maximal marginal relevance, Carbonell and Goldstein 1998). Nothing is rewritten.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from desk_rag.answering.events import AnswerEvent, Citation, PassagesRead
from desk_rag.answering.questions.folder.reading.naming import (
    folders_named,
    plain_name,
    share_of_words,
    suggestions,
    things_named,
)
from desk_rag.answering.questions.folder.reading.overview import overview
from desk_rag.answering.questions.matching import Row, quotable_rows
from desk_rag.answering.questions.narrowing import indexed
from desk_rag.answering.questions.nearest import nearest
from desk_rag.answering.questions.whole_folder import finish, not_readable, show
from desk_rag.answering.requirements.places import place_of_passage
from desk_rag.answering.requirements.requirements import Fit, Requirements
from desk_rag.answering.requirements.stems import content_stems, coverage, has_stem
from desk_rag.documents.sentences import is_quoted, quotable
from desk_rag.sanitize import clean_name

if TYPE_CHECKING:
    from desk_rag.retrieval.embedding import EmbedderLike
    from desk_rag.store.store import Store
    from desk_rag.store.types import DocumentRow, Passage

_FEWEST_WORDS = 5
_ABOUT_PASSAGES, _FEWEST_ABOUT, _MOST_ABOUT = 12, 3, 4
_OF_LABELS = 0.6
"""Worth of a word of the topic that stands in the name or heading of the file, beside one in the sentence."""
_SHARED, _NEAR, _BEHIND = 0.4, 0.45, 0.25
"""Weight of the words shared with the topic beside the cosine, their least sum, and how far others may be behind it."""
_MOST_SENTENCES = 400
"""Sentences that are compared; of a longer text every so many-th."""
_BATCH = 50
_SHORTEST, _LONGEST, _SHARE = 4, 8, 0.3
"""Sentences of a summary: this share of all, within these bounds."""
_FIRST_OF_FILE = 0.05
"""Bonus to the similarity of a file's first sentence."""
_NOVELTY = 0.5
_FEWEST = 3
"""Sentences of a file from which it is summarised."""
_MOST_FILES, _MOST_OF_FOLDER = 30, 30
"""Files of a folder that are summarised, and their sentences together."""
_DETERMINER = re.compile(r"^(?:(?:all|the|this|my|our|these|whole|entire|of)\s+)+")
_EVERYTHING = re.compile(r"^(?:everything|it\s+all|all|folder|(?:files|documents|papers)(?:\s+here)?)$")
_GREETING = re.compile(
    r"^(?:Dear|Hello|Hi|Good\s+(?:morning|day|evening)|(?:Kind|Best|Warm)\s+(?:regards|wishes)|Yours|Sincerely|Many\s+thanks)\b"
    r"[^.?!]{0,60}$"
)
_PROJECT = re.compile(
    r"(?:(?:the|our|my)\s+)?(?:(?:project|case|job|event)\s+)?(?P<name>[\w-]+(?:\s[\w-]+)??)(?:\s+(?:project|case|job|event|folder))?$",
    re.I,
)
_HEAD = re.compile(r"(?:From|To|Cc|Date|Subject|Bill\s+to): ")
"""Begins a line of the head of a letter, which says nothing of its matter."""
_ABOUT = 0.6
"""Share of the words of the request that must stand in the name of the file or folder."""


def answer(
    store: Store, embedder: EmbedderLike, question: str, subject: str, under: Sequence[Path]
) -> Iterator[AnswerEvent]:
    """Yield progress and the summary; nothing if no file or folder has such a name.

    Of a folder, the most central sentences of each file are shown, and how many files there are.
    """
    began = time.perf_counter()
    documents, is_exact = _named(store, subject, under)
    if not documents and (fault := _fault(store, subject, under)):
        yield from not_readable(question, [fault])
        return
    most, several = documents[:_MOST_FILES], len(documents) > 1
    by_file = [store.passages_of(document.path) for document in most]
    rows_by_file = [_evenly(_rows(passages), _MOST_SENTENCES // len(most)) for passages in by_file]
    if sum(map(len, rows_by_file)) < (1 if several or is_exact else _FEWEST):
        return
    total, read, chosen = sum(map(len, by_file)), 0, list[Row]()
    for passages, rows in zip(by_file, rows_by_file, strict=True):
        batches: list[NDArray[np.float32]] = []
        for start in range(0, len(rows), _BATCH):
            batches.append(embedder.embed_chunks([row.text for row in rows[start : start + _BATCH]]))
            yield PassagesRead(read + len(passages) * min(start + _BATCH, len(rows)) // len(rows), total)
        read += len(passages)
        if batches:
            count = min(_LONGEST, max(_SHORTEST, round(_SHARE * len(rows))))
            count = max(1, _MOST_OF_FOLDER // len(most)) if several else count
            chosen += [rows[index] for index in _central(np.concatenate(batches), min(count, len(rows)))]
    shown = show(store, chosen)
    text = "\n".join(_lines(shown.citations, {row.path: row.title for row in most}, of_folder=several))
    if several:
        more = f"; these are the first of {len(documents):,} files" if len(most) < len(documents) else ""
        text = f"{overview(most, by_file)}{more}. The most central sentences of each:\n{text}"
    distinct = len({passage.chunk.chunk_id for passages in by_file for passage in passages})
    yield from finish(store, question, text, shown, under, (began, distinct, len(most)))


def _lines(citations: Sequence[Citation], titles: Mapping[Path, str], *, of_folder: bool) -> Iterator[str]:
    """The quotes, in a folder each after the name of its file, and its title if that says something else."""
    for citation in citations:
        name = f"[{citation.source_number}] {citation.path.name}: " if of_folder else ""
        title = titles.get(citation.path, "")
        if name and title and not content_stems(title) <= content_stems(citation.path.stem):
            name = f"[{citation.source_number}] {citation.path.name}, “{title}”: "
        yield name + " ".join(citation.quote.split())


def _evenly(rows: list[Row], most: int) -> list[Row]:
    """At most about `most` rows, of a longer text every so many-th."""
    return rows[:: max(1, -(-len(rows) // max(1, most)))]


def about(
    store: Store,
    embedder: EmbedderLike,
    question: str,
    subject: str,
    under: Sequence[Path],
    author: Collection[str] = (),
) -> Iterator[AnswerEvent]:
    """Yield the sentences that say most about `subject`, the best first; nothing if none is near to it.

    Names and dates of the question limit them: 'What did Ana say about the roof in May?' Their passages must have the
    stems of an `author` such as 'the dentist'.
    """
    began = time.perf_counter()
    chunks = nearest(store, embedder, question, _ABOUT_PASSAGES, under)
    requirements = Requirements(question)
    rows_labelled: list[tuple[Row, str]] = []
    for row in sentences_of([chunk.passage for chunk in chunks], _FEWEST_ABOUT):
        place = place_of_passage(row.passage)
        begin = place.text.find(row.text)
        of_place = begin >= place.body and not _HEAD.match(row.text)
        of_place = of_place and all(has_stem(stem, content_stems(f"{place.text}\n{place.labels}")) for stem in author)
        if of_place and requirements.worst(place, begin, begin + len(row.text)) <= Fit.NEARBY:
            rows_labelled.append((row, place.labels))
    best = best_about(embedder, subject, rows_labelled)
    if not best:
        return
    shown = show(store, best)
    text = "\n".join(" ".join(citation.quote.split()) for citation in shown.citations)
    files = len({chunk.passage.path for chunk in chunks})
    yield from finish(store, question, text, shown, under, (began, len(chunks), files))


def folder_of(store: Store, subject: str, under: Sequence[Path]) -> str:
    """The name of the one folder that a subject such as 'the Bellfield project' means; empty for other subjects."""
    match = _PROJECT.match(subject.strip())
    folders = folders_named(store, match["name"], under) if match is not None else []
    return folders[0].name if len(folders) == 1 else ""


def best_about(embedder: EmbedderLike, subject: str, rows_labelled: Sequence[tuple[Row, str]]) -> list[Row]:
    """The rows that say most about a subject, best first; each comes with the name and heading of its file."""
    rows = [row for row, _ in rows_labelled]
    if not rows:
        return []
    similar = embedder.embed_chunks([row.text for row in rows]) @ embedder.embed_question(subject)
    shared = [max(coverage(subject, row.text), _OF_LABELS * coverage(subject, labels)) for row, labels in rows_labelled]
    score = similar + _SHARED * np.array(shared, np.float32)
    best = [int(index) for index in np.argsort(-score) if score[index] >= _NEAR][:_MOST_ABOUT]
    return [rows[index] for index in best if score[index] >= score[best[0]] - _BEHIND]


def sentences_of(passages: Sequence[Passage], fewest_words: int = _FEWEST_WORDS, *, own: bool = False) -> list[Row]:
    """The distinct sentences of passages, without short ones such as greetings and headings.

    With `own`, also without what a mail quotes from an earlier one.
    """
    rows = [
        Row(passage, unit)
        for passage in passages
        for unit in quotable(passage.chunk.text)
        if len(unit.split()) >= fewest_words
        and not _is_title(passage, unit)
        and not (own and is_quoted(passage.chunk.text, unit))
    ]
    return list({row.text: row for row in reversed(rows)}.values())[::-1]


def _is_title(passage: Passage, unit: str) -> bool:
    """True for the title line of a passage, for the line that heads a mail, and for a greeting."""
    title, heading = passage.title, passage.chunk.location.heading
    names = filter(None, (title, heading, *heading.split(" › ")))
    if unit.startswith("From: ") or _GREETING.match(unit):
        return True
    return any(unit == name or unit.startswith(f"{name} › ") for name in names)


def _rows(passages: Sequence[Passage]) -> list[Row]:
    """The sentences of a file; if it has hardly any, its lines."""
    rows = sentences_of(passages)
    if len(rows) >= _FEWEST:
        return rows
    lines = quotable_rows(passages)
    return [row for row in lines if not _is_title(row.passage, row.text)]


def _named(store: Store, subject: str, under: Sequence[Path]) -> tuple[list[DocumentRow], bool]:
    """The files with the name, of the folder or with the title that is meant, and whether the name fits exactly."""
    documents = indexed(store, under)
    plain = _DETERMINER.sub("", subject.strip("\"'/ ").lower())
    if not plain or _EVERYTHING.match(plain):
        return documents, True
    named = things_named(documents, subject, under)
    if named.documents:
        return list(named.documents), True
    best = max(documents, key=lambda row: share_of_words(subject, row), default=None)
    return ([best], False) if best is not None and share_of_words(subject, best) >= _ABOUT else ([], False)


def _fault(store: Store, subject: str, under: Sequence[Path]) -> str:
    """A sentence if the request names a file or folder that is not here; '' if it may mean a topic."""
    is_folder = bool(re.search(r"\bfolder\b|\bdirectory\b|/\s*$", subject, re.I))
    if not is_folder and not re.match(r"^(?:the\s+file\s+|[\"“'])", subject.strip(), re.I):
        return ""
    documents = indexed(store, under)
    folders = {part for row in documents for part in row.path.parts[-4:-1]}
    near = suggestions(subject, sorted(folders if is_folder else {row.path.name for row in documents}))
    hint = f"; did you mean {' or '.join(near)}?" if near else "."
    what = "folder" if is_folder else "file"
    return f"No {what} called {clean_name(plain_name(subject))} is among those that were searched{hint}"


def _central(vectors: NDArray[np.float32], count: int) -> list[int]:
    """Indices of the `count` most central sentences of a file, in order."""
    mean = vectors.mean(0)
    central = vectors @ (mean / np.linalg.norm(mean))
    central[0] += _FIRST_OF_FILE
    chosen: list[int] = []
    for _ in range(count):
        repeats = (vectors @ vectors[chosen].T).max(1) if chosen else np.zeros(len(vectors), np.float32)
        score = central - _NOVELTY * repeats
        score[chosen] = -np.inf
        chosen.append(int(score.argmax()))
    return sorted(chosen)
