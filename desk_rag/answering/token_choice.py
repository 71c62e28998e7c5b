"""Choose the next token: the likeliest that does not end a quote after 'Mr.' and the like.

The embedded reader's training text was also cut into sentences at abbreviations, so it sometimes ends a quote there
(bench/LOG.md, "Evidence selection and verification"). If the quotation mark is ruled out, it goes on copying.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from desk_rag.answering.evidence.quote_matching import DOUBLE_QUOTES
from desk_rag.documents.sentences import NO_END
from desk_rag.model.prompt import PromptFormat

_MAX_ALTERNATIVES = 8


def next_token(prompt: PromptFormat, answer_ids: Sequence[int], best: int, logits: torch.Tensor) -> int:
    """The token after `answer_ids`, from logits [vocab] whose maximum is at `best`."""
    if not _ends_too_early(prompt, answer_ids, best):
        return best
    alternatives = logits.topk(min(_MAX_ALTERNATIVES, logits.shape[0])).indices.tolist()
    continuing = (
        token
        for token in alternatives
        if token not in prompt.stop_ids and not _ends_too_early(prompt, answer_ids, token)
    )
    return next(continuing, best)


def _ends_too_early(prompt: PromptFormat, answer_ids: Sequence[int], token: int) -> bool:
    if not answer_ids or DOUBLE_QUOTES.isdisjoint(prompt.decode([token])):
        return False
    line = prompt.decode([*answer_ids, token]).rstrip("\n").rpartition("\n")[2]
    end = max(line.rfind(mark) for mark in DOUBLE_QUOTES)
    return end > 0 and line[0] in DOUBLE_QUOTES and NO_END.search(line[:end].rstrip()) is not None
