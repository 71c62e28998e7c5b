"""Align the tokens of two tokenizers by the characters that they cover."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from desk_rag.model.prompt import PromptFormat

Span = tuple[int, int]
"""Character range [start, end)."""


def token_spans(prompt: PromptFormat, text: str) -> list[Span | None]:
    """Character range in `text` of each token of `prompt.chunk_ids(text)`; None for the frame's tokens."""
    frame = len(prompt._open), len(prompt._close)
    offsets = prompt._plain.encode(text, add_special_tokens=False).offsets
    return [*(None for _ in range(frame[0])), *((int(a), int(b)) for a, b in offsets), *(None for _ in range(frame[1]))]


def overlapping(spans: Sequence[Span | None], others: Iterable[Span | None]) -> list[int]:
    """Indices of the `spans` that share a character with any of `others`, ascending.

    `spans` are one chunk's, in the order of its text; None, for a frame's token, overlaps nothing.
    """
    numbered = [(span, index) for index, span in enumerate(spans) if span is not None and span[0] < span[1]]
    firsts, lasts = [span[0] for span, _ in numbered], [span[1] for span, _ in numbered]
    overlaps: set[int] = set()
    for other in others:
        if other is None or other[0] >= other[1]:
            continue
        # Starts and ends both ascend, even where several tokens share the bytes of one character.
        overlaps.update(range(bisect_right(lasts, other[0]), bisect_left(firsts, other[1])))
    return sorted(numbered[number][1] for number in overlaps)
