"""Word what was compared with the passages in a written answer, the same for the command line and the UI.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from desk_rag.answering.events import Answer, CheckedSentence, Grounding, Support

MARK = "[?]"
"""Stands behind a sentence that the passages do not support, or that could not be compared."""
_REASONS_SHOWN = 3


def mark(sentence: CheckedSentence) -> str:
    """Mark to put behind a sentence; empty for a supported one, whose text names its passages."""
    return "" if sentence.support is Support.SUPPORTED else f" {MARK}"


def marked(text: str, sentences: Sequence[CheckedSentence]) -> str:
    """The text of an answer with the marks of its sentences; in a table row inside its last cell."""
    for sentence in sorted(sentences, key=lambda each: each.end, reverse=True):
        if not mark(sentence) or sentence.end > len(text):
            continue
        body, rest = text[: sentence.end], text[sentence.end :]
        is_row = body.endswith("|") and text[sentence.start : sentence.end].lstrip().startswith("|")
        text = f"{body[:-1].rstrip()}{mark(sentence)} |{rest}" if is_row else f"{body}{mark(sentence)}{rest}"
    return text


def remarks(answer: Answer) -> list[str]:
    """Sentences about an answer's support and its model's reasoning."""
    doubted = [sentence for sentence in answer.sentences if sentence.support is Support.UNSUPPORTED]
    unchecked = [sentence for sentence in answer.sentences if sentence.support is Support.UNCHECKED]
    total = len(answer.sentences)
    found = []
    if answer.grounding is Grounding.NONE:
        found.append("Not from your documents: the passages that were read support no sentence of this answer")
    elif doubted:
        verb = "is" if len(doubted) == 1 else "are"
        found.append(f"{len(doubted)} of {total} sentences {verb} not supported by the passages, marked {MARK}")
    if doubted and (reasons := _reasons(doubted)):
        found[-1] += f": {reasons}"
    if unchecked:
        verb = "was" if len(unchecked) == 1 else "were"
        found.append(f"{len(unchecked)} of {total} sentences {verb} not checked: {_reasons(unchecked)}")
    return found


def reasoned(answer: Answer) -> str:
    """'The model reasoned for 120 words first'; empty without reasoning."""
    count = len(answer.reasoning.split())
    return f"The model reasoned for {count:,} word{'' if count == 1 else 's'} first" if count else ""


def _reasons(sentences: Sequence[CheckedSentence]) -> str:
    return "; ".join(list(dict.fromkeys(each.reason for each in sentences if each.reason))[:_REASONS_SHOWN])
