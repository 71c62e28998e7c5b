"""Word what was compared with the passages in a written answer, and stale sources, the same for command line and UI.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from desk_rag.answering.events import MARK, Answer, CheckedSentence, Grounding, Source, Support
from desk_rag.documents.status import plural

_REASONS_SHOWN = 3


def stale_notice(source: Source) -> str:
    """Return in which way a stale source is stale; '' for another one."""
    if not source.stale:
        return ""
    return source.absence.notice if source.absence else "its file has changed since it was read"


def searched_only(answer: Answer, limits: Sequence[str]) -> str:
    """Return what alone was searched, '' if it was everything; `limits` are the shown names of `limited_to`."""
    within = ", ".join(limits)
    if not answer.narrowed:
        return f"searched only {within}" if within else ""
    return f"searched only {answer.narrowed}" + (f", in {within}" if within else "")


def remarks(answer: Answer) -> list[str]:
    """Sentences about an answer's support and its model's reasoning."""
    doubted = [sentence for sentence in answer.sentences if sentence.support is Support.UNSUPPORTED]
    unchecked = [sentence for sentence in answer.sentences if sentence.support is Support.UNCHECKED]
    total = len(answer.sentences)
    parts = []
    if answer.grounding is Grounding.NONE:
        parts.append("Not from your documents: the passages that were read support no sentence of this answer")
    elif doubted:
        verb = "is" if len(doubted) == 1 else "are"
        parts.append(f"{len(doubted)} of {total} sentences {verb} not supported by the passages, marked {MARK}")
    if doubted and (reasons := _reasons(doubted)):
        parts[-1] += f": {reasons}"
    if unchecked:
        verb = "was" if len(unchecked) == 1 else "were"
        parts.append(f"{len(unchecked)} of {total} sentences {verb} not checked: {_reasons(unchecked)}")
    return parts


def kept_notices(answer: Answer) -> list[str]:
    """Return what is said below an answer besides its doubt and its sources, and is kept with it in a saved chat."""
    notices = remarks(answer)
    if answer.dropped_quotes:
        count = len(answer.dropped_quotes)
        notices.append(f"{count} of the model's quotes {'is' if count == 1 else 'are'} in no document; left out")
    if answer.cut_notice:
        notices.append(answer.cut_notice)
    if answer.not_read is not None:
        notices.append(f"{answer.not_read.brief}; {answer.not_read.hint}")
    return [*notices, *answer.notices]


def reasoned(answer: Answer) -> str:
    """'The model reasoned for 120 words first'; empty without reasoning."""
    count = len(answer.reasoning.split())
    return f"The model reasoned for {plural(count, 'word')} first" if count else ""


def _reasons(sentences: Sequence[CheckedSentence]) -> str:
    return "; ".join(list(dict.fromkeys(each.reason for each in sentences if each.reason))[:_REASONS_SHOWN])
