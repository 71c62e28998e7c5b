"""Cut or extend a span of the quote to the whole value that it is part of, and to nothing but that.

'15:00' of '28 November 2024 14:00 to 15:00' says neither the day nor when it begins; the '2.' in front of a line of a
list is no answer; '1,975.00)' has a bracket too many.
"""

from __future__ import annotations

import re

from desk_rag.answering.requirements.answer_kinds import AnswerKind, is_of_kind, kind_asked
from desk_rag.answering.requirements.dates import MONTHS

_MONTH = rf"(?:{'|'.join(f'{name}|{name[:3]}' for name in MONTHS)}|sept)\.?"
_DATE = rf"(?:\d{{1,2}}\s+{_MONTH}(?:\s+\d{{4}})?|{_MONTH}\s+\d{{1,2}}(?:,?\s+\d{{4}})?|\d{{4}}-\d{{2}}-\d{{2}})"
_CLOCK = r"\d{1,2}[:.]\d{2}(?:\s?[ap]\.?m\b\.?)?"
_PERIOD = re.compile(
    rf"\b(?P<first>(?:{_DATE},?\s+(?:at\s+)?)?{_CLOCK})\s*(?:to|until|till|-|–|—)\s*(?P<last>(?:{_DATE},?\s+)?{_CLOCK})(?!\d)",
    re.I,
)
"""A time of day with the one until which it lasts, and its day."""
_ASKS_START = re.compile(r"^(?:from\s+when|since\s+when)\b|\b(?:start|begin|open)s?\b", re.I)
_ASKS_END = re.compile(r"^(?:until|till)\s+(?:when|what\s+time)\b|\b(?:end|finish|close|over)(?:s|es)?\b", re.I)
_NUMBER_MARK = re.compile(r"^[^\w\n]{0,4}\d{1,3}(?:(?:\.\d{1,3})+[.)]?|[.)])(?:\s*\[[ xX]?\])?\s+(?=[^\W\d_a-z])")
_GOES_ON = re.compile(r",?\s+(?:and|but)\s+(?:is|are|was|were|has|have|will|may|must|can)\b.*$", re.I | re.S)
_BRACKETS = {")": "(", "]": "["}


class ShortAnswers:
    """The parts of one quote that may be the short answer to one question."""

    def __init__(self, question: str, sentence: str) -> None:
        self._question, self._sentence = question, sentence
        self._kind = kind_asked(question)
        mark = _NUMBER_MARK.match(sentence)
        self._mark_end = mark.end() if mark is not None else 0
        self._periods = list(_PERIOD.finditer(sentence)) if self._kind is AnswerKind.TIME else []

    def whole(self, begin: int, end: int) -> tuple[int, int] | None:
        """Return the range of the whole value around [begin, end) of the sentence; None if it is no value."""
        if end <= self._mark_end:
            return None
        begin = max(begin, self._mark_end)
        for period in self._periods:
            if period.start() <= begin and end <= period.end():
                return self._of_period(period)
        return self._trimmed(begin, end)

    def _of_period(self, period: re.Match[str]) -> tuple[int, int]:
        if _ASKS_START.search(self._question):
            return period.span("first")
        return period.span("last") if _ASKS_END.search(self._question) else period.span()

    def _trimmed(self, begin: int, end: int) -> tuple[int, int] | None:
        """Cut off an unmatched bracket and a second statement that follows the value."""
        text = self._sentence[begin:end]
        more = _GOES_ON.search(text)
        if self._kind is not None and more is not None and is_of_kind(self._kind, text[: more.start()]):
            text = text[: more.start()]
        for close, opening in _BRACKETS.items():
            while text.endswith(close) and text.count(close) > text.count(opening):
                text = text[:-1].rstrip()
        return (begin, begin + len(text)) if text.strip() else None
