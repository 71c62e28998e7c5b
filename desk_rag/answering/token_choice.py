"""Which token comes next: the likeliest, unless it would end a quote after 'Mr.', where no sentence ends.

Knows logits and the text so far; runs no model. The embedded reader learned its quotes from text
that was cut into sentences at such places, too: of 71 held-out questions about passages with abbreviations it cut 7
quotes short, and answered 'Mr'. Held back from the quotation mark it goes on copying.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from desk_rag.answering.evidence.quote_matching import DOUBLE_QUOTES
from desk_rag.documents.sentences import NO_END
from desk_rag.model.prompt import PromptFormat

_OTHERS = 8


def next_token(prompt: PromptFormat, said: Sequence[int], best: int, logits: torch.Tensor) -> int:
    """The token after `said`, from logits [vocab] whose maximum is at `best`."""
    if not _ends_too_early(prompt, said, best):
        return best
    others = logits.topk(min(_OTHERS, logits.shape[0])).indices.tolist()
    going_on = (token for token in others if token not in prompt.stop_ids and not _ends_too_early(prompt, said, token))
    return next(going_on, best)


def _ends_too_early(prompt: PromptFormat, said: Sequence[int], token: int) -> bool:
    if not said or DOUBLE_QUOTES.isdisjoint(prompt.decode([token])):
        return False
    line = prompt.decode([*said, token]).rstrip("\n").rpartition("\n")[2]
    end = max(line.rfind(mark) for mark in DOUBLE_QUOTES)
    return end > 0 and line[0] in DOUBLE_QUOTES and NO_END.search(line[:end].rstrip()) is not None
