"""Find who holds an office by the newest document that says so, among all that speak of the office.

Minutes of three years and a lease each name a chair. The one of the newest holds the office, whichever of them is
quoted first; a document that speaks of no such body as the question names counts only if it names the last holder too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import Answer
from desk_rag.answering.questions.disagreement.newest import asks_in_present, day_of, newest
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.documents.sentences import quotable

if TYPE_CHECKING:
    from desk_rag.store.store import Store

_ASKS_HOLDER = re.compile(
    r"^who(?:['’]s|\s+is)\s+(?:now\s+)?(?:the|our|my)\s+(?:(?:current|present|new)\s+)?(?P<office>[a-z]{4,})"
    r"(?:\s+(?:of|at|in)\s+(?P<body>.+?))?(?:\s+(?:now|today|currently|at\s+present))*$",
    re.I,
)
_NAME = r"(?:(?:Mr|Mrs|Ms|Dr|Prof)\.?\s+)?[^\W\d_a-z][\w’'-]+(?:\s+(?:[^\W\d_a-z][\w’'-]+|[^\W\d_a-z]\b\.?)){0,3}"
_BECAME = (
    r"(?:(?:was|is|were|has\s+been)\s+(?:re-?)?(?:elected|appointed|chosen|voted|made|confirmed)"
    r"|(?:is|becomes?|became|remains?|stays?)|takes?\s+over|took\s+over)"
)
_MOST_PASSAGES = 30
_MOST_BETWEEN = 5
"""Words between 'was elected' and the office: 'was elected treasurer and stays secretary'."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A sentence that names who holds an office."""

    row: Row
    name: str


def newer_holder(store: Store, done: Answer, question: str, under: Sequence[Path]) -> Holder | None:
    """The holder by the newest document, if it is another than the answer's; None if the answer stands."""
    match = _ASKS_HOLDER.match(" ".join(question.split()).rstrip("?!. "))
    if match is None or not asks_in_present(question) or not done.found or len(done.citations) != 1:
        return None
    office, body = match["office"], content_stems(match["body"] or "")
    holders = list(_holders(store, office, under))
    own = done.citations[0].path
    paths = list(dict.fromkeys([own, *(holder.row.passage.path for holder in holders)]))
    days = {path: day_of(store, path) for path in paths}
    dated = {path: day for path, day in days.items() if day is not None or path == own}
    latest = newest(dated)
    last = [holder for holder in holders if holder.row.passage.path == latest]
    if latest is None or latest == own or len({holder.name for holder in last}) != 1:
        return None
    holder = last[0]
    if content_stems(holder.name) & content_stems(done.text):
        return None
    text = "\n".join(passage.chunk.text for passage in store.passages_of(latest))
    of_body = content_stems(f"{' '.join(latest.parts)} {text}")
    names_last = bool(content_stems(done.text)) and content_stems(done.text) <= content_stems(text)
    return holder if not body or body & of_body or names_last else None


def _holders(store: Store, office: str, under: Sequence[Path]) -> Iterator[Holder]:
    """The sentences of all documents that name the holder of an office."""
    patterns = _patterns(office)
    for hit in store.search_words(office, _MOST_PASSAGES, under):
        passage = store.passage(hit.chunk_id, under)
        if passage is None:
            continue
        for unit in quotable(passage.chunk.text):
            found = next(filter(None, (pattern.search(unit) for pattern in patterns)), None)
            if found is not None:
                yield Holder(Row(passage, unit), found["name"].strip())


def _patterns(office: str) -> tuple[re.Pattern[str], ...]:
    """The forms in which a sentence names the holder: 'Chair: Ana', 'Ana was elected chair', 'Ana Lind, Chairwoman'."""
    plain = rf"(?i:{re.escape(office.rstrip('.'))}(?:man|woman|person)?)\b"
    between = rf"(?:\s+(?!(?:and|but)\s+{_NAME}\s)[\w-]+){{0,{_MOST_BETWEEN}}}?"
    return (
        re.compile(rf"(?:^|\W){plain}(?:\s+of\s+[\w\s]{{2,30}})?\s*[:=]\s*(?P<name>{_NAME})"),
        re.compile(rf"(?P<name>{_NAME})\s+{_BECAME}{between}\s+{plain}(?!\s+(?:of\s+)?the\s+meeting)"),
        re.compile(rf"\b(?i:elected|appointed|chose)\s+(?P<name>{_NAME})\s+(?:as\s+|to\s+be\s+)?(?:the\s+|our\s+|its\s+)?(?:new\s+)?{plain}"),
        re.compile(rf"\b(?i:the|our)\s+(?:new\s+)?{plain}\s+is\s+(?:now\s+)?(?P<name>{_NAME})"),
        re.compile(rf"(?P<name>{_NAME}),\s+(?i:(?:the\s+|our\s+|hon\.?\s+)?){plain}\W*$"),
    )  # fmt: skip
