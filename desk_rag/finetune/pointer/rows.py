"""Batches to learn from: each question beside its own passage and others most like it.

Knows passages in word pieces and tensors; knows no network. A question whose answer cannot be seen in the row of its
own passage is left out: as a question without an answer it would teach the wrong thing.
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

from desk_rag.errors import ConfigError
from desk_rag.finetune.pointer.material import Asked, Material, Version
from desk_rag.pointer_net import LONGEST_ROW

_POOL = 16
"""Batches whose questions are sorted by length together."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Questions times chunks, row by row; the chunks of one question stand together."""

    ids: Tensor
    """int64 [rows, T]: [CLS] question [SEP] title text [SEP], then zeros."""
    kinds: Tensor
    """int64 [rows, T]: 0 up to the first [SEP], 1 behind it."""
    known: Tensor
    """bool [rows, T]: what is no filling."""
    inside: Tensor
    """bool [rows, T]: title and text."""
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
        return Batch(of(self.ids), of(self.kinds), of(self.known), of(self.inside), of(self.gold), self.chunks)


@dataclass(frozen=True, slots=True)
class Row:
    """A question beside one chunk."""

    asked: Asked
    chunk: Version
    titled: bool
    """Whether the chunk has its title."""
    own: bool
    """Whether it is the question's own passage."""

    @property
    def title(self) -> tuple[int, ...]:
        """Word pieces before the text."""
        return self.chunk.title if self.titled else ()

    @property
    def length(self) -> int:
        """Word pieces, special ones included, if nothing is cut."""
        return len(self.asked.ids) + len(self.title) + len(self.chunk.ids) + 3

    def gold(self) -> list[tuple[int, int]]:
        """First and last token of the answer, wherever it is in the row when the row is cut."""
        shift = len(self.asked.ids) + 2 + len(self.title)
        spans = self.asked.spans if self.own else ()
        return [(first + shift, last + shift) for first, last in spans if last + shift < LONGEST_ROW - 1]

    def misleads(self) -> bool:
        """Whether the passage answers the question and the row does not show it."""
        return self.own and bool(self.asked.answer) and not self.gold()


class Batches(IterableDataset[Batch]):
    """Endless batches of `questions` with `chunks` each: the passage itself, mostly, and others; no passage that is
    held. Every question comes once before any comes again, however many processes share the work. The same seed gives
    the same batches every time. Raises ConfigError where no question can be asked.
    """

    def __init__(self, of: Material, tokenizer: Tokenizer, questions: int, chunks: int, seed: int) -> None:
        self._of, self._questions, self._chunks, self._seed = of, questions, chunks, seed
        self._cls, self._sep = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
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
            for at in range(0, len(asked), size):
                if next(pool) % workers == mine:
                    yield from self._pool(asked[at : at + size], rng)

    def _pool(self, asked: Sequence[tuple[int, int]], rng: Random) -> Iterator[Batch]:
        """Questions whose longest rows are about equally long come together, so that little is filled up."""
        drawn = [self._rows(number, pair, rng) for number, pair in asked]
        shown = [rows for rows in drawn if not any(row.misleads() for row in rows)]
        shown.sort(key=lambda rows: max(row.length for row in rows))
        parts = [shown[at : at + self._questions] for at in range(0, len(shown), self._questions)]
        rng.shuffle(parts)
        for part in parts:
            yield self.batch([row for rows in part for row in rows], self._chunks)

    @property
    def questions(self) -> int:
        """There are so many different ones."""
        return len(self._all)

    def _askable(self, number: int, pair: int) -> bool:
        """Whether `_rows` finds other passages for each version of a question, and some version can be read."""
        asked = [(version, version.asked[pair]) for version in self._of.versions[number]]
        others = [other for other in self._free if other != number]
        if all(Row(one, version, False, True).misleads() for version, one in asked):
            return False
        return all(
            any(not version.says(one) for other in others for version in self._of.versions[other]) for _, one in asked
        )

    def _rows(self, number: int, pair: int, rng: Random) -> list[Row]:
        of = self._of
        own = rng.choice(of.versions[number])
        asked, titled = own.asked[pair], rng.random() < 0.5
        # now and then a question without its passage: nothing answers it
        rows = [Row(asked, own, titled, True)] if rng.random() > 0.06 else []
        near = of.near[number][pair] if pair < len(of.near[number]) else ()
        while len(rows) < self._chunks:
            other = rng.choice(near) if near and rng.random() < 0.6 else rng.choice(self._free)
            version = rng.choice(of.versions[other])
            if other != number and other not in of.held and not version.says(asked):
                rows.append(Row(asked, version, titled, False))
        return rows

    def batch(self, rows: Sequence[Row], chunks: int) -> Batch:
        """Rows as tensors."""
        width = min(LONGEST_ROW, (max(row.length for row in rows) + 31) // 32 * 32)
        shape = (len(rows), width)
        ids, kinds = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
        known, inside = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
        gold: list[tuple[int, int, int]] = []
        for number, row in enumerate(rows):
            head = [self._cls, *row.asked.ids, self._sep]
            line = [*head, *row.title, *row.chunk.ids][: width - 1] + [self._sep]
            ids[number, : len(line)] = torch.tensor(line)
            kinds[number, len(head) : len(line)] = 1
            known[number, : len(line)] = True
            inside[number, len(head) : len(line) - 1] = True
            gold += [(number, first, last) for first, last in row.gold()]
        places = torch.tensor(gold, dtype=torch.int64).view(-1, 3)
        return Batch(ids, kinds, known, inside, places, chunks)
