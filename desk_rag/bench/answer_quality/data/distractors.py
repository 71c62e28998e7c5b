"""Choose the distractors beside the right chunk, at random or by shared words, from a seed.

The nearest are found by BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009, section 3.2),
which is what a word search would put before the reader.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

Splitter = Callable[[str], list[str]]
"""Long text to chunk texts."""
TokenCount = Callable[[str], int]

_WORD = re.compile(r"\w+")
_K1, _B = 1.2, 0.75


class Order(Enum):
    """Order of the chunks of a question."""

    SHUFFLED = "shuffled"
    GOLD_LAST = "gold-last"
    """The right ones next to the question, as desk-rag lays the best chunk it found."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """Settings for drawing samples from a data set."""

    chunks: int = 5
    """Number of chunks per question, the right ones included."""
    near: bool = False
    """Distractors nearest in words to the question instead of any."""
    order: Order = Order.SHUFFLED
    seed: int = 5
    limit: int = 0
    """Questions at most, drawn by the seed; 0 takes all."""
    longest: int = 0
    """Own forms: questions are left out whose passage has more tokens, and the passage with them; 0 keeps all."""
    noise: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8)
    """RGB: shares of chunks that do not help; 1.0 is rejection."""


class WordIndex:
    """BM25 over chunk texts. Immutable once made."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = list(texts)
        self._postings: dict[str, list[tuple[int, int]]] = defaultdict(list)
        lengths = []
        for number, text in enumerate(self._texts):
            counts = Counter(_words(text))
            lengths.append(sum(counts.values()))
            for word, times in counts.items():
                self._postings[word].append((number, times))
        mean = max(sum(lengths) / max(len(lengths), 1), 1.0)
        self._norms = [_K1 * (1 - _B + _B * length / mean) for length in lengths]

    def nearest(self, query: str, count: int, skip: Callable[[str], bool]) -> list[str]:
        """The `count` best texts for which `skip` says False, best first; ties go to the earlier text."""
        scores: dict[int, float] = defaultdict(float)
        for word in set(_words(query)):
            postings = self._postings.get(word, [])
            rarity = math.log(1 + (len(self._texts) - len(postings) + 0.5) / (len(postings) + 0.5))
            for number, times in postings:
                scores[number] += rarity * times * (_K1 + 1) / (times + self._norms[number])
        texts: list[str] = []
        for number in sorted(scores, key=lambda number: (-scores[number], number)):
            if len(texts) == count:
                break
            if not skip(self._texts[number]):
                texts.append(self._texts[number])
        return texts


@dataclass(frozen=True, slots=True)
class Placed:
    """Chunks in their order."""

    contexts: tuple[str, ...]
    gold: tuple[int, ...]


class Distractors:
    """Draws from a pool of texts; every question has a random generator of its own, so no question moves another."""

    def __init__(self, pool: Sequence[str], drawing: Drawing) -> None:
        self._pool = list(dict.fromkeys(pool))
        self._drawing = drawing
        self._index = WordIndex(self._pool) if drawing.near else None

    def around(self, own: Sequence[str], question: str, answers: Sequence[str]) -> Placed:
        """`own` texts among distractors: none of them one of `own`, none that holds one of `answers`."""
        draw = random.Random(f"{self._drawing.seed}|{question}|{own[0] if own else ''}")
        mine, wordings = set(own), [answer.casefold() for answer in answers]

        def skip(text: str) -> bool:
            return text in mine or any(wording in text.casefold() for wording in wordings)

        wanted = max(0, self._drawing.chunks - len(own))
        others = self._index.nearest(question, wanted, skip) if self._index is not None else []
        others += self._at_random(draw, wanted - len(others), lambda text: skip(text) or text in others)
        return place(own, others, self._drawing.order, draw)

    def _at_random(self, draw: random.Random, count: int, skip: Callable[[str], bool]) -> list[str]:
        distractors: list[str] = []
        if count <= 0:
            return distractors
        for number in draw.sample(range(len(self._pool)), len(self._pool)):
            if len(distractors) == count:
                break
            if not skip(self._pool[number]):
                distractors.append(self._pool[number])
        return distractors


def place(own: Sequence[str], others: Sequence[str], order: Order, draw: random.Random) -> Placed:
    """Lay `own` and `others` in one order; `others` are best first, and the best is laid last."""
    marked = [*((text, False) for text in reversed(others)), *((text, True) for text in own)]
    if order is Order.SHUFFLED:
        draw.shuffle(marked)
    return Placed(tuple(text for text, _ in marked), tuple(i for i, (_, mine) in enumerate(marked) if mine))


def drawn(count: int, drawing: Drawing) -> list[int]:
    """Indices of the questions that are taken, ascending."""
    if not drawing.limit or drawing.limit >= count:
        return list(range(count))
    return sorted(random.Random(drawing.seed).sample(range(count), drawing.limit))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
