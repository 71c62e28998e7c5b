"""Choose distractors for a context: mostly similar chunks of the same data, some at random.

Deterministic: the choice depends on the texts and the given random numbers only, not on earlier choices.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence

from desk_rag.finetune.data import words

_TELLING = 24
"""Number of a text's rarest words that are compared."""
_CANDIDATES = 24
_COMMON = 0.1
"""Words in more than this share of the texts say nothing about likeness."""
_NEAR_SHARE = 0.7


class Distractors:
    """A pool of chunk texts to draw from."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = tuple(dict.fromkeys(texts))
        self._lowered = tuple(text.casefold() for text in self.texts)
        self._postings: dict[str, list[int]] = defaultdict(list)
        for index, text in enumerate(self.texts):
            for word in set(words(text)):
                self._postings[word].append(index)
        self._most = max(2, int(_COMMON * len(self.texts)))

    def nearest(self, text: str, limit: int = _CANDIDATES) -> list[int]:
        """Indices of the texts that share the most telling words, best first; `text` itself is left out."""
        rarities = [(len(postings), word) for word in set(words(text)) if (postings := self._postings.get(word, ()))]
        telling = sorted((count, word) for count, word in rarities if count <= self._most)[:_TELLING]
        scores: dict[int, float] = defaultdict(float)
        for count, word in telling:
            worth = math.log(1 + len(self.texts) / count)
            for index in self._postings[word]:
                scores[index] += worth
        ranked = sorted(scores, key=lambda index: (-scores[index], index))
        return [index for index in ranked if self.texts[index] != text][:limit]

    def draw(self, near: Sequence[str], forbidden: Sequence[str], rng: random.Random) -> Iterator[str]:
        """Yield different texts, none of them in `near` and none holding a text of `forbidden`, until there is none.

        `near` are the context's own chunks; `forbidden` its answers.
        """
        lowered = [answer.casefold() for answer in forbidden]
        seen = set(near)
        for index in self._order(near, rng):
            text = self.texts[index]
            if text not in seen and not any(answer in self._lowered[index] for answer in lowered):
                seen.add(text)
                yield text

    def _order(self, near: Sequence[str], rng: random.Random) -> Iterator[int]:
        alike = [index for text in near for index in self.nearest(text)]
        rng.shuffle(alike)
        while alike:
            yield alike.pop() if rng.random() < _NEAR_SHARE else rng.randrange(len(self.texts))
        for _ in range(4 * len(self.texts)):
            yield rng.randrange(len(self.texts))
