"""Causal attention over a slab by torch: the reference of flash decoding, and what long passes use."""

from __future__ import annotations

import functools
from typing import Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from desk_rag.kv.forward.inputs import Questions

_flash = torch.ops.aten._scaled_dot_product_flash_attention.default


class Attention(Protocol):
    """Causal attention of the last N of S tokens; see `attend` for shapes."""

    def __call__(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor: ...


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int = 0) -> torch.Tensor:
    """Causal attention of query [B, heads, N, D] over keys, values [B, H, S, D], its own last -> [B, N, heads * D].

    With a `window` a token sees so many slots, its own the last.

    On a GPU the FlashAttention operator is called directly: it aligns the causal mask to the end and splits long keys
    among multiprocessors, while torch's public function aligns the mask to the start.
    """
    batch, heads, count, dim = query.shape
    if window and keys.shape[2] > window:
        keys, values = (part[:, :, -(window + count - 1) :] for part in (keys, values))
    else:
        window = 0
    if not window and query.dtype in (torch.bfloat16, torch.float16) and _has_flash(query.device, dim):
        out: torch.Tensor = _flash(query, keys, values, 0.0, True, return_debug_mask=False, scale=dim**-0.5)[0]
        return out.transpose(1, 2).reshape(batch, count, heads * dim)
    groups = heads // keys.shape[1]
    length = keys.shape[2]
    own = torch.arange(length - count, length, device=query.device).repeat(groups)
    mask = torch.arange(length, device=query.device)[None] <= own[:, None]
    if window:
        mask &= torch.arange(length, device=query.device)[None] > own[:, None] - window
    packed = query.reshape(batch, keys.shape[1], groups * count, dim)
    out = scaled_dot_product_attention(packed, keys, values, attn_mask=mask)
    return out.reshape(batch, heads, count, dim).transpose(1, 2).reshape(batch, count, heads * dim)


@functools.cache
def _has_flash(device: torch.device, dim: int) -> bool:
    """True where torch's FlashAttention runs: from Ampere on, for head sizes it supports."""
    if device.type != "cuda" or dim % 8 or dim > 256:
        return False
    return torch.cuda.get_device_capability(device)[0] >= 8


def attend_whole(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Causal attention of whole prompts (N = S), by the backend that torch prefers."""
    assert query.shape[2] == keys.shape[2], "only for passes that begin at position 0"
    out = scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).flatten(2)


def attend_rows(
    questions: Questions, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int = 0
) -> torch.Tensor:
    """Causal attention of questions of different lengths, each over its own row of slabs [rows, H, slots, D].

    query [B, heads, N, D] -> [B, N, heads * D]; 0 for padding. The reference of flash decoding that reads from memory
    where each question stands.
    """
    batch, heads, count, dim = query.shape
    out = query.new_zeros((batch, count, heads * dim))
    for line, (start, used, row) in enumerate(zip(questions.starts, questions.counts, questions.rows, strict=True)):
        own = slice(row, row + 1), slice(None), slice(start + used)
        out[line, :used] = attend(query[line : line + 1, :, :used], keys[own], values[own], window)[0]
    return out
