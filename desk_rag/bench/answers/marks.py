"""Mark one answer of the product: what was retrieved, what was quoted, what was said."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from desk_rag.answering.events import Answer
from desk_rag.bench.answer_quality import metrics
from desk_rag.bench.answers.questions import Question

_BETWEEN_CELLS = re.compile(r"[,;:|=]")


@dataclass(frozen=True, slots=True)
class Marks:
    """Marks of one answer; None where a mark does not apply to the question."""

    file: bool | None
    """All needed files are among the sources."""
    chunk: bool | None
    """All evidence stands in the sources."""
    output: bool | None
    """Every part of the answer stands in the short answer or in a quote."""
    exact: bool | None
    """The short answer is one of the wordings; for several parts, holds all of them."""
    quoted: bool | None
    """All needed files are quoted."""
    withheld: bool | None
    """The folder holds the answer, but the product said that it does not."""
    refused: bool | None
    """The folder does not hold the answer, and the product said so."""
    misled: bool
    """A wrong answer with a quote, and without a word of doubt or of a part that was not found."""


NAMES = tuple(Marks.__dataclass_fields__)


def mark(question: Question, answer: Answer, folder: Path) -> Marks:
    """Mark `answer`, given to `question` about the files of `folder`."""
    doubted = answer.doubtful or bool(answer.unanswered)
    quoted = answer.found and bool(answer.citations) and not doubted
    if not question.answerable:
        return Marks(None, None, None, None, None, None, refused=not answer.found, misled=quoted)
    shown = output(answer)
    right = answer.found and all(any(_holds(shown, one) for one in part) for part in question.answers)
    needed = any if question.one_is_enough else all
    read = {source.path for source in answer.sources}
    cited = {citation.path for citation in answer.citations}
    texts = [" ".join(source.text.split()) for source in answer.sources]
    return Marks(
        file=needed(folder / file in read for file in question.files),
        chunk=needed(any(" ".join(passage.split()) in text for text in texts) for passage in question.evidence),
        output=right,
        exact=answer.found and _exact(question, answer.text),
        quoted=answer.found and needed(folder / file in cited for file in question.files),
        withheld=not answer.found,
        refused=None,
        misled=quoted and not right,
    )


def output(answer: Answer) -> str:
    """Everything that a reader of the answer sees of the documents: short answer, quotes and their files."""
    quotes = [f"{citation.path.name} {citation.quote}" for citation in answer.citations]
    return "\n".join([answer.text, *quotes])


def _holds(shown: str, wanted: str) -> bool:
    """Return whether `shown` holds the words of `wanted`; the mark between two cells of a table separates words."""
    return metrics.contains(shown, wanted) or metrics.contains(_BETWEEN_CELLS.sub(" ", shown), wanted)


def _exact(question: Question, text: str) -> bool:
    if len(question.answers) == 1:
        counted = text.partition(" (")[0]  # what is computed is followed by words that say so
        return any(metrics.exact(said, one) for said in (text, counted) for one in question.answers[0])
    return all(any(metrics.contains(text, one) for one in part) for part in question.answers)
