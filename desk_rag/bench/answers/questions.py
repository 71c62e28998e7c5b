"""Questions about a folder with what a right answer holds, read from JSON lines.

    {"kind": "fact", "question": "When is the rent due?", "answers": [["1 May", "the first of May"]],
     "files": ["letters/rent.txt"], "evidence": ["The rent is due on 1 May."]}

`answers` lists the parts of the answer, each in all wordings that count; none if the folder does not hold the answer.
`files` and `evidence` belong together: the files that are needed and a passage of each, character by character.
"any": true means that one of the files is enough.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from desk_rag.answering.requirements.stems import coverage
from desk_rag.errors import ConfigError

NO_ANSWER = "none"
"""The kind of questions that the folder does not answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question about a folder."""

    kind: str
    text: str
    answers: tuple[tuple[str, ...], ...]
    """Parts of the answer, each in its wordings."""
    files: tuple[str, ...]
    evidence: tuple[str, ...]
    one_is_enough: bool = False

    @property
    def answerable(self) -> bool:
        """True if the folder holds the answer."""
        return bool(self.answers)

    @property
    def wording(self) -> str:
        """'same words' if the question shares a content word with its evidence, else 'other words'; '' without."""
        if not self.evidence:
            return ""
        return "same words" if any(coverage(self.text, passage) for passage in self.evidence) else "other words"

    @property
    def file_kind(self) -> str:
        """Suffix of the first file; '' without files."""
        return Path(self.files[0]).suffix.removeprefix(".") or "none" if self.files else ""


def load(file: Path) -> list[Question]:
    """The questions of a file. Raises ConfigError, which names the line."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", remedy="Give --questions a file of JSON lines.") from error
    questions = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                questions.append(_question(json.loads(line)))
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(
                    f"Line {number} of {file} is not a question: {error!r}",
                    remedy="desk-rag bench answers --help shows the form of a question.",
                ) from error
    if not questions:
        raise ConfigError(f"{file} holds no questions.", remedy="desk-rag bench answers --help shows their form.")
    return questions


def _question(row: dict[str, object]) -> Question:
    files, evidence = _texts(row.get("files", [])), _texts(row.get("evidence", []))
    answers = row["answers"]
    if not isinstance(answers, list):
        raise TypeError("answers is not a list")
    if evidence and len(evidence) != len(files):
        raise ValueError("evidence must name one passage for each file")
    kind = str(row.get("kind", "fact" if answers else NO_ANSWER))
    parts = tuple(_texts(part) for part in answers)
    return Question(kind, str(row["question"]), parts, files, evidence, bool(row.get("any", False)))


def _texts(values: object) -> tuple[str, ...]:
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise TypeError(f"{values!r} is not a list")
    return tuple(str(value) for value in values)
