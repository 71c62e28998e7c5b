"""Token vectors of chunks as signs, and how well they fit the words of a question (late interaction).

Each word piece of the question is compared with every word piece of a chunk; the largest cosines are averaged (Khattab,
Zaharia: "ColBERT: Efficient and Effective Passage Search via Contextualized Late Interaction over BERT", SIGIR 2020).
Of a chunk's vectors only the signs are kept, one bit per dimension; a question's stay as they are. Measurements are in
bench/LOG.md, "Late interaction".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BLOCK = 512
"""Word pieces whose signs are unpacked at a time, so that they stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class QuestionEncoding:
    """A question as an embedder reads it."""

    vector: NDArray[np.float32]
    """Unit length, [dim]."""
    tokens: NDArray[np.float32] | None = None
    """Unit vectors of its word pieces, [pieces, dim]; None if the embedder gives none for late interaction."""


@dataclass(frozen=True, slots=True)
class ChunkEncodings:
    """Texts of documents as an embedder reads them."""

    vectors: NDArray[np.float32]
    """Unit length, [texts, dim]."""
    signs: tuple[NDArray[np.uint8], ...] | None = None
    """Signs of the word pieces' vectors of each text, [pieces, dim / 8]; None as for questions."""


def pack_signs(tokens: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the signs of vectors [pieces, dim] as bits, the first dimension in the highest bit."""
    import numpy as np

    return np.packbits(tokens > 0, axis=1)


def similarities(question: NDArray[np.float32], chunks: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
    """Return for each chunk the mean, over the question's word pieces, of the largest cosine with one of the chunk's.

    `question` is [pieces, dim] of unit length; each chunk holds signs [pieces, dim / 8] of at least one word piece.
    """
    import numpy as np

    dim = question.shape[1]
    signs = np.concatenate(chunks)
    columns = np.ascontiguousarray(question.T)
    products = np.empty((len(signs), len(question)), dtype=np.float32)
    unpacked = np.empty((_BLOCK, dim), dtype=np.float32)
    for first in range(0, len(signs), _BLOCK):
        bits = np.unpackbits(signs[first : first + _BLOCK], axis=1, count=dim)
        block = unpacked[: len(bits)]
        block[...] = bits
        np.matmul(block, columns, out=products[first : first + len(bits)])
    starts = np.cumsum([0, *(len(chunk) for chunk in chunks[:-1])])
    largest = np.maximum.reduceat(products, starts, axis=0)
    # A sign is 2 * bit - 1, and a vector of signs has the length of the root of its dimensions.
    cosines: NDArray[np.float32] = (2 * largest - question.sum(axis=1)).mean(axis=1) / np.float32(dim**0.5)
    return cosines
