"""Find who holds an office by the newest document that says so, among all that speak of the office.

Minutes of three years and a lease each name a chair. The one of the newest holds the office, whichever of them is
quoted first. A document that speaks of no such body as the question names counts only if it names the last holder too,
or if the quoted one speaks of none either; then the doubt about the body stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import Answer
from desk_rag.answering.questions.disagreement.newest import Writing, days_of, newest, writing_of, writing_of_passage
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.requirements.statements.offices import Office, office_asked
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.documents.sentences import quotable

if TYPE_CHECKING:
    from desk_rag.store.store import Store

_MOST_PASSAGES = 30


@dataclass(frozen=True, slots=True)
class Holder:
    """A sentence that names who holds an office."""

    row: Row
    name: str
    is_of_body: bool = True
    """False if nothing says that the document is about the body that the question names."""

    @property
    def writing(self) -> Writing:
        """What the sentence is from."""
        return writing_of_passage(self.row.passage)


def newer_holder(store: Store, done: Answer, question: str, under: Sequence[Path]) -> Holder | None:
    """The holder by the newest document, if it is another than the answer's; None if the answer stands."""
    office = office_asked(question)
    if office is None or not done.found or len(done.citations) != 1:
        return None
    body = content_stems(office.body)
    holders = list(_holders(store, office, under))
    own = writing_of(done.citations[0])
    days = days_of(store, [own, *(holder.writing for holder in holders)])
    if office.is_of_others(done.citations[0].quote):
        del days[own]
    dated = {writing: day for writing, day in days.items() if day is not None or writing == own}
    latest = newest(dated) if dated else None
    last = [holder for holder in holders if holder.writing == latest]
    if latest is None or latest == own or len({holder.name for holder in last}) != 1:
        return None
    holder = last[0]
    if content_stems(holder.name) & content_stems(done.text):
        return None
    stems, last_holder = _stems_of(store, latest.path), content_stems(done.text)
    if not body or body & stems or (last_holder and last_holder <= stems):
        return holder
    return None if body & _stems_of(store, own.path) else replace(holder, is_of_body=False)


def _stems_of(store: Store, path: Path) -> set[str]:
    """The stems of a document's text and of its path."""
    text = "\n".join(passage.chunk.text for passage in store.passages_of(path))
    return content_stems(f"{' '.join(path.parts)} {text}")


def _holders(store: Store, office: Office, under: Sequence[Path]) -> Iterator[Holder]:
    """The sentences of all documents that name the holder of an office."""
    for hit in store.search_words(office.name, _MOST_PASSAGES, under):
        passage = store.passage(hit.chunk_id, under)
        if passage is None:
            continue
        for unit in quotable(passage.chunk.text):
            name = office.holder_in(unit)
            if name is not None:
                yield Holder(Row(passage, unit), name)
