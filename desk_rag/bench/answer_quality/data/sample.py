"""One question with its chunks and what a right answer holds: the form that every data set is converted to.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Parts = tuple[tuple[str, ...], ...]
"""Parts of an answer, all of them wanted; each with the wordings that will do."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A question that is asked over given chunks."""

    question: str
    answers: Parts
    """Empty: the chunks do not hold the answer, and saying so is right."""
    contexts: tuple[str, ...]
    """Chunk texts in the order in which they are laid."""
    task: str
    """Scores are summed up by it."""
    gold: tuple[int, ...] | None = None
    """Indices of the contexts that hold the answer; None where nobody knows."""
    evidence: tuple[str, ...] = ()
    """Sentences that prove the answer, where known."""
    wrong: tuple[str, ...] = ()
    """Wordings of a misled answer (counterfactual data)."""

    @property
    def answerable(self) -> bool:
        return bool(self.answers)

    @property
    def digest(self) -> str:
        """16 hex digits over everything."""
        return hashlib.sha256(json.dumps(self.to_json()).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, object]:
        """One line of the JSONL form; `answers` is a list of wordings, or a list of such lists for several parts."""
        answers: object = list(self.answers[0]) if len(self.answers) == 1 else [list(part) for part in self.answers]
        line: dict[str, object] = {
            "task": self.task, "question": self.question, "answers": answers, "contexts": list(self.contexts),
        }  # fmt: skip
        if self.gold is not None:
            line["gold"] = list(self.gold)
        line |= {name: list(getattr(self, name)) for name in ("evidence", "wrong") if getattr(self, name)}
        return line

    @classmethod
    def from_json(cls, line: Mapping[str, object], task: str) -> Sample:
        """Read one line of the JSONL form; `task` stands in where the line names none.

        Raises ValueError with what is wrong.
        """
        contexts = _texts(line, "contexts", required=True)
        if not contexts:
            raise ValueError("'contexts' is empty")
        gold = line.get("gold")
        if gold is not None:
            if not isinstance(gold, list) or not all(isinstance(i, int) and 0 <= i < len(contexts) for i in gold):
                raise ValueError("'gold' is no list of indices of 'contexts'")
            gold = tuple(gold)
        question = line.get("question")
        if not isinstance(question, str) or not question.strip():
            raise ValueError("'question' is missing or no text")
        if "answers" not in line:
            raise ValueError("'answers' is missing (an empty list says that there is none)")
        named = line.get("task")
        return cls(
            question=question,
            answers=parts(line["answers"]),
            contexts=contexts,
            task=named if isinstance(named, str) and named else task,
            gold=gold,
            evidence=_texts(line, "evidence"),
            wrong=_texts(line, "wrong"),
        )


def parts(value: object) -> Parts:
    """'a' or ['a', 'b'] (wordings of one part) or [['a', 'b'], ['c']] (two parts). Raises ValueError."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise ValueError("'answers' is no list")
    if all(isinstance(one, list) for one in value):
        return tuple(alternatives(one) for one in value)
    return (alternatives(value),)


def alternatives(value: object) -> tuple[str, ...]:
    """Wordings of one part: a text, a number or a list of them. Raises ValueError."""
    listed = value if isinstance(value, list) else [value]
    if not listed or not all(isinstance(one, (str, int, float)) and str(one).strip() for one in listed):
        raise ValueError("'answers' holds something that is no text")
    return tuple(dict.fromkeys(str(one) for one in listed))


def digest_of(samples: Iterable[Sample]) -> str:
    """16 hex digits over all samples in their order."""
    return hashlib.sha256("".join(sample.digest for sample in samples).encode()).hexdigest()[:16]


def _texts(line: Mapping[str, object], name: str, *, required: bool = False) -> tuple[str, ...]:
    value = line.get(name)
    if value is None and not required:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(one, str) for one in value):
        raise ValueError(f"'{name}' is {'missing or ' if required else ''}no list of texts")
    return tuple(value)
