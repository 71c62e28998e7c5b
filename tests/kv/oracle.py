"""The oracle of `desk_rag.bench.models.masked`, and the ordinary forward pass beside it."""

from __future__ import annotations

import torch

from desk_rag.bench.models.masked import masked_forward
from desk_rag.model.language_model import LanguageModel

__all__ = ["masked_forward", "plain_forward"]


def plain_forward(model: LanguageModel, ids: list[int], last: int) -> torch.Tensor:
    """Logits [last, vocab] of the ordinary causal forward pass."""
    with torch.inference_mode():
        logits: torch.Tensor = model.module(torch.tensor(ids)[None], use_cache=False).logits[0, -last:]
    return logits
