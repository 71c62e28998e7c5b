"""Written questions and passages in word pieces, with the places where passages say the answers.

Every passage stands there in several versions with other names and numbers, so that answers are not learned by heart.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from tokenizers import Tokenizer

from desk_rag.answering.evidence.span_model import LONGEST_QUESTION, MOST_PIECES
from desk_rag.errors import ConfigError
from desk_rag.training.reader.data.neighbours import nearest
from desk_rag.training.reader.data.written import Pair, Passage, Substitutes, find, load_passages, plain_title

_HELD = 20
"""One of so many passages is kept to choose by."""
_LEAST = 5
"""Passages: one that is kept, and others to set beside it."""
_FEWEST = 4
"""Letters by which an answer in another passage can be told from chance."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One question of one version of a passage, in word pieces."""

    ids: tuple[int, ...]
    answer: str
    """Empty where the passage does not answer it."""
    spans: tuple[tuple[int, int], ...]
    """Spans of pieces that hold the answer, both ends included; none if it needs more pieces than a span may have."""


@dataclass(frozen=True, slots=True)
class Version:
    """A passage with some names and numbers, in word pieces."""

    text: str
    said: str
    """Title and text in small letters, white space made single."""
    title: tuple[int, ...]
    ids: tuple[int, ...]
    asked: tuple[Asked, ...]

    def says(self, asked: Asked) -> bool:
        """Return whether this passage also answers another passage's question, as far as that can be told."""
        return len(asked.answer) >= _FEWEST and _flat(asked.answer) in self.said


@dataclass(frozen=True, slots=True)
class Material:
    """All there is to learn from, and what is kept to choose by."""

    versions: tuple[tuple[Version, ...], ...]
    """Per passage, as written first; every version has the same questions in the same order."""
    near: tuple[tuple[tuple[int, ...], ...], ...]
    """Per passage, per question that it answers: the passages that are most like it."""
    held: frozenset[int]
    """Numbers of the passages that are kept."""


def material(data: Sequence[Path], tokenizer: Tokenizer, versions: int, seed: int = 1) -> Material:
    """Load qa_train* and unanswerable_train* from `data`, each passage in `versions` versions.

    `tokenizer` neither cuts nor fills up. The same data and seed give the same. Raises ConfigError where a folder has
    no qa_train* or one that cannot be read, and where there are too few passages.
    """
    passages = _read(data)
    others = Substitutes(passage.text for passage in passages)
    rng, versions_by_passage = Random(seed), []
    for passage in passages:
        variants = [passage, *(_other(passage, others, rng) for _ in range(versions - 1))]
        versions_by_passage.append(tuple(_version(one, tokenizer) for one in variants))
    near = tuple(tuple(tuple(each) for each in one) for one in nearest(passages))
    return Material(tuple(versions_by_passage), near, frozenset(range(0, len(versions_by_passage), _HELD)))


def _read(data: Sequence[Path]) -> list[Passage]:
    """Every passage once, though several folders have it: its twin must not be learned from where it is held."""
    unique: dict[str, Passage] = {}
    for folder in data:
        if not find(folder, "qa_train"):
            reason = "has no qa_train*" if folder.is_dir() else "is not there"
            raise ConfigError(f"{folder} {reason}.", remedy="For one: assets/training")
        try:
            passages = load_passages(folder, "train")
        except (ValueError, KeyError, TypeError, EOFError, lzma.LZMAError) as error:
            raise ConfigError(
                f"qa_train* or unanswerable_train* in {folder} cannot be read: {type(error).__name__}: {error}",
                remedy="Each line is JSON: passage, title, question, and answer in qa_train*.",
            ) from error
        for passage in passages:
            _check(folder, passage)
            known = unique.get(passage.text)
            unique[passage.text] = passage if known is None else _joined(known, passage)
    if len(unique) < _LEAST:
        raise ConfigError(
            f"{', '.join(map(str, data))}: {len(unique)} passages are too few to learn from.",
            remedy=f"There must be {_LEAST} at least; hundreds make a pointer that is of use.",
        )
    return list(unique.values())


