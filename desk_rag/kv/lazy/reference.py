"""Attention over int8 chunk KV as it was stored: nothing is rotated or widened until the moment it is read.

The plain tokens (prefix, question, answer) and the chunks are attended to apart and merged by their log-sum-exp.
(LazyAttention, arXiv 2606.04302: deferred rotation; the merge as in APE, arXiv 2502.05431.) Here is the torch
reference, which is also the CPU path: right and slow, because every pass dequantises and turns every chunk again.
`lazy.launcher` is the kernel, `lazy.cache` what a model runs over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from desk_rag.kv.positions import Placement
from desk_rag.kv.quant import dequantize_layer
from desk_rag.kv.rope import RotaryTables, rotate
from desk_rag.kv.types import Int8Layer, QuantizedKV
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.sdpa import additive_mask, packed_sdpa

NAME = "desk_rag_lazy"
_MARK = "_desk_rag_lazy"


class Attend(Protocol):
    """Attention of one layer over plain tokens and chunks; see `attend` for shapes."""

    def __call__(
        self, layer: int, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float
    ) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class LazyContext:
    """The chunks of one answer as they were loaded, and where they stand."""

    chunks: tuple[QuantizedKV, ...]
    """Chunks on the computing device; they must stay alive and unchanged while the context is used."""
    placements: tuple[Placement, ...]
    tables: RotaryTables

    @property
    def num_tokens(self) -> int:
        return sum(placement.num_tokens for placement in self.placements)

    def is_int8(self, layer: int) -> bool:
        """True if every chunk has that layer as int8; other layers are materialised."""
        return all(isinstance(chunk.layers[layer], Int8Layer) for chunk in self.chunks)

    def positioned(self, layer: int) -> Iterator[tuple[Placement, torch.Tensor, torch.Tensor]]:
        """One layer of every chunk: its place, keys at their positions and values, both fp32 [H, T, D]."""
        table = self.tables.table_of_layer[layer]
        for chunk, placement in zip(self.chunks, self.placements, strict=True):
            keys, values = dequantize_layer(chunk.layers[layer])
            rows = slice(placement.position, placement.position + placement.num_tokens)
            yield placement, rotate(keys, self.tables.cos[table][rows], self.tables.sin[table][rows]), values


def attend(
    layer: int, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float, context: LazyContext
) -> torch.Tensor:
    """The reference: rotated query [1, heads, N, D], keys and values [1, H, S, D] of prefix and suffix, the N included.

    Every query sees all chunks; of the plain tokens those up to itself. Returns [1, N, heads, D] in the query's dtype.
    """
    _, heads, count, dim = query.shape
    kv_heads, plain = keys.shape[1], keys.shape[2]
    packed = query[0].float().reshape(kv_heads, heads // kv_heads * count, dim) * scaling
    own = torch.arange(plain - count, plain, device=query.device).repeat(heads // kv_heads)
    visible = torch.arange(plain, device=query.device)[None] <= own[:, None]
    scores = (packed @ keys[0].float().mT).masked_fill(~visible, -torch.inf)
    total = _Partial.of(scores, values[0].float())
    for _, turned, whole in context.positioned(layer):
        total = total.merged(_Partial.of(packed @ turned.mT, whole))
    out = total.output.reshape(kv_heads * (heads // kv_heads), count, dim)
    return out.transpose(0, 1)[None].to(query.dtype)


@dataclass(frozen=True, slots=True)
class _Partial:
    """Attention over some of the keys: enough to be merged with attention over others."""

    output: torch.Tensor
    """[H, M, D], normalised over these keys."""
    lse: torch.Tensor
    """[H, M], natural log of the sum of exponentials."""

    @classmethod
    def of(cls, scores: torch.Tensor, values: torch.Tensor) -> _Partial:
        lse = scores.logsumexp(-1)
        return cls((scores - lse[..., None]).exp() @ values, lse)

    def merged(self, other: _Partial) -> _Partial:
        lse = torch.logaddexp(self.lse, other.lse)
        mine, others = (self.lse - lse).exp()[..., None], (other.lse - lse).exp()[..., None]
        return _Partial(self.output * mine + other.output * others, lse)


def mark(keys: torch.Tensor, run: Attend) -> torch.Tensor:
    """Have `lazy_sdpa` attend by `run` whenever it is given this very tensor as keys."""
    setattr(keys, _MARK, run)
    return keys


def lazy_sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function: lazy over keys that a lazy cache marked, as usual over all others."""
    run: Attend | None = getattr(key, _MARK, None)
    if run is None:
        return packed_sdpa(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    layer = module.layer_idx
    assert isinstance(layer, int)
    return run(layer, query, key, value, query.shape[-1] ** -0.5 if scaling is None else scaling), None


def enable(model: LanguageModel) -> None:
    """Let `model` run over lazy caches as well. Over any other cache it does what it did before. Idempotent."""
    if model.module.config._attn_implementation != NAME:
        from transformers import AttentionInterface, AttentionMaskInterface

        AttentionInterface.register(NAME, lazy_sdpa)
        AttentionMaskInterface.register(NAME, additive_mask)
        model.module.set_attn_implementation(NAME)
