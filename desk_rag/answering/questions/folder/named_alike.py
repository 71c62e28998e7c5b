"""List the documents that are called what a question asks for: 'List all site meetings', 'At which was Ana present?'"""

from __future__ import annotations

import re
from collections.abc import Iterator

from desk_rag.answering.events import AnswerEvent
from desk_rag.answering.questions.folder.reading.kinds import MAIL_FORMATS, Kind, is_ledger
from desk_rag.answering.questions.folder.reading.periods import take_period
from desk_rag.answering.questions.folder.reading.records import Record, read
from desk_rag.answering.questions.folder.wording import by_date
from desk_rag.answering.questions.forms import first_match
from desk_rag.answering.questions.matching import Row, quotable_rows
from desk_rag.answering.questions.whole_folder import FolderQuestion, listed, show
from desk_rag.answering.requirements.dates import in_words
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.answering.requirements.titles import without_titles
from desk_rag.documents.formats import Format, format_of_name
from desk_rag.documents.status import plural

_THINGS = r"(?P<things>[a-z][\w-]*(?:\s[a-z][\w-]*)?s)"
_ASKS = (
    re.compile(
        rf"^(?:list|show|name|give|find)\s+(?:me\s+)?(?:(?:all|every|the|our|my|of)\s+)*{_THINGS}(?P<rest>(?:\s+(?:in|of|from|since)\s.+)?)$",
        re.I,
    ),
    re.compile(
        rf"^(?:which|what)\s+{_THINGS}\s+(?:are\s+there|do\s+(?:we|I)\s+have|exist|were\s+there)(?P<rest>(?:\s.+)?)$",
        re.I,
    ),
    re.compile(
        rf"^(?:(?:at|in|on|from|during)\s+)?(?:which|what)\s+(?:of\s+the\s+|of\s+our\s+)?{_THINGS}\s+(?:was|were|is|are|did|does|has|have|had)\s+"
        r"(?P<rest>.+)$",
        re.I,
    ),
)
_ATTENDS = re.compile(r"\b(?:present|attend(?:ed|s)?|take\s+part|took\s+part|there|come|came|participate[ds]?)\b", re.I)
_PRESENT = re.compile(r"^\W*(?:present|attend\w+|participants?|those\s+present)\b[^:]{0,20}:", re.I)
_LIGHT = content_stems(
    "present attend attended take took part there come came participate participated discuss discussed mention"
    " mentioned talk talked about said of in at"
)
_NOT_CALLED_SO = MAIL_FORMATS | {Format.CODE}
_FEWEST, _MOST = 2, 100


def answer(question: FolderQuestion) -> Iterator[AnswerEvent]:
    """Yield the documents; nothing unless several are called so, and some have the other words of the question."""
    match = first_match(_ASKS, without_titles(question.text))
    if match is None:
        return
    reading = yield from read(question.store, [Kind("file", "files")], question.under)
    rest, period = take_period(match["rest"], question.today)
    wanted = content_stems(rest) - _LIGHT
    called = [record for record in reading.records if _is_called(match["things"].lower(), record)]
    if len(called) < _FEWEST or (match.re is _ASKS[-1] and not wanted and period is None):
        return
    rows = [(record, row) for record in sorted(called, key=by_date)
            if (period is None or period.holds(record.date)) and (row := _row(record, wanted, rest))]  # fmt: skip
    if not rows:
        return
    shown, roots = show(question.store, [row for _, row in rows[:_MOST]]), question.store.volumes.roots()
    lines = []
    for citation, (record, row) in zip(shown.citations, rows, strict=False):
        facts = [in_words(record.date), f"“{row.text}”" if wanted else ""]
        lines.append(listed(citation, ", ".join(filter(None, facts)), record.path, roots))
    those = f" {period.words}" if period is not None else ""
    with_words = f" with “{' '.join(word for word in rest.split() if content_stems(word) & wanted)}”" if wanted else ""
    of_all = f", of {len(called):,}" if len(rows) < len(called) else ""
    head = f"{plural(len(rows), 'file')} called “{_singular(match['things'])}”{with_words}{those}{of_all}:"
    yield from question.answered("\n".join([head, *lines]), shown, reading.passages, reading.files)


def _is_called(things: str, record: Record) -> bool:
    """True if the name of a document has the words, in the singular: 'rooms.txt' is no room."""
    name = re.sub(r"[\W_]+", " ", record.path.stem).lower()
    if not content_stems(_singular(things)) <= content_stems(name) or things.split()[-1] in name.split():
        return False
    return format_of_name(record.path.name) not in _NOT_CALLED_SO and not is_ledger(record.passages)


def _singular(things: str) -> str:
    return re.sub(r"(?<=[sxh])es$|s$", "", re.sub(r"ies$", "y", things.lower()))


def _row(record: Record, wanted: set[str], rest: str) -> Row | None:
    """The line with most of the words, if the document has all; who was present, a line of those decides alone."""
    units = quotable_rows(record.passages)
    present = [row for row in units if _PRESENT.match(row.text)] if _ATTENDS.search(rest) else []
    if present:
        return next((row for row in present if wanted <= content_stems(row.text)), None)
    if not units or not wanted <= content_stems(record.text):
        return None
    return max(units, key=lambda row: len(wanted & content_stems(row.text)))
