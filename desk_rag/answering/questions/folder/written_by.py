"""Answer when somebody wrote to somebody, and what one person said about something: only own words count."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.context import SourceFiles, source_of
from desk_rag.answering.events import AnswerEvent
from desk_rag.answering.questions.folder.reading.authors import is_by, is_from, is_to, speaks
from desk_rag.answering.questions.folder.reading.kinds import Kind
from desk_rag.answering.questions.folder.reading.naming import with_capitals
from desk_rag.answering.questions.folder.reading.periods import written
from desk_rag.answering.questions.folder.reading.records import Reading, Record, read
from desk_rag.answering.questions.folder.wording import by_date
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.questions.narrowing import distinct, indexed
from desk_rag.answering.questions.nearest import nearest
from desk_rag.answering.questions.summary import best_about, sentences_of
from desk_rag.answering.questions.whole_folder import Shown, finish, listed, show
from desk_rag.answering.requirements.places import place_of_passage
from desk_rag.answering.requirements.requirements import Fit, Requirements
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.answering.requirements.titles import without_titles
from desk_rag.documents.sentences import quotable

if TYPE_CHECKING:
    from desk_rag.retrieval.embedding import EmbedderLike
    from desk_rag.store.store import Store


_WHEN = re.compile(
    r"^(?:when|(?:on\s+)?(?:which|what)\s+(?:day|date))\s+(?:did|have|has)\s+(?P<from>.+?)\s+(?:(?P<order>last|first)\s+)?"
    r"(?:writ\w+|wrote|sen[dt]|e?-?mail(?:ed)?|repl(?:y|ied)|answer(?:ed)?)\b"
    r"(?:\s+(?:an?|the|my|our|his|her|their)\s+(?:letter|e?-?mail|message|reply|answer))?"
    r"(?:\s+(?:back\s+)?to\s+(?P<to>.+?))?(?:\s+(?:about|on|concerning)\s+(?P<topic>.+))?$",
    re.I,
)
_SELF = re.compile(r"(?:I|we|me|us)", re.I)
_MOST_DATES = 50
_PASSAGES, _NEAREST, _FEWEST_WORDS, _MOST_OF_MAIL = 12, 3, 4, 4


def when(store: Store, question: str, under: Sequence[Path], today: date) -> Iterator[AnswerEvent]:
    """Yield the dates of the letters and mails; nothing if the question is no such one or none matches."""
    match = _WHEN.match(without_titles(" ".join(question.split()).rstrip("?!. ")))
    if match is None or not (match["to"] or not _SELF.fullmatch(match["from"])):
        return
    began, reading = time.perf_counter(), None
    for event in read(store, [Kind("letter", "letters"), Kind("mail", "mails")], under):
        if isinstance(event, Reading):
            reading = event
        else:
            yield event
    assert reading is not None
    sender, recipient = (_name(match[group] or "", reading) for group in ("from", "to"))
    topic = content_stems(match["topic"] or "")
    records = [
        record
        for record in reading.records
        if record.date is not None
        and (not sender or is_from(sender, record))
        and (not recipient or is_to(recipient, record))
        and topic <= content_stems(f"{record.text} {record.path.stem}")
    ]
    if not records:
        return
    records.sort(key=by_date)
    if match["order"]:
        records = records[-1:] if match["order"].lower() == "last" else records[:1]
    shown = show(store, [_row(record) for record in records[:_MOST_DATES]])
    lines = [
        listed(citation, written(record.date), record.path, store.volumes.roots())
        for citation, record in zip(shown.citations, records, strict=False)
    ]
    if len(records) > _MOST_DATES:
        lines.append(f"and {len(records) - _MOST_DATES:,} more")
    yield from finish(store, question, "\n".join(lines), shown, under, (began, reading.passages, reading.files))


def _name(words: str, reading: Reading) -> str:
    """The name of a sender or recipient; '' for 'I' and 'me'."""
    return "" if _SELF.fullmatch(words.strip()) else with_capitals(words.strip(), reading.parties)


def _row(record: Record) -> Row:
    """The header of a mail, or the first line of a letter that has its date."""
    if record.header_line:
        return Row(record.passages[0], record.header_line)
    units = [Row(passage, unit) for passage in record.passages for unit in quotable(passage.chunk.text)]
    day = written(record.date)
    return next((row for row in units if day and day in row.text), units[0])


def about(
    store: Store, embedder: EmbedderLike, question: str, subject: str, author: str, under: Sequence[Path]
) -> Iterator[AnswerEvent]:
    """Yield the author's sentences about `subject`, or say that there are none, with the nearest passages of others."""
    began = time.perf_counter()
    whole, with_words, passages = set[Path](), set[Path](), 0
    for path in [row.path for row in distinct(indexed(store, under))]:
        of_file = store.passages_of(path)
        passages += len(of_file)
        if is_by(author, of_file):
            whole.add(path)
        elif any(speaks(author, passage, row.text) for passage in of_file for row in sentences_of([passage], 1)):
            with_words.add(path)
    requirements = Requirements(re.sub(re.escape(author), "", question))
    rows_labelled = []
    if paths := sorted(whole | with_words):
        for chunk in nearest(store, embedder, question, _PASSAGES, paths):
            for row in sentences_of([chunk.passage], _FEWEST_WORDS):
                place = place_of_passage(row.passage)
                begin = max(0, place.text.find(row.text))
                is_own = row.passage.path in whole or speaks(author, row.passage, row.text)
                if is_own and requirements.worst(place, begin, begin + len(row.text)) <= Fit.NEARBY:
                    rows_labelled.append((row, place.labels))
    read = (began, passages, len(paths))
    rows, topic = best_about(embedder, subject, rows_labelled), content_stems(subject)
    if not any(topic & content_stems(row.text) for row in rows):  # a mail may name its subject in its heading only
        rows = [row for row, labels in rows_labelled if topic <= content_stems(labels)][:_MOST_OF_MAIL] or rows
    if rows:
        shown = show(store, rows)
        text = "\n".join(" ".join(citation.quote.split()) for citation in shown.citations)
        yield from finish(store, question, text, shown, under, read)
        return
    files = SourceFiles(store)
    near = nearest(store, embedder, question, _NEAREST, under)
    sources = tuple(source_of(number, chunk.passage, files) for number, chunk in enumerate(near, start=1))
    text = f"Nothing that {author} wrote or said about {subject} was found."
    yield from finish(store, question, text, Shown(sources, ()), under, read, found=False)
