"""An embedder that remembers the last sentences it saw: neighbouring questions are asked of the same chunks.

Knows texts and their vectors; knows no model, no store and no answer. Several threads may use it,
as far as the embedder lets them.
"""

from __future__ import annotations

import threading
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
        self._lock = threading.Lock()
        """Over what is kept, never while something is embedded: a cancelled answer does not hold up the next."""

    @property
    def is_embedded(self) -> bool:
        """As in `Vectors`."""
        return self._embedder.is_embedded

    def embed_chunks(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """As in `Vectors`; texts that are not known yet are embedded in one call."""
        import numpy as np

        with self._lock:
            found = {text: self._kept[text] for text in texts if text in self._kept}
        new = [text for text in dict.fromkeys(texts) if text not in found]
        if new:
            # Copies: a row that is a view would keep its whole batch.
            rows = (row.copy() for row in self._embedder.embed_chunks(new))
            found.update(zip(new, rows, strict=True))
        with self._lock:
            for text in texts:
                self._kept[text] = found[text]  # another thread may have let go of it meanwhile
                self._kept.move_to_end(text)
            while len(self._kept) > self._room:
                self._kept.popitem(last=False)
        return np.stack([found[text] for text in texts])

    def embed_question(self, text: str) -> NDArray[np.float32]:
        """As in `Vectors`; the last question's is kept, which the choice of a quote and the judge both need."""
        with self._lock:
            asked = self._asked
        if asked is None or asked[0] != text:
            asked = text, self._embedder.embed_question(text).copy()
            with self._lock:
                self._asked = asked
        return asked[1]
