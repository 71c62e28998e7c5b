"""Answer who wrote about something, when somebody wrote to somebody, and what one person said: only own words count."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.context import SourceFiles, source_of
from desk_rag.answering.events import AnswerEvent
from desk_rag.answering.questions.folder.reading.authors import is_by, is_from, is_to, speaks, writer_of
from desk_rag.answering.questions.folder.reading.kinds import Kind
from desk_rag.answering.questions.folder.reading.naming import with_capitals
from desk_rag.answering.questions.folder.reading.periods import take_period
from desk_rag.answering.questions.folder.reading.records import Reading, Record, read
from desk_rag.answering.questions.folder.wording import by_date
from desk_rag.answering.questions.forms import first_match
from desk_rag.answering.questions.matching import Row, quotable_rows
from desk_rag.answering.questions.narrowing import distinct, indexed
from desk_rag.answering.questions.nearest import nearest
from desk_rag.answering.questions.summary import best_about, sentences_of
from desk_rag.answering.questions.whole_folder import FolderQuestion, Shown, finish, listed, show
from desk_rag.answering.requirements.correspondence import correspondents, is_header
from desk_rag.answering.requirements.dates import in_words
from desk_rag.answering.requirements.places import place_of_passage
from desk_rag.answering.requirements.requirements import Fit, Requirements
from desk_rag.answering.requirements.stems import content_stems, has_stem
from desk_rag.answering.requirements.titles import without_titles

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
_WHAT = re.compile(
    r"^what\s+(?:did|has|does|had)\s+.+?\s+(?:writ\w+|say|said|tell|told|send|sent|repl\w+|answer\w*|e?-?mail\w*|report)\b",
    re.I,
)
_LIGHT = content_stems(
    "mail mails email emails e letter message messages write wrote written say said tell told send sent reply replied"
    " answer answered report get got receive received all in on of from to by and between did what year month"
)
_ABOUT = r"\s+(?:about|on|concerning|regarding)\s+(?P<topic>.+)$"
_WHO = (
    re.compile(
        r"^(?:who\s+(?:has\s+)?(?:sent|wrote|written)|from\s+whom\s+(?:is|was|came))\s+(?:(?:to\s+)?(?:us|me)\s+)?(?:the|an?|this|that)\s+"
        rf"(?P<noun>[\w-]+)(?:\s+to\s+(?:us|me))?{_ABOUT}",
        re.I,
    ),
    re.compile(rf"^who\s+(?P<noun>[a-z]+ed)(?:\s+to\s+(?:us|me))?{_ABOUT}", re.I),
)
_MAILS, _LETTERS = re.compile(r"(?:e-?)?mail|message", re.I), re.compile("letter", re.I)
_I_DO = re.compile(r"\b(?:I|[Ww]e)\b(?P<verbs>(?:\s+\w+){1,4})")
"""The writer and what he does: 'I must complain'."""
_REPLY = re.compile(r"^(?:(?:re|aw|fwd?|wg):\s*)+", re.I)
_SELF = re.compile(r"(?:I|we|me|us)", re.I)
_MOST_DATES = 50
_PASSAGES, _NEAREST, _FEWEST_WORDS, _MOST_OF_MAIL = 12, 3, 4, 4
_FEW, _MOST_SENTENCES = 3, 8
"""Letters and mails of which each is quoted, and the sentences of all of them."""


def when(question: FolderQuestion) -> Iterator[AnswerEvent]:
    """Yield the dates of the letters and mails; nothing if the question is no such one or none matches."""
    match = first_match([_WHEN], without_titles(question.text))
    if match is None or not (match["to"] or not _SELF.fullmatch(match["from"])):
        return
    reading = yield from read(question.store, [Kind("letter", "letters"), Kind("mail", "mails")], question.under)
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
    shown = show(question.store, [_row(record) for record in records[:_MOST_DATES]])
    lines = [
        listed(citation, in_words(record.date), record.path, question.store.volumes.roots())
        for citation, record in zip(shown.citations, records, strict=False)
    ]
    if len(records) > _MOST_DATES:
        lines.append(f"and {len(records) - _MOST_DATES:,} more")
    yield from question.answered("\n".join(lines), shown, reading.passages, reading.files)


def what(question: FolderQuestion) -> Iterator[AnswerEvent]:
    """Yield what somebody wrote or was sent: the first sentences of a few letters and mails, or a list of many."""
    between = correspondents(question.text)
    if first_match([_WHAT], question.text) is None or not between:
        return
    rest, period = take_period(without_titles(question.text), question.today)
    if content_stems(rest) - content_stems(between.names) - _LIGHT:
        return
    reading = yield from read(question.store, [Kind("letter", "letters"), Kind("mail", "mails")], question.under)
    records = [
        record
        for record in reading.records
        if (not between.sender or is_from(between.sender, record))
        and (not between.recipient or is_to(between.recipient, record))
        and (period is None or period.holds(record.date))
    ]
    if len(records) <= _FEW:
        most = _MOST_SENTENCES // max(1, len(records))
        own = [sentences_of(record.passages, _FEWEST_WORDS, own=True) for record in records]
        shown = show(question.store, [row for rows in own for row in rows[:most] if not is_header(row.text)])
        text = "\n".join(" ".join(citation.quote.split()) for citation in shown.citations)
    else:
        shown = show(question.store, [_row(record) for record in sorted(records, key=by_date)[:_MOST_DATES]])
        more = f" (the first {_MOST_DATES} are shown)" if len(records) > _MOST_DATES else ""
        count = f"{len(records):,} of {len(reading.records):,} letters and mails"
        text = f"{count}, by sender, recipient and date{more}."
    if shown.citations:
        yield from question.answered(text, shown, reading.passages, reading.files)


def who(question: FolderQuestion) -> Iterator[AnswerEvent]:
    """Yield the writer of the mail or letter about something; nothing if the question is no such one or none is.

    Another noun than these, 'complaint', stands for what the writer does in one sentence.
    """
    match = first_match(_WHO, without_titles(question.text))
    if match is None:
        return
    noun = match["noun"]
    words, period = take_period(match["topic"], question.today)
    topic = content_stems(words)
    mails, letters = Kind("mail", "mails"), Kind("letter", "letters")
    kinds = [mails] if _MAILS.fullmatch(noun) else [letters] if _LETTERS.fullmatch(noun) else [letters, mails]
    if not topic:
        return
    reading = yield from read(question.store, kinds, question.under)
    rows: list[tuple[Record, Row]] = []
    for record in reading.records:
        row = _row_about(record, topic, noun if len(kinds) > 1 else "")
        if row is not None and writer_of(record) and (period is None or period.holds(record.date)):
            rows.append((record, row))
    of_subject = [pair for pair in rows if topic <= content_stems(_subject(pair[0]))]
    rows = of_subject or rows
    subjects = {_subject(record) for record, _ in rows}
    rows = [pair for pair in rows if not _is_reply(_subject(pair[0]), subjects)]
    if not rows:
        return
    rows.sort(key=lambda pair: by_date(pair[0]))
    shown = show(question.store, [row for _, row in rows[:_MOST_DATES]])
    text = writer_of(rows[0][0])
    if len({writer_of(record) for record, _ in rows}) > 1:
        facts = [", ".join(filter(None, [writer_of(one), in_words(one.date), _subject(one)])) for one, _ in rows]
        of_lines = zip(shown.citations, facts, rows, strict=False)
        roots = question.store.volumes.roots()
        text = "\n".join(listed(citation, fact, one.path, roots) for citation, fact, (one, _) in of_lines)
    yield from question.answered(text, shown, reading.passages, reading.files)


def _subject(record: Record) -> str:
    return record.header_line.rpartition("; Subject: ")[2]


def _is_reply(subject: str, subjects: set[str]) -> bool:
    """True for 'Re: Windows' where the mail 'Windows' is among them."""
    plain = _REPLY.sub("", subject)
    return plain != subject and plain in subjects


def _row_about(record: Record, topic: set[str], deed: str) -> Row | None:
    """The header of a mail about a topic, or the sentence of a letter with most of it; None if it is not about it.

    With a `deed` only a sentence in which the writer does it, and which is about the topic.
    """
    units = quotable_rows(record.passages)
    if deed:
        return next((row for row in units if topic <= content_stems(row.text) and _does(row.text, deed)), None)
    if not topic <= content_stems(f"{record.text} {record.path.stem}"):
        return None
    return _row(record) if record.header_line else max(units, key=lambda row: len(topic & content_stems(row.text)))


def _does(sentence: str, deed: str) -> bool:
    """True if the writer does what the noun names: 'I must complain' for 'complaint'."""
    return any(has_stem(stem, content_stems(match["verbs"])) for match in _I_DO.finditer(sentence)
               for stem in content_stems(deed))  # fmt: skip


def _name(words: str, reading: Reading) -> str:
    """The name of a sender or recipient; '' for 'I' and 'me'."""
    return "" if _SELF.fullmatch(words.strip()) else with_capitals(words.strip(), reading.parties)


def _row(record: Record) -> Row:
    """The header of a mail, or the first line of a letter that has its date."""
    if record.header_line:
        return Row(record.passages[0], record.header_line)
    units = quotable_rows(record.passages)
    day = in_words(record.date)
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
