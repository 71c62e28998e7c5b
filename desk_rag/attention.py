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
_MANY_KEYS = 4096
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
    if attention_mask is None and _streams(packed, key):
        rows = _one_query(packed[0], key[0], value[0], dim**-0.5 if scaling is None else scaling)
        return rows.reshape(1, 1, heads, dim), None
    mask = None if attention_mask is None else attention_mask[..., : key.shape[2]].repeat(1, 1, groups, 1)
    out = scaled_dot_product_attention(packed, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(batch, heads, queries, dim).transpose(1, 2).contiguous(), None


def _streams(packed: torch.Tensor, key: torch.Tensor) -> bool:
    """Whether one token's attention is bound by reading the keys, and torch has what `_one_query` needs."""
    one = packed.shape[0] == 1 and key.shape[2] >= _MANY_KEYS and key.dtype is torch.float32
    return one and torch._C._has_mkldnn


def _one_query(rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """One token's attention, rows [H, G, D] over keys and values [H, T, D] -> [H, G, D].

    Few rows over many keys are bound by memory, and torch's general product rearranges what it reads. Matrix-vector
    products stream the keys (all rows of a group but the first find them in the processor's cache), and oneDNN streams
    the values; together 1.2 times as fast under load over 8,000 keys, by the same arithmetic.
    """
    scaled = rows * scale
    scores = rows.new_empty(*rows.shape[:2], keys.shape[1])
    for head, group in enumerate(scaled):
        for index, row in enumerate(group):
            torch.mv(keys[head], row, out=scores[head, index])
    weights = scores.softmax(-1)
    product = torch.ops.mkldnn._linear_pointwise.default
    return torch.stack(
        [product(weights[head], values[head].t(), None, "none", [], "") for head in range(rows.shape[0])]
    )


def additive_mask(q_length: int, dtype: torch.dtype, **asked: Any) -> torch.Tensor | None:
    """transformers' boolean mask [B, 1, N, T]; for few queries on a CPU as numbers to be added, in `dtype`.

    torch's CPU kernel would turn a boolean mask into such numbers anew in every layer, which over 2,000 keys costs a
    tenth of the attention itself.
    """
    mask: torch.Tensor | None = sdpa_mask(q_length=q_length, dtype=dtype, **asked)
    if mask is None or mask.device.type != "cpu" or q_length > _FEW_QUERIES:
        return mask
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


def register() -> None:
    """Make `packed_sdpa` available to models under NAME. Idempotent.

    The mask function is registered with it: without one transformers passes no mask, and several query tokens over a
    cache would see their future.
    """
    AttentionInterface.register(NAME, packed_sdpa)
    AttentionMaskInterface.register(NAME, additive_mask)
