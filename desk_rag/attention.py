"""Attention for stitched caches: stock SDPA, except that grouped query heads are packed where that is faster.

Knows transformers' attention interface; knows no cache. With grouped-query attention the stock function either asks
torch for `enable_gqa`, whose CPU kernel is 3 to 15 times slower, or copies every key and value once per query head.
Folding the query heads of a group into the query dimension does the same sums over the keys as they lie.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "desk_rag_sdpa"
_FEW_QUERIES = 64
"""Above this many query tokens the copied keys are a small share of the work and stock SDPA's causal path wins."""


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
        if query.device.type == "cpu" and groups > 1 and attention_mask is None:
            key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
            causal = queries > 1
            # torch aligns a causal mask to the first key; transformers leaves the mask out for whole prompts only.
            assert not causal or queries == key.shape[2], "several queries over a past need a mask"
            out = scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scaling)
            return out.transpose(1, 2).contiguous(), None
        stock = ALL_ATTENTION_FUNCTIONS["sdpa"]
        out, _ = stock(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs)
        return out, None
    packed = query.reshape(batch, key.shape[1], groups * queries, dim)
    mask = None if attention_mask is None else attention_mask[..., : key.shape[2]].repeat(1, 1, groups, 1)
    out = scaled_dot_product_attention(packed, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(batch, heads, queries, dim).transpose(1, 2).contiguous(), None


def register() -> None:
    """Make `packed_sdpa` available to models under NAME. Idempotent.

    The mask function is registered with it: without one transformers passes no mask, and several query tokens over a
    cache would see their future.
    """
    AttentionInterface.register(NAME, packed_sdpa)
    AttentionMaskInterface.register(NAME, sdpa_mask)
