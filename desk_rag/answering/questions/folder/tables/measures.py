"""Compare a measure over documents named alike: 'Which walk is the longest?', 'How many walks longer than 15 km?'

The name of each file says what it is about, and the one length, price, weight or area in it is its measure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from desk_rag.answering.events import AnswerEvent
from desk_rag.answering.questions.forms import first_match
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.questions.narrowing import distinct, indexed
from desk_rag.answering.questions.whole_folder import FolderQuestion, listed, show
from desk_rag.answering.requirements.labels import is_own_measure, measure_asked
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.documents.sentences import quotable
from desk_rag.documents.status import plural
from desk_rag.sanitize import clean_name

if TYPE_CHECKING:
    from desk_rag.store.store import Store
    from desk_rag.store.types import DocumentRow

_ASKED_OF = {
    "How long is it?": ("longer longest", "shorter shortest"),
    "How heavy is it?": ("heavier heaviest", "lighter lightest"),
    "How large is it?": ("larger largest bigger biggest", "smaller smallest"),
    "How much is it?": ("dearer dearest", "cheaper cheapest"),
}  # fmt: skip
_WORDS = {word: (asked, side == 1) for asked, sides in _ASKED_OF.items() for side, words in enumerate(sides)
          for word in words.split()}  # fmt: skip
_COMPARATIVE = "|".join(word for word in _WORDS if word.endswith("er"))
_SUPERLATIVE = "|".join(word for word in _WORDS if word.endswith("est"))
_LIMIT = (
    rf"(?P<word>{_COMPARATIVE})\s+than\s+(?:[€$£]\s?)?(?P<number>\d[\d,]*(?:\.\d+)?)"
    r"\s*(?P<unit>[^\W\d_]+(?:\s[^\W\d_]+)?|[€$£])?"
)
_ASKS = (
    re.compile(
        rf"^(?P<count>how\s+many)\s+(?P<thing>[\w-]+)\s+(?:(?:are|is|were|that\s+are)\s+)*{_LIMIT}(?:\s+are\s+there)?$",
        re.I,
    ),
    re.compile(rf"^(?:which|what)\s+(?P<thing>[\w-]+)\s+(?:are|is)\s+{_LIMIT}$", re.I),
    re.compile(
        r"^(?:which|what)\s+(?:(?:of\s+)?(?:the|our|my)\s+)?(?P<thing>[\w-]+)\s+(?:is|are|was)\s+(?:the\s+)?"
        rf"(?P<word>{_SUPERLATIVE})$",
        re.I,
    ),
)
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_FEWEST = 2


@dataclass(frozen=True, slots=True)
class _Measured:
    document: DocumentRow
    row: Row
    words: str
    number: Decimal
    unit: str


def answer(question: FolderQuestion) -> Iterator[AnswerEvent]:
    """Yield the documents that are meant; nothing unless several have the thing in their names and one measure each."""
    match = first_match(_ASKS, question.text)
    thing = content_stems(match["thing"]) if match is not None else set()
    if match is None or not thing:
        return
    asked, is_less = _WORDS[match["word"].lower()]
    says = measure_asked(asked)
    documents = [row for row in distinct(indexed(question.store, question.under))
                 if thing <= content_stems(row.path.stem.replace("_", " "))]  # fmt: skip
    measured = [one for document in documents if says is not None
                for one in _measure(question.store, document, says, thing)]  # fmt: skip
    if len(measured) < _FEWEST or len({one.unit for one in measured}) > 1:
        return
    limit, unit = match.groupdict().get("number"), (match.groupdict().get("unit") or measured[0].unit)
    if limit is not None:
        if _plain(unit) != measured[0].unit:
            return
        least = Decimal(limit.replace(",", ""))
        chosen = [one for one in measured if (one.number < least if is_less else one.number > least)]
    else:
        best = (min if is_less else max)(one.number for one in measured)
        chosen = [one for one in measured if one.number == best]
    shown, roots = show(question.store, [one.row for one in chosen]), question.store.volumes.roots()
    lines = [
        listed(citation, one.words, one.document.path, roots)
        for citation, one in zip(shown.citations, chosen, strict=True)
    ]
    text = _head(match, chosen, len(measured))
    left_out = [clean_name(row.path.name) for row in documents if all(one.document is not row for one in measured)]
    notes = [f"Left out, because no single measure was found: {', '.join(left_out)}."] if left_out else []
    support = 0.0 if left_out else None
    yield from question.answered(
        "\n".join([text, *lines, *notes]), shown, len(measured), len(documents), support=support
    )


def _head(match: re.Match[str], chosen: Sequence[_Measured], count: int) -> str:
    """The result in words: '1 (counted: …)', or whose measure it is."""
    files = f"{plural(count, 'file')} with “{match['thing'].lower()}” in the name"
    if match.groupdict().get("number") is None:
        names = ", ".join(clean_name(one.document.path.stem) for one in chosen)
        return f"{names}: {chosen[0].words} (computed: the {match['word'].lower()} of {files})"
    condition = f"{match['word'].lower()} than {match['number']} {match['unit'] or ''}".rstrip()
    verb = "counted" if match.groupdict().get("count") else "compared"
    return f"{len(chosen)} ({verb}: {condition}, of {files})"


def _measure(store: Store, document: DocumentRow, says: re.Pattern[str], thing: set[str]) -> Iterator[_Measured]:
    """The measure of a document, if one sentence alone has such a number."""
    rows = [
        (Row(passage, unit), value)
        for passage in store.passages_of(document.path)
        for unit in quotable(passage.chunk.text)
        if (value := says.search(unit)) is not None and is_own_measure(unit, value.start(), thing)
    ]
    if len({value.group() for _, value in rows}) != 1:
        return
    row, value = rows[0]
    number = _NUMBER.search(value.group())
    if number is not None:
        unit = _plain(f"{value.group()[: number.start()]}{value.group()[number.end() :]}")
        yield _Measured(document, row, value.group(), Decimal(number.group().replace(",", "")), unit)


def _plain(unit: str) -> str:
    """The unit in small letters and in the singular."""
    return unit.strip().casefold().removesuffix("s")
