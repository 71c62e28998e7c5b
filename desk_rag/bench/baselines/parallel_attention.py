"""Attend to chunks that overlap in position as APE does: at a lower temperature, and scaled down as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from desk_rag.errors import UnsupportedModel
from desk_rag.model.language_model import LanguageModel

TEMPERATURE = 0.9
SCALE = 0.9
"""The values of APE's published examples (arXiv 2502.05431); the best ones differ from model to model."""
_NAME = "desk_rag_ape"


@contextmanager
def attending(
    model: LanguageModel, context: slice, temperature: float = TEMPERATURE, scale: float = SCALE
) -> Iterator[None]:
    """While open, tokens behind the slots `context` attend to them as APE does. One caller at a time.

    Raises UnsupportedModel for models with capped scores or sinks.
    """
    if model.spec.support.needs_eager:
        raise UnsupportedModel("APE's attention is not defined for models with capped scores or sinks.")
    from transformers import AttentionInterface, AttentionMaskInterface

    from desk_rag.model.sdpa import additive_mask

    AttentionInterface.register(_NAME, partial(attend, context=context, temperature=temperature, context_scale=scale))
    AttentionMaskInterface.register(_NAME, additive_mask)
    config = model.module.config
    before = config._attn_implementation
    config._attn_implementation = _NAME
    try:
        yield
    finally:
        config._attn_implementation = before


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    *,
    context: slice,
    temperature: float,
    context_scale: float,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """query [B, heads, N, D], key, value [B, H, T, D] -> [B, N, heads, D].

    Scores of the slots `context` are divided by the temperature, and their sum of exponentials is raised to the power
    of `context_scale`, before all slots share one softmax.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = (states.repeat_interleave(groups, dim=1) for states in (key, value))
    scores = (query @ key.transpose(-1, -2)).float() * (query.shape[3] ** -0.5 if scaling is None else scaling)
    if attention_mask is None and query.shape[2] > 1:
        raise UnsupportedModel("APE's attention needs a mask for several tokens.")
    if attention_mask is not None:
        shown = attention_mask[..., : scores.shape[3]]
        if shown.dtype is torch.bool:
            scores = scores.masked_fill(~shown, torch.finfo(scores.dtype).min)
        else:
            scores = scores + shown
    near = scores[..., context] / temperature
    scores[..., context] = near + (context_scale - 1) * near.logsumexp(-1, keepdim=True)
    out = scores.softmax(-1).to(value.dtype) @ value
    return out.transpose(1, 2).contiguous(), None
