"""Batches to learn from: questions, the passages that answer them, and passages that resemble those.

One resembling passage stands beside each: another that shares its words, or the question's own with other names and
numbers, if the question then reads differently. All passages of a batch are compared with all its questions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from desk_rag.training.pointer.material import Asked, Material, Version

LONGEST = 256
"""Word pieces that the embedder reads of a text, [CLS] and [SEP] included."""
_TITLED = 0.5
_OTHER_VERSION = 0.3
"""Shares of rows with a title, and of resembling passages that are another version of the question's own."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts in word pieces, filled up to the longest."""

    ids: Tensor
    """int64 [texts, pieces]."""
    mask: Tensor
    """bool [texts, pieces]: False where filled up."""
    words: Tensor
    """bool [texts, pieces]: parts of words and numbers, which late interaction compares."""

    def each(self, of: Callable[[Tensor], Tensor]) -> Texts:
        """The same with each tensor mapped."""
        return Texts(of(self.ids), of(self.mask), of(self.words))


@dataclass(frozen=True, slots=True)
class Batch:
    """As many questions as passages that answer them, in the same order, and then resembling passages."""

    questions: Texts
    passages: Texts
    excluded: Tensor
    """bool [questions, passages]: may answer the question too, or is its own in other words."""

    def pin_memory(self) -> Batch:
        """The same where a GPU can fetch it by itself."""
        return self._each(Tensor.pin_memory)

    def to(self, device: torch.device) -> Batch:
        """The same on `device`."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def _each(self, of: Callable[[Tensor], Tensor]) -> Batch:
        return Batch(self.questions.each(of), self.passages.each(of), of(self.excluded))


class Packer:
    """Fill texts up to tensors; knows which word pieces late interaction compares."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._cls, self._sep, self._pad = (_id(tokenizer, name) for name in ("[CLS]", "[SEP]", "[PAD]"))
        added = {self._cls, self._sep, self._pad}
        self._is_word = torch.tensor(
            [
                number not in added and any(map(str.isalnum, tokenizer.id_to_token(number) or ""))
                for number in range(tokenizer.get_vocab_size())
            ]
        )

    def pack(self, texts: Sequence[Sequence[int]]) -> Texts:
        """Texts without [CLS] and [SEP], cut to LONGEST with them."""
        cut = [[self._cls, *text[: LONGEST - 2], self._sep] for text in texts]
        width = (max(map(len, cut)) + 15) // 16 * 16
        ids = torch.tensor([text + [self._pad] * (width - len(text)) for text in cut])
        mask = torch.tensor([[True] * len(text) + [False] * (width - len(text)) for text in cut])
        return Texts(ids, mask, self._is_word[ids])


def _id(tokenizer: Tokenizer, name: str) -> int:
    number = tokenizer.token_to_id(name)
    assert number is not None
    return int(number)


@dataclass(frozen=True, slots=True)
class _Row:
    asked: Asked
    own: tuple[int, ...]
    """Word pieces of the passage that answers."""
    beside: Version
    beside_ids: tuple[int, ...]


class Batches(IterableDataset[Batch]):
    """Endless batches of `questions` questions, of different passages, none of which is held.

    Every question comes once before any comes again. The same seed gives the same batches.
    """

    def __init__(self, of: Material, packer: Packer, questions: int, seed: int) -> None:
        self._of, self._packer, self._questions, self._seed = of, packer, questions, seed
        self._free = [number for number in range(len(of.versions)) if number not in of.held]
        self._all = [
            (number, pair)
            for number in self._free
            for pair, asked in enumerate(of.versions[number][0].asked)
            if asked.spans and asked.spans[0][1] < LONGEST - 2
        ]

    @property
    def questions(self) -> int:
        """There are so many different ones."""
        return len(self._all)

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        mine, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        order, rng = Random(self._seed), Random(f"{self._seed}, {mine}")
        asked = list(self._all)
        while True:
            order.shuffle(asked)
            for part in range(mine, len(asked) // self._questions, workers):
                start = part * self._questions
                yield self._batch(asked[start : start + self._questions], rng)

    def _batch(self, pairs: Sequence[tuple[int, int]], rng: Random) -> Batch:
        by_passage = dict(pairs)  # one question per passage: others of the same would be excluded anyway
        rows = [self._row(number, pair, rng) for number, pair in by_passage.items()]
        passages = [row.own for row in rows] + [row.beside_ids for row in rows]
        may_answer = [[other.beside.says(row.asked) for other in rows] for row in rows]
        excluded = torch.tensor([[False] * len(rows) + each for each in may_answer])
        return Batch(self._packer.pack([row.asked.ids for row in rows]), self._packer.pack(passages), excluded)

    def _row(self, number: int, pair: int, rng: Random) -> _Row:
        versions = self._of.versions[number]
        own = rng.choice(versions)
        asked = own.asked[pair]
        others = [one for one in versions if one.asked[pair].ids != asked.ids]
        if others and rng.random() < _OTHER_VERSION:
            beside = rng.choice(others)
        else:
            near = self._of.near[number][pair] if pair < len(self._of.near[number]) else ()
            allowed = [other for other in near if other not in self._of.held]
            beside = rng.choice(self._of.versions[rng.choice(allowed or self._free)])
        titled = rng.random() < _TITLED
        return _Row(asked, with_title(own, titled), beside, with_title(beside, titled))


def with_title(version: Version, titled: bool) -> tuple[int, ...]:
    """Word pieces of a passage, after those of its title if `titled`."""
    return (*version.title, *version.ids) if titled else version.ids
