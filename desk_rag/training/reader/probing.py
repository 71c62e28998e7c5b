"""Choose among variants of a reader by held-out questions that `bench quality` does not ask.

Asked two ways: greedily, as in `evaluation`, and with the right sentence quoted already, so that only the short answer
is left to say. Chunks carry their title and stand among the passages nearest to the question, as in the product.
`desk-rag bench quality --limit 400` and the same over the desk documents alone with --limit 250, both with the default
seed, ask other questions than these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from tokenizers import Tokenizer

from desk_rag.model.trained_frame import NO_ANSWER
from desk_rag.training.reader.architecture import Decoder
from desk_rag.training.reader.data.frame import evidence
from desk_rag.training.reader.data.neighbours import nearest
from desk_rag.training.reader.data.rows import Row
from desk_rag.training.reader.data.written import Passage, find, load_passages, load_together, read_lines
from desk_rag.training.reader.evaluation import MARKS, Item, answers, marks, prompts
from desk_rag.training.reader.training import Group

_PUBLISHED, _PUBLISHED_DESK, _SEED = 400, 250, 5
_LONGEST = 230
"""Words of a passage that is asked about: of a chunk."""
_CHUNKS = 5
_AT_ONCE = 200
"""Questions that a large GPU answers side by side."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Questions of one kind, and how they are read."""

    name: str
    items: tuple[Item, ...]
    rows: tuple[Row, ...]
    """Their prompts."""
    full: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """Marks of every question of a probe, in per cent."""

    marks: tuple[tuple[float, ...], ...]

    def mean(self, name: str) -> float:
        """Return the value of one of `evaluation.MARKS`."""
        values = self.of(name)
        return sum(values) / max(1, len(values))

    def of(self, name: str) -> list[float]:
        """One of `evaluation.MARKS`, question by question."""
        return [100 * row[MARKS.index(name)] for row in self.marks]


def published(folder: Path) -> set[tuple[str, str]]:
    """(passage, question) of all that the tables of `bench quality` over qa_dev ask."""
    rows = [row for path in find(folder, "qa_dev") for row in read_lines(path)]
    desk = [row for row in rows if row.get("source") == "desk"]
    drawn = [*_drawn(rows, _PUBLISHED), *_drawn(desk, _PUBLISHED_DESK)]
    return {(str(row["passage"]), str(row["question"])) for row in drawn}


def _drawn(rows: Sequence[dict[str, object]], limit: int) -> list[dict[str, object]]:
    """Questions that `bench quality` draws, to be left out here."""
    return list(rows) if limit >= len(rows) else Random(_SEED).sample(rows, limit)


def probes(folder: Path, tokenizer: Tokenizer, count: int) -> list[Probe]:
    """Questions of the dev files, and of qa_hold* if they exist; `count` of each kind."""
    dev = [p for p in load_passages(folder, "dev") if len(p.text.split()) <= _LONGEST]
    used = published(folder)
    free = [replace(p, pairs=tuple(pair for pair in p.pairs if (p.text, pair.question) not in used)) for p in dev]
    unseen = [p for p in load_passages(folder, "hold") if len(p.text.split()) <= _LONGEST]
    books, desk = ([p for p in free if p.desk == kind] for kind in (False, True))
    kinds: dict[str, tuple[Item, ...]] = {}
    for name, asked, among in (("books", books, free), ("desk", desk, desk), ("hold", unseen, [*unseen, *desk])):
        kinds[name] = _items(asked, among, count)
        kinds[f"{name} told"] = tuple(item for item in map(_begun, kinds[name]) if item.begun)
    kinds |= {"together": _together(folder, count), "refuse": _unanswerable(free, count)}
    all_probes = [Probe(name, items, tuple(prompts(tokenizer, items))) for name, items in kinds.items() if items]
    again = [probe for probe in all_probes if probe.name in ("books", "desk", "desk told")]
    return [*all_probes, *(replace(probe, name=f"{probe.name} full", full=True) for probe in again)]


