"""Do cached and full answers say the same, and is it right?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from desk_rag.answering.events import Answer
from desk_rag.bench.harness.corpus import Question


def token_f1(one: str, other: str) -> float:
    """Overlap of two texts' words, as reading-comprehension scores count it (SQuAD); 1 for two empty ones."""
    first, second = (Counter(re.findall(r"\w+", text.casefold())) for text in (one, other))
    shared = sum((first & second).values())
    if not first or not second:
        return float(first == second)
    if not shared:
        return 0.0
    precision, recall = shared / sum(first.values()), shared / sum(second.values())
    return 2 * precision * recall / (precision + recall)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Result over all questions that were asked both ways."""

    equal: float
    """Share of pairs with the same text."""
    token_f1: float
    pairs: int
    right_cached: int
    """Answers that hold what is expected, among the `judged` questions that say what that is."""
    right_full: int
    judged: int

    @classmethod
    def of(cls, cached: Mapping[Question, Answer], full: Mapping[Question, Answer]) -> Agreement:
        """Compare answer by answer; both sides must have been asked the same."""
        pairs = [(cached[question].raw, full[question].raw) for question in full]
        judged = [question for question in full if question.answers is not None]
        return cls(
            equal=sum(one == other for one, other in pairs) / len(pairs),
            token_f1=sum(token_f1(one, other) for one, other in pairs) / len(pairs),
            pairs=len(pairs),
            right_cached=sum(is_right(question, cached[question]) for question in judged),
            right_full=sum(is_right(question, full[question]) for question in judged),
            judged=len(judged),
        )


def is_right(question: Question, answer: Answer) -> bool:
    """True if one of the expected answers is in the text, or nothing was found where there is nothing."""
    if not question.answers:
        return not answer.found
    return answer.found and any(expected.casefold() in answer.raw.casefold() for expected in question.answers)
