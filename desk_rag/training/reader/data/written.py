"""Written questions about written passages: read from files, and made new by giving names and numbers other values.

A passage with other names and numbers is another passage to a model that would otherwise learn answers by heart;
questions and answers change with it.
"""

from __future__ import annotations

import json
import lzma
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from desk_rag.training.reader.data.frame import STOP_WORDS

_NAME = re.compile(r"\b[A-Z][a-z]{2,}\b")
_DIGITS = re.compile(r"\d+")
_SENTENCE_START = re.compile(r"(?:^|[.!?:\n]\s*[\"'(]?)([A-Z][a-z]+)")
_EXTENSION = re.compile(r"\.(txt|md|pdf|docx|html?|csv|xlsx)( - notes)?$")


@dataclass(frozen=True, slots=True)
class Pair:
    """A question and its answer, an exact substring of the passage."""

    question: str
    answer: str
    line: str = ""
    """The line or sentence where the answer answers, if it stands in others too; empty where any place will do."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A text with what may be asked of it."""

    title: str
    text: str
    desk: bool
    """A fictional document of a desk, not a book's passage."""
    pairs: tuple[Pair, ...]
    unanswerable: tuple[str, ...] = ()
    """Questions on its subject that it does not answer."""


@dataclass(frozen=True, slots=True)
class Together:
    """Texts and questions that need several of them."""

    texts: tuple[str, ...]
    pairs: tuple[Pair, ...]
    evidence: tuple[tuple[str, ...], ...]
    """Per pair the lines that prove it."""


def read_lines(path: Path) -> Iterator[dict[str, object]]:
    """The objects of a JSONL file, compressed by xz or not."""
    with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def find(folder: Path, name: str) -> list[Path]:
    """name.jsonl or name.jsonl.xz in `folder`, and further parts name-*.jsonl[.xz]."""
    return sorted(
        path
        for pattern in (f"{name}.jsonl", f"{name}.jsonl.xz", f"{name}-*.jsonl", f"{name}-*.jsonl.xz")
        for path in folder.glob(pattern)
    )


def load_passages(folder: Path, which: str) -> list[Passage]:
    """Passages of qa_WHICH and unanswerable_WHICH, one each, in the files' order."""
    order: dict[str, list[dict[str, object]]] = {}
    absent: dict[str, list[str]] = {}
    titles: dict[str, str] = {}
    for path in find(folder, f"qa_{which}"):
        for row in read_lines(path):
            order.setdefault(str(row["passage"]), []).append(row)
            titles[str(row["passage"])] = str(row.get("title") or "")
    for path in find(folder, f"unanswerable_{which}"):
        for row in read_lines(path):
            absent.setdefault(str(row["passage"]), []).append(str(row["question"]))
            titles.setdefault(str(row["passage"]), str(row.get("title") or ""))
    texts = [*order, *(text for text in absent if text not in order)]
    return [
        Passage(
            titles[text],
            text,
            text not in order or order[text][0].get("source") == "desk",
            tuple(_pair(row) for row in order.get(text, ())),
            tuple(absent.get(text, ())),
        )
        for text in texts
    ]


def _pair(row: dict[str, object]) -> Pair:
    return Pair(str(row["question"]), str(row["answer"]), str(row.get("line") or ""))


def load_together(folder: Path, which: str) -> list[Together]:
    """Load multi_WHICH; entries without evidence lines are left out."""
    entries = []
    for path in find(folder, f"multi_{which}"):
        for row in read_lines(path):
            pairs, lines = row["qas"], row.get("evidence")
            if not isinstance(pairs, list) or not isinstance(lines, list):
                continue
            texts = row["texts"]
            assert isinstance(texts, list)
            entries.append(
                Together(
                    tuple(str(text) for text in texts),
                    tuple(Pair(str(question), str(answer)) for question, answer in pairs),
                    tuple(tuple(str(line) for line in each) for each in lines),
                )
            )
    return entries


def plain_title(title: str) -> str:
    """A title as desk-rag's chunks carry it: without the file's extension."""
    return _EXTENSION.sub("", title)


class Substitutes:
    """Gives a passage, its questions and answers other names and numbers, the same everywhere."""

    def __init__(self, texts: Iterable[str]) -> None:
        inner: Counter[str] = Counter()
        lower: Counter[str] = Counter()
        for text in texts:
            starts = {match.start(1) for match in _SENTENCE_START.finditer(text)}
            inner.update(match.group() for match in _NAME.finditer(text) if match.start() not in starts)
            lower.update(re.findall(r"\b[a-z]{3,}\b", text))
        # A word is a name if it stands capitalised inside sentences and hardly ever otherwise.
        self.names = sorted(
            word
            for word, count in inner.items()
            if lower[word.lower()] * 20 <= count and word.lower() not in STOP_WORDS and word not in _CALENDAR
        )
        self._known = frozenset(self.names)

    def apply(self, rng: Random, texts: Sequence[str]) -> list[str]:
        """The texts with other values; what is the same word or number in them stays the same word or number."""
        joined = "\n".join(texts)
        words = sorted(set(_NAME.findall(joined)) & self._known)
        mapping = dict(zip(words, rng.sample(self.names, len(words)), strict=True)) if words else {}
        numbers = sorted(set(_DIGITS.findall(joined)))
        figures = {number: _other_number(rng, number) for number in numbers}
        if len(set(figures.values())) < len(figures):
            figures = {}
        changed = [_NAME.sub(lambda match: mapping.get(match.group(), match.group()), text) for text in texts]
        return [_DIGITS.sub(lambda match: figures.get(match.group(), match.group()), text) for text in changed]


_MONTHS_AND_DAYS = """
January February March April May June July August September October November December
Monday Tuesday Wednesday Thursday Friday Saturday Sunday
"""
_CALENDAR = frozenset(_MONTHS_AND_DAYS.split())


def _other_number(rng: Random, digits: str) -> str:
    """Another number of as many digits; a year stays in its century, one digit stays, as does what begins with zero."""
    value = int(digits)
    if len(digits) == 1 or digits[0] == "0" or value % 100 == 0:
        return digits
    if len(digits) == 4 and 1500 <= value <= 2035:
        return str(value // 100 * 100 + rng.randint(1, 99 if value < 2000 else 29))
    if len(digits) == 2:
        low, high = (10, 12) if value <= 12 else (13, 28) if value <= 28 else (29, 59) if value <= 59 else (60, 99)
        return str(rng.randint(low, high))
    return str(rng.randint(1, 9)) + "".join(str(rng.randint(0, 9)) for _ in digits[1:])