def run(model: Decoder, tokenizer: Tokenizer, probe: Probe, group: Group) -> Outcome:
    """Ask all of a probe's questions, greedily."""
    many = _AT_ONCE if group.device.type == "cuda" else 16
    outputs = answers(model, tokenizer, probe.items, group, full=probe.full, rows=probe.rows, at_once=many)
    return Outcome(tuple(marks(text, item) for text, item in zip(outputs, probe.items, strict=True)))


def lines(name: str, outcomes: Mapping[str, Outcome], start: Mapping[str, Outcome]) -> list[str]:
    """Short lines of a variant's scores: F1, its gain over `start` and the standard error of that, exact, answer in
    output, quote from the right chunk, refused."""
    report = []
    for probe, outcome in outcomes.items():
        gain, error = difference(outcome.of("f1"), start[probe].of("f1"))
        rest = " ".join(f"{outcome.mean(mark):5.1f}" for mark in ("exact", "contains", "right_chunk", "refused"))
        report.append(
            f"{name:8s} {probe:14s} {len(outcome.marks):3d} F1 {outcome.mean('f1'):4.1f} "
            f"({gain:+4.1f} +-{error:3.1f}) {rest}"
        )
    return report


def gains(outcomes: Mapping[str, Outcome], start: Mapping[str, Outcome]) -> tuple[float, float]:
    """Mean gains over `start`: in F1 of the short answer where the right sentence is quoted, and in right sentences,
    which is how often the answer is in the output. What the product's F1 is, is about the product of the two."""
    kinds = [name for name in outcomes if f"{name} told" in outcomes]
    gains = []
    for names, mark in (([f"{kind} told" for kind in kinds], "f1"), (kinds, "contains")):
        now, then = ([value for name in names for value in some[name].of(mark)] for some in (outcomes, start))
        gains.append(difference(now, then)[0])
    return gains[0], gains[1]


def difference(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Mean of the paired differences and its standard error."""
    values = [a - b for a, b in zip(one, other, strict=True)]
    mean = sum(values) / max(1, len(values))
    variance = sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
    return mean, math.sqrt(variance / max(1, len(values)))


def _items(asked: Sequence[Passage], among: Sequence[Passage], count: int) -> tuple[Item, ...]:
    """Questions with their passage among the nearest of `among` that do not hold the answer."""
    if not any(p.pairs for p in asked):
        return ()
    near = nearest(among)
    place = {id(p): index for index, p in enumerate(among)}
    rng = Random(1)
    items = []
    for passage in asked:
        for pair, others in zip(passage.pairs, near[place[id(passage)]], strict=True):
            around = [_chunk(passage), *(_chunk(among[index]) for index in others[: _CHUNKS - 1])]
            rng.shuffle(around)
            items.append(Item(pair.question, pair.answer, tuple(around), _chunk(passage)))
    rng.shuffle(items)
    return tuple(items[:count])


def _unanswerable(passages: Sequence[Passage], count: int) -> tuple[Item, ...]:
    rng = Random(1)
    items = []
    for passage in passages:
        for question in passage.unanswerable:
            others = rng.sample([p for p in passages if p is not passage], min(len(passages) - 1, _CHUNKS - 1))
            around = [_chunk(p) for p in (passage, *others)]
            rng.shuffle(around)
            items.append(Item(question, NO_ANSWER, tuple(around), None))
    rng.shuffle(items)
    return tuple(items[:count])


def _together(folder: Path, count: int) -> tuple[Item, ...]:
    questions = [(pair, one.texts) for one in load_together(folder, "dev") for pair in one.pairs]
    return tuple(Item(pair.question, pair.answer, texts, None) for pair, texts in questions[:count])


def _begun(item: Item) -> Item:
    """The same question with the right sentence quoted; nothing is begun where the answer is in no one sentence."""
    quote = evidence(item.gold or "", item.question, item.answer)
    return replace(item, begun=f'"{quote}"\n' if quote else "")


def _chunk(passage: Passage) -> str:
    return f"{passage.title}\n{passage.text}" if passage.title else passage.text
