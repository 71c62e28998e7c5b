"""Take a model's reasoning out of its text while it streams."""

from __future__ import annotations

import re

from desk_rag.model.reasoning import MARKS, Reasoning, ReasoningMarks

_FRAME = re.compile(
    r"<\|(?:channel|message|start|end|return|START_RESPONSE|END_RESPONSE|begin_of_solution|end_of_solution)\|>"
    r"(?:assistant|analysis|final|commentary)?|</?answer>"
)
"""Marks around an answer or between messages, which belong to neither answer nor reasoning."""
_PERHAPS_FRAME = re.compile(r"<(?:\|(?:\w*(?:\|(?:>[a-z]{0,10})?)?)?|/?a?n?s?w?e?r?)")
_LONGEST_MARK = max(len(mark) for marks in MARKS for mark in (marks.opening, marks.closing))
_LONGEST_FRAME = 40


class ReasoningFilter:
    """Parts the text of one answer into reasoning and answer; the result does not depend on where pieces end."""

    def __init__(self, reasoning: Reasoning) -> None:
        self._known = reasoning.marks or MARKS
        self._inside = reasoning.begun
        self._pending = ""
        self._answered = False
        self.reasoning = ""
        """All reasoning so far."""
        self.unmarked = False
        """True if the model closed reasoning that it had not opened, after words that were already shown."""

    @property
    def is_open(self) -> bool:
        """True while the model reasons."""
        return self._inside is not None

    def feed(self, piece: str) -> str:
        """Take the next piece of text; return what is certain to be answer."""
        self._pending += piece
        answer = ""
        while (step := self._step(final=False)) is not None:
            answer += step
        return answer

    def finish(self) -> str:
        """Return what is left of the answer."""
        answer = ""
        while (step := self._step(final=True)) is not None:
            answer += step
        return answer

    def _step(self, *, final: bool) -> str | None:
        if not self._pending:
            return None
        return self._step_inside(self._inside, final=final) if self._inside else self._step_outside(final=final)

    def _step_inside(self, marks: ReasoningMarks, *, final: bool) -> str | None:
        index = self._pending.find(marks.closing)
        if index >= 0:
            self._reason(self._pending[:index])
            self._pending = self._pending[index + len(marks.closing) :].lstrip()
            self._inside = None
            return ""
        withheld = 0 if final else max(_held_back(self._pending, (marks.closing,)), _held_frame(self._pending))
        cut = len(self._pending) - withheld
        if not cut:
            return None
        self._reason(self._pending[:cut])
        self._pending = self._pending[cut:]
        return ""

    def _step_outside(self, *, final: bool) -> str | None:
        marks = self._known if not self._answered else tuple(m for m in self._known if m.opening[0] in "<[◁")
        places = [(self._pending.find(each.opening), each) for each in marks]
        begin, opened = min(((at, each) for at, each in places if at >= 0), default=(-1, None), key=lambda it: it[0])
        # Reasoning of a kind that the template does not name is only believed at the very beginning.
        if opened is not None and (not self._answered or self._known is not MARKS) and self._may_open(begin):
            text, self._pending = self._pending[:begin], self._pending[begin + len(opened.opening) :]
            self._inside = opened
            return self._clean(text)
        closed = next((each for each in self._known if each.closing in self._pending), None)
        if closed is not None and (self._known is not MARKS or not self._answered or closed.closing.startswith("</")):
            text, _, self._pending = self._pending.partition(closed.closing)
            self._pending = self._pending.lstrip()
            if self._answered:
                self.unmarked = True
                return self._clean(text)
            if closed.closing != "<|channel|>final<|message|>":
                self._reason(text)
            return ""
        ends = [end for mark in marks for end in (mark.opening, mark.closing)]
        withheld = 0 if final else _held_back(self._pending, ends)
        withheld = withheld if final else max(withheld, _held_frame(self._pending))
        cut = len(self._pending) - withheld
        if not cut:
            return None
        text, self._pending = self._pending[:cut], self._pending[cut:]
        return self._clean(text)

    def _may_open(self, begin: int) -> bool:
        return self._answered or not self._pending[:begin].strip() or self._known is not MARKS

    def _clean(self, text: str) -> str:
        text = _FRAME.sub("", text)
        text = text if self._answered else text.lstrip()
        self._answered = self._answered or bool(text)
        return text

    def _reason(self, text: str) -> None:
        self.reasoning += _FRAME.sub("", text) if self.reasoning else _FRAME.sub("", text).lstrip()


def _held_back(text: str, marks: tuple[str, ...] | list[str]) -> int:
    """Characters at the end of `text` that may be the beginning of a mark."""
    for length in range(min(len(text), _LONGEST_MARK), 0, -1):
        end = text[-length:]
        if any(len(mark) > length and mark.startswith(end) for mark in marks):
            return length
    return 0


def _held_frame(text: str) -> int:
    """Characters at the end of `text` that may be the beginning of a frame's mark."""
    begin = text.rfind("<", max(0, len(text) - _LONGEST_FRAME))
    return len(text) - begin if begin >= 0 and _PERHAPS_FRAME.fullmatch(text[begin:]) else 0