def _check(folder: Path, passage: Passage) -> None:
    for pair in passage.pairs:
        if pair.line and (pair.line not in passage.text or pair.answer not in pair.line):
            raise ConfigError(
                f"{folder}: '{pair.question[:80]}' has a `line` that is not in its passage, or without the answer.",
                remedy="Take a piece of the passage that holds the answer, or leave `line` out.",
            )


def _joined(one: Passage, other: Passage) -> Passage:
    pairs = tuple(dict.fromkeys(one.pairs + other.pairs))
    return replace(one, pairs=pairs, unanswerable=tuple(dict.fromkeys(one.unanswerable + other.unanswerable)))


def _other(passage: Passage, others: Substitutes, rng: Random) -> Passage:
    """`passage` with other names and numbers; itself where an answer would no longer stand in it."""
    pairs = [text for pair in passage.pairs for text in (pair.question, pair.answer, pair.line)]
    title, text, *texts = others.apply(rng, [passage.title, passage.text, *pairs, *passage.unanswerable])
    changed = tuple(Pair(*texts[start : start + 3]) for start in range(0, len(pairs), 3))
    if any(pair.answer not in (pair.line or text) or pair.line not in text for pair in changed):
        return passage
    return Passage(title, text, passage.desk, changed, tuple(texts[len(pairs) :]))


def _version(passage: Passage, tokenizer: Tokenizer) -> Version:
    whole = tokenizer.encode(passage.text, add_special_tokens=False)
    title = plain_title(passage.title)
    pairs = [*passage.pairs, *(Pair(question, "") for question in passage.unanswerable)]
    return Version(
        passage.text,
        _flat(f"{title}\n{passage.text}"),
        tuple(tokenizer.encode(title, add_special_tokens=False).ids),
        tuple(whole.ids),
        tuple(
            Asked(
                tuple(tokenizer.encode(pair.question, add_special_tokens=False).ids[:LONGEST_QUESTION]),
                pair.answer,
                tuple(occurrences(passage.text, pair, whole.offsets)) if pair.answer else (),
            )
            for pair in pairs
        ),
    )


def occurrences(text: str, pair: Pair, offsets: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """First and last piece of every place where the answer stands as whole words; the first place if nowhere so.

    If the pair has a line, places in that line alone. `offsets` are the characters of every piece of `text`. Places of
    more than MOST_PIECES are left out.
    """
    answer, (start, stop) = pair.answer, _line(text, pair.line)
    places, start_of_answer = [], text.find(answer, start, stop)
    while start_of_answer >= 0:
        places.append((start_of_answer, start_of_answer + len(answer)))
        start_of_answer = text.find(answer, start_of_answer + 1, stop)
    whole = [place for place in places if _alone(text, *place)] or places[:1]
    for begin, end in whole:
        pieces = [number for number, (first, last) in enumerate(offsets) if first < end and last > begin]
        if pieces and pieces[-1] - pieces[0] < MOST_PIECES:
            yield pieces[0], pieces[-1]


def _line(text: str, line: str) -> tuple[int, int]:
    """Start of the line as a whole, not as the end of another: 'wheat: 4' is within 'buckwheat: 4'."""
    start = text.find(line)
    while line and start >= 0 and not _alone(text, start, start + len(line)):
        start = text.find(line, start + 1)
    return (start, start + len(line)) if line and start >= 0 else (0, len(text))


def _alone(text: str, begin: int, end: int) -> bool:
    before, behind = text[begin - 1 : begin], text[end : end + 1]
    return not (before.isalnum() and text[begin].isalnum()) and not (behind.isalnum() and text[end - 1].isalnum())


def _flat(text: str) -> str:
    return " ".join(text.lower().split())
