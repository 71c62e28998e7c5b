"""Find what amends a quoted document: 'To § 2: The lease is extended until 2032' in the addendum to the lease.

An amendment names the document that it changes by its day or number and the clause by its number, and need not repeat
what either is about.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.questions.disagreement.newest import Writing, amends_document
from desk_rag.answering.questions.disagreement.values import says_same
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.documents.sentences import quotable

if TYPE_CHECKING:
    from desk_rag.answering.events import Citation
    from desk_rag.store.store import Store

_WORDS = "amendment addendum supplement rider"
_AMENDS = re.compile(r"\b(?:amendment|addendum|supplement|rider)\b", re.I)
_MOST_PASSAGES, _BEGINNING = 12, 300
_NUMBER = re.compile(r"\b(?=[\w/-]*\d[\w/-]*\d)(?=[\w/-]{5,})\w+(?:[/-]\w+)*\b")
"""The number of a policy or a contract: 'KP-310-2021-05'."""
_CLAUSE = r"(?:§+\s?|(?:section|clause|article|paragraph|item)\s+)(?P<number>\d+(?:\.\d+)*)\b"
_OF_CLAUSE = re.compile(rf"\s*(?:{_CLAUSE}|(?P<bare>\d+(?:\.\d+)*)[.)]?\s)", re.I)
_CHANGES_CLAUSE = re.compile(rf"\s*(?:(?:to|re|on|ad|in)\s+)?{_CLAUSE}", re.I)


def amending(store: Store, quoted: Citation, answer: str, question: str, under: Sequence[Path]) -> Iterator[Row]:
    """The sentences of amendments to a quoted document that change its clause, or say it anew of the same thing."""
    own = "\n".join(passage.chunk.text for passage in store.passages_of(quoted.path))
    clause = _clause_of(own, quoted.quote)
    about = content_stems(question) & content_stems(_line_of(own, quoted.quote))
    if not about:
        return
    for path in amendments_to(store, quoted.path, own, under):
        for passage in store.passages_of(path):
            for unit in quotable(passage.chunk.text):
                changed, shared = _CHANGES_CLAUSE.match(unit), about & content_stems(unit)
                is_of_clause = changed is not None and changed["number"] == clause and bool(shared)
                if is_of_clause or (shared == about and not says_same(answer, unit)):
                    yield Row(passage, unit)


def amendments_to(store: Store, path: Path, text: str, under: Sequence[Path]) -> list[Path]:
    """The documents that call themselves amendments, and name this one by its day or its number."""
    numbers = set(_NUMBER.findall(text[:_BEGINNING]))
    amendments: dict[Path, None] = {}
    for hit in store.search_words(_WORDS, _MOST_PASSAGES, under):
        passage = store.passage(hit.chunk_id, under)
        if passage is None or passage.path == path or passage.path in amendments:
            continue
        beginning = f"{passage.title}\n{passage.chunk.text}"[:_BEGINNING]
        if _AMENDS.search(beginning) and (
            numbers & set(_NUMBER.findall(beginning)) or amends_document(store, beginning, Writing(path))
        ):
            amendments[passage.path] = None
    return list(amendments)


def _clause_of(text: str, quote: str) -> str:
    """The number of the clause in which a quote stands; '' if its line begins with none."""
    match = _OF_CLAUSE.match(_line_of(text, quote))
    return (match["number"] or match["bare"]) if match is not None else ""


def _line_of(text: str, quote: str) -> str:
    begin = max(text.find(quote), 0)
    return text[text.rfind("\n", 0, begin) + 1 :].partition("\n")[0]
