"""Cut texts that are longer than an embedder reads into windows between words.

An embedder reads a limited number of word pieces (256 for all-MiniLM-L6-v2) and silently cuts the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

WINDOW_RULE = "balanced windows between words, mean weighted by word pieces/1"
"""Name of the rule that makes a chunk's vector of its windows'; part of the fingerprint, since another gives others."""


@dataclass(frozen=True, slots=True)
class Window:
    """A part of text number `owner` that fits the embedder."""

    owner: int
    text: str
    weight: float
    """Number of word pieces if the text has several windows, else 1."""


def windows(
    module: SentenceTransformer, owner: int, text: str, prompt: str | None, tokenizing: AbstractContextManager[object]
) -> Iterator[Window]:
    """Yield windows of text number `owner` that the module reads whole; `tokenizing` is entered to tokenize."""
    limit = module.max_seq_length
    # One word piece has at least one character, so short texts need no count.
    if not limit or math.isinf(limit) or len(text) + len(prompt or "") <= limit - 2:
        yield Window(owner, text, 1.0)
        return
    ends, room = _word_piece_ends(module, text, prompt, int(limit), tokenizing)
    if len(ends) <= room:
        yield Window(owner, text, 1.0)
        return
    yield from _cut(owner, text, ends, room)


def _word_piece_ends(
    module: SentenceTransformer, text: str, prompt: str | None, limit: int, tokenizing: AbstractContextManager[object]
) -> tuple[list[int], int]:
    """Return the end character of each word piece, and how many fit beside the prompt."""
    tokenizer = module.tokenizer
    with tokenizing:
        offsets = tokenizer(
            text, add_special_tokens=False, truncation=False, return_offsets_mapping=True, verbose=False
        )["offset_mapping"]
        extra = len(tokenizer(prompt or "", add_special_tokens=True)["input_ids"])
    return [int(end) for _, end in offsets], max(16, limit - extra)


def _cut(owner: int, text: str, ends: list[int], room: int) -> Iterator[Window]:
    """Cut text into windows of at most `room` word pieces, at a word boundary if one is near."""
    start, first = 0, 0
    while first < len(ends):
        remaining = len(ends) - first
        last = first + math.ceil(remaining / math.ceil(remaining / room))
        for candidate in range(last, max(first, last - 16), -1):
            if candidate == len(ends) or text[ends[candidate - 1]].isspace():
                last = candidate
                break
        end = len(text) if last == len(ends) else ends[last - 1]
        yield Window(owner, text[start:end], float(last - first))
        start, first = end, last
