"""Which characters each token of a chunk stands for, and what follows from it across two tokenizers.

Knows prompts and offsets; knows no model. Two tokenizers agree on nothing but the text, so characters are the currency.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from desk_rag.model.prompt import PromptFormat

Span = tuple[int, int]
"""First character and the one behind the last."""


def token_spans(prompt: PromptFormat, text: str) -> list[Span | None]:
    """Per token of `prompt.chunk_ids(text)` its characters in `text`; None for the frame's tokens."""
    frame = len(prompt._open), len(prompt._close)
    offsets = prompt._plain.encode(text, add_special_tokens=False).offsets
    return [*(None for _ in range(frame[0])), *((int(a), int(b)) for a, b in offsets), *(None for _ in range(frame[1]))]


def overlapping(spans: Sequence[Span | None], wanted: Iterable[Span | None]) -> list[int]:
    """Numbers of those `spans` that share a character with any of `wanted`, ascending. Frames share none.

    `spans` are one chunk's, in the order of its text.
    """
    numbered = [(span, index) for index, span in enumerate(spans) if span is not None and span[0] < span[1]]
    firsts, lasts = [span[0] for span, _ in numbered], [span[1] for span, _ in numbered]
    hit: set[int] = set()
    for piece in wanted:
        if piece is None or piece[0] >= piece[1]:
            continue
        # Spans of one text ascend at both ends, even where several tokens share the bytes of one character.
        hit.update(range(bisect_right(lasts, piece[0]), bisect_left(firsts, piece[1])))
    return sorted(numbered[at][1] for at in hit)
