"""Compute attention over stitched caches: stock SDPA, with grouped query heads packed where that is faster.

For grouped-query attention, the stock function either asks torch for `enable_gqa`, whose CPU kernel is slow
(bench/LOG.md, "Packed matrices"), or copies every key and value once per query head. Folding the query heads of a group
into the query dimension computes the same sums without copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

NAME = "desk_rag_sdpa"
_FEW_QUERIES = 64
"""Above this many query tokens the copied keys are a small share of the work and stock SDPA's causal path wins."""
_MANY_KEYS = 2048
"""From here on one token's attention is bound by reading keys and values from memory."""


def packed_sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """query [B, heads, N, D], key/value [B, kv_heads, T, D] -> [B, N, heads, D].

    The mask, if there is one, must be the same for all heads ([B, 1, N, T]), which is what transformers builds.
    """
    batch, heads, queries, dim = query.shape
    groups = heads // key.shape[1]
    shared_mask = attention_mask is None or attention_mask.shape[1] == 1
    packable = groups > 1 and shared_mask and (queries == 1 or (queries <= _FEW_QUERIES and attention_mask is not None))
    if not packable or query.device.type != "cpu":
        if query.device.type == "cpu" and groups > 1 and kwargs.get("position_bias") is None:
            key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
            causal = attention_mask is None and queries > 1
            # torch aligns a causal mask to the first key; the mask is left out for whole prompts only.
            assert not causal or queries == key.shape[2], "several queries over a past need a mask"
            out = scaled_dot_product_attention(
                query, key, value, attn_mask=attention_mask, is_causal=causal, scale=scaling
            )
            return out.transpose(1, 2).contiguous(), None
        stock = attention_named("sdpa")
        out, _ = stock(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs)
        return out, None
    packed = query.reshape(batch, key.shape[1], groups * queries, dim)
    if attention_mask is None and batch == 1 and key.dtype is torch.float32 and not torch.is_grad_enabled():
        rows = packed[0] * (dim**-0.5 if scaling is None else scaling)
        return one_query(rows, key[0], value[0], Scratch.of(heads * key.shape[2])).view(1, 1, heads, dim), None
    mask = None if attention_mask is None else attention_mask[..., : key.shape[2]].repeat(1, 1, groups, 1)
    out = scaled_dot_product_attention(packed, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(batch, heads, queries, dim).transpose(1, 2).contiguous(), None


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory for `one_query`. Over many keys fresh memory costs it a sixth of its time, so whoever can keeps this."""

    scores: torch.Tensor
    weights: torch.Tensor
    """Both fp32 [numbers]."""

    @classmethod
    def of(cls, numbers: int) -> Scratch:
        """For up to `numbers` pairs of a query head and a key."""
        return cls(torch.empty(numbers), torch.empty(numbers))


def one_query(rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """One token's attention, rows fp32 [H, G, D], scaled, over keys and values [H, T, D] -> [H, G, D].

    Few rows over many keys are bound by memory, and a product that rearranges what it reads is slow there. With the
    keys on the left MKL reads them once as they lie, and oneDNN does so with the values; torch's fused attention, made
    for many rows, takes twice as long over 2,000 and 8,000 keys.
    """
    heads, group, _ = rows.shape
    length = keys.shape[1]
    scores, weights = (memory[: heads * group * length] for memory in (scratch.scores, scratch.weights))
    weights = weights.view(heads, group, length)
    if length < _MANY_KEYS or not torch._C._has_mkldnn:
        torch.softmax(torch.bmm(rows, keys.transpose(1, 2), out=scores.view_as(weights)), -1, out=weights)
        return torch.bmm(weights, values)
    by_key = torch.bmm(keys, rows.transpose(1, 2), out=scores.view(heads, length, group))
    torch.softmax(by_key.transpose(1, 2), -1, out=weights)
    product = torch.ops.mkldnn._linear_pointwise.default
    return torch.stack([product(weights[head], values[head].t(), None, "none", [], "") for head in range(heads)])


def additive_mask(q_length: int, dtype: torch.dtype, **asked: Any) -> torch.Tensor | None:
    """transformers' boolean mask [B, 1, N, T]; for few queries on a CPU as numbers to be added, in `dtype`.

    torch's CPU kernel would turn a boolean mask into such numbers anew in every layer, which over 2,000 keys costs a
    tenth of the attention itself.
    """
    from transformers.masking_utils import sdpa_mask

    return _additive(sdpa_mask(q_length=q_length, dtype=dtype, **asked), dtype)


def causal_mask(queries: int, keys: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
    """The mask [1, 1, N, T] of the last N of T tokens, in `additive_mask`'s form; None if none is needed."""
    if queries in (1, keys):
        return None
    visible = torch.ones(queries, keys, dtype=torch.bool, device=device).tril_(keys - queries)
    return _additive(visible[None, None], dtype)


def _additive(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    if mask is None or mask.device.type != "cpu" or mask.shape[2] > _FEW_QUERIES:
        return mask
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


def attention_named(name: str) -> Any:
    """The attention function registered under `name` (see `register`)."""
    if name == NAME:
        return packed_sdpa
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return ALL_ATTENTION_FUNCTIONS[name]


def register() -> None:
    """Make `packed_sdpa` available to models under NAME. Idempotent.

    The mask function is registered with it: without one transformers passes no mask, and several query tokens over a
    cache would see their future.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, packed_sdpa)
    AttentionMaskInterface.register(NAME, additive_mask)
