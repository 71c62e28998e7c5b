"""An embedder that remembers the last sentences it saw: neighbouring questions are asked of the same chunks.

Knows texts and their vectors; knows no model, no store and no answer. One thread uses it at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ROOM = 1024
"""Vectors that are kept, about 1.5 MB: the sentences of some 30 answers."""


class Vectors(Protocol):
    """What answers want of an embedder; `embedding.Embedder` is one."""

    @property
    def is_embedded(self) -> bool:
        """True for the embedder whose cosines the judge and the choice of quotes are calibrated for."""
        ...

    def embed_chunks(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of document text, float32 [len(texts), dim], unit length."""
        ...

    def embed_question(self, text: str) -> NDArray[np.float32]:
        """Vector of a question, float32 [dim], unit length."""
        ...


class SentenceVectors:
    """As the embedder it is made of."""

    def __init__(self, embedder: Vectors, room: int = _ROOM) -> None:
        self._embedder, self._room = embedder, room
        self._kept: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        self._asked: tuple[str, NDArray[np.float32]] | None = None

    @property
    def is_embedded(self) -> bool:
        """As in `Vectors`."""
        return self._embedder.is_embedded

    def embed_chunks(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """As in `Vectors`; texts that are not known yet are embedded in one call."""
        import numpy as np

        new = [text for text in dict.fromkeys(texts) if text not in self._kept]
        if new:
            self._kept.update(zip(new, self._embedder.embed_chunks(new), strict=True))
        for text in texts:
            self._kept.move_to_end(text)
        found = np.stack([self._kept[text] for text in texts])
        while len(self._kept) > self._room:
            self._kept.popitem(last=False)
        return found

    def embed_question(self, text: str) -> NDArray[np.float32]:
        """As in `Vectors`; the last question's is kept, which the choice of a quote and the judge both need."""
        if self._asked is None or self._asked[0] != text:
            self._asked = text, self._embedder.embed_question(text)
        return self._asked[1]
