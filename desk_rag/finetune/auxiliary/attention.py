"""Record the attention of questions in some layers of a masked pass over rows, with its gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from desk_rag.finetune.masked import Batch, hidden_of
from desk_rag.finetune.rows import IS_CHUNK, SEES_CHUNKS


class _Recorded(Exception):
    """Raised once the last wanted layer was recorded."""


def question_tokens(roles: torch.Tensor) -> torch.Tensor:
    """Return bool of the shape of `roles`: the tokens of questions, which see the chunks and are in none."""
    return ((roles & SEES_CHUNKS) > 0) & ((roles & IS_CHUNK) == 0)


def question_attention(module: Any, batch: Batch, layers: Sequence[int]) -> list[torch.Tensor]:
    """Attention weights fp32 [question tokens, N] of each row: mean over the heads and over `layers`.

    Ends before the attention of the highest of `layers`.
    """
    recorder = _Recorder(frozenset(layers), [tokens.nonzero()[:, 0] for tokens in question_tokens(batch.roles)])
    with _recording(module, recorder):
        try:
            hidden_of(module, batch)
        except _Recorded:
            return [torch.stack(weights).mean(0) for weights in recorder.weights]
    raise AssertionError("no layer of that number")


@dataclass(slots=True)
class _Recorder:
    layers: frozenset[int]
    questions: list[torch.Tensor]
    """Numbers of the question tokens of each row."""
    weights: list[list[torch.Tensor]] = field(default_factory=list)
    """Attention weights by row and layer."""

    def record(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor, scale: float,
        softcap: float | None, sinks: torch.Tensor | None,
    ) -> None:  # fmt: skip
        """Add a layer's weights; query, key [B, heads, N, D], mask bool [B, 1, N, N]."""
        if layer not in self.layers:
            return
        self.weights = self.weights or [[] for _ in self.questions]
        for row, tokens in enumerate(self.questions):
            scores = _scores(query[row, :, tokens], key[row], mask[row, :, tokens], scale, softcap)
            self.weights[row].append(_softmax(scores, sinks).mean(0))
        if len(self.weights[0]) == len(self.layers):
            raise _Recorded


def _scores(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor, scale: float, softcap: float | None
) -> torch.Tensor:
    scores = (query @ key.transpose(-1, -2)).float() * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)


def _softmax(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Weights of scores [..., heads, R, T]; each head's sink takes its share and is left out."""
    if sinks is None:
        return scores.softmax(-1)
    column = sinks.float()[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat([scores, column], -1).softmax(-1)[..., :-1]


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    *,
    recorder: _Recorder,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention function for transformers: query [B, heads, N, D], key/value [B, H, N, D] -> [B, N, heads, D]."""
    groups = query.shape[1] // key.shape[1]
    key, value = (states.repeat_interleave(groups, dim=1) for states in (key, value))
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    recorder.record(int(getattr(module, "layer_idx", -1)), query, key, attention_mask, scale, softcap, s_aux)
    if softcap is None and s_aux is None:
        out = scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scale)
    else:
        out = _softmax(_scores(query, key, attention_mask, scale, softcap), s_aux).to(value.dtype) @ value
    return out.transpose(1, 2).contiguous(), None


@contextmanager
def _recording(module: Any, recorder: _Recorder) -> Iterator[None]:
    """While open, the module's layers attend by `_attend`. Modules may run in different threads, one caller each."""
    from transformers import AttentionInterface

    name = f"desk_rag_recorded_{id(module)}"
    AttentionInterface.register(name, partial(_attend, recorder=recorder))
    config = module.config
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before
