"""Batches to learn from: each question beside its own passage and others most like it.

A question whose answer cannot be seen in the row of its own passage is left out: as a question without an answer it
would teach the wrong thing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from desk_rag.answering.evidence.span_model import LONGEST_ROW, QuestionChunkPair, SpanBatch, build_batch
from desk_rag.errors import ConfigError
from desk_rag.training.pointer.material import Asked, Material, Version

_POOL = 16
"""Batches whose questions are sorted by length together."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Questions times chunks, row by row; the chunks of one question stand together."""

    rows: SpanBatch
    """[CLS] question [SEP] title text [SEP]."""
    gold: Tensor
    """int64 [N, 3]: row, first and last token of spans that are the answer."""
    chunks: int
    """Per question."""

    def pin_memory(self) -> Batch:
        """The same where a GPU can fetch it by itself."""
        return self._each(Tensor.pin_memory)

    def to(self, device: torch.device) -> Batch:
        """The same on `device`."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def _each(self, of: Callable[[Tensor], Tensor]) -> Batch:
        return Batch(self.rows.map(of), of(self.gold), self.chunks)


@dataclass(frozen=True, slots=True)
class Row:
    """A question beside one chunk."""

    asked: Asked
    chunk: Version
    titled: bool
    """True if the chunk has its title."""
    own: bool
    """True if it is the question's own passage."""

    @property
    def pair(self) -> QuestionChunkPair:
        """In word pieces."""
        return QuestionChunkPair(self.asked.ids, (*self._title, *self.chunk.ids))

    @property
    def _title(self) -> tuple[int, ...]:
        return self.chunk.title if self.titled else ()

    def gold(self) -> list[tuple[int, int]]:
        """First and last token of the answer, wherever it is in the row when the row is cut."""
        shift = self.pair.start + len(self._title)
        spans = self.asked.spans if self.own else ()
        return [(first + shift, last + shift) for first, last in spans if last + shift < LONGEST_ROW - 1]

    def misleads(self) -> bool:
        """True if the passage answers the question and the row does not show it."""
        return self.own and bool(self.asked.answer) and not self.gold()


class Batches(IterableDataset[Batch]):
    """Endless batches of `questions` with `chunks` each: the passage itself, mostly, and others; no passage that is
    held. Every question comes once before any comes again, however many processes share the work. The same seed gives
    the same batches every time. Raises ConfigError where no question can be asked.
    """

    def __init__(self, of: Material, tokenizer: Tokenizer, questions: int, chunks: int, seed: int) -> None:
        self._of, self._questions, self._chunks, self._seed = of, questions, chunks, seed
        cls, sep = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
        assert cls is not None and sep is not None
        self._cls, self._sep = cls, sep
        self._free = [number for number in range(len(of.versions)) if number not in of.held]
        self._all = [
            (number, pair)
            for number in self._free
            for pair in range(len(of.versions[number][0].asked))
            if self._askable(number, pair)
        ]
        if not self._all:
            raise ConfigError(
                "No question of the data can be asked: no answer is short enough and early enough in its passage, "
                "or every other passage says it too.",
                remedy="Take answers of a few words, and more passages.",
            )

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        mine, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        # All processes shuffle alike and each takes some pools, so that together they take every question once.
        order, rng = Random(self._seed), Random(f"{self._seed}, {mine}")
        asked, pool, size = list(self._all), count(), self._questions * _POOL
        while True:
            order.shuffle(asked)
            for start in range(0, len(asked), size):
                if next(pool) % workers == mine:
                    yield from self._pool(asked[start : start + size], rng)

    def _pool(self, asked: Sequence[tuple[int, int]], rng: Random) -> Iterator[Batch]:
        """Questions whose longest rows are about equally long come together, so that little is filled up."""
        drawn = [self._rows(number, pair, rng) for number, pair in asked]
        shown = [beside for beside in drawn if not any(row.misleads() for row in beside)]
        shown.sort(key=lambda beside: max(row.pair.length for row in beside))
        parts = [shown[start : start + self._questions] for start in range(0, len(shown), self._questions)]
        rng.shuffle(parts)
        for part in parts:
            yield self.batch([row for beside in part for row in beside], self._chunks)

    @property
    def questions(self) -> int:
        """There are so many different ones."""
        return len(self._all)

    def _askable(self, number: int, pair: int) -> bool:
        """Return whether `_rows` has other passages for each version of a question, and some version can be read."""
        questions = [(version, version.asked[pair]) for version in self._of.versions[number]]
        others = [other for other in self._free if other != number]
        if all(Row(one, version, False, True).misleads() for version, one in questions):
            return False
        return all(
            any(not version.says(one) for other in others for version in self._of.versions[other])
            for _, one in questions
        )

    def _rows(self, number: int, pair: int, rng: Random) -> list[Row]:
        of = self._of
        own = rng.choice(of.versions[number])
        asked, titled = own.asked[pair], rng.random() < 0.5
        # now and then a question without its passage: nothing answers it
        beside = [Row(asked, own, titled, True)] if rng.random() > 0.06 else []
        near = of.near[number][pair] if pair < len(of.near[number]) else ()
        while len(beside) < self._chunks:
            other = rng.choice(near) if near and rng.random() < 0.6 else rng.choice(self._free)
            version = rng.choice(of.versions[other])
            if other != number and other not in of.held and not version.says(asked):
                beside.append(Row(asked, version, titled, False))
        return beside

    def batch(self, shown: Sequence[Row], chunks: int) -> Batch:
        """Rows as tensors."""
        pairs = [row.pair for row in shown]
        width = min(LONGEST_ROW, (max(pair.length for pair in pairs) + 31) // 32 * 32)
        gold = [(number, first, last) for number, row in enumerate(shown) for first, last in row.gold()]
        places = torch.tensor(gold, dtype=torch.int64).view(-1, 3)
        return Batch(build_batch(pairs, self._cls, self._sep, width), places, chunks)
