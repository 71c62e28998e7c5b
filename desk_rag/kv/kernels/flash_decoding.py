"""Choose flash decoding for a question's attention, once it agreed with the reference on this GPU and shape.

The check runs every class of row counts with the model's own heads, so that it also compiles what the first question
needs. `kernels.flash_decoding_triton` divides the work among programs.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from desk_rag.kv.kernels.proof import gpu_index, proven

_TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""Tolerance relative to a result's largest number: one rounding of weights and result, more for fp32."""
_MOST_TOKENS = 256
"""Longer passes fill a GPU without splitting the keys."""
_PROVEN_LENGTHS = (9, 61, 700, 4000)
"""Context lengths of the check; the last one has more shares than the merge reads at once."""


class FlashAttend(Protocol):
    """Causal attention of the last N of S tokens, as `kernels.flash_decoding_triton.FlashDecoding`."""

    def __call__(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        out: torch.Tensor | None = None,
        start: torch.Tensor | None = None,
    ) -> torch.Tensor: ...


def flash_decoding_for(
    device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, dim: int, window: int = 0
) -> FlashAttend | None:
    """The kernels for a model's heads, or None if the reference is to be used; for one stream at a time.

    With a `window` a token sees so many slots, its own the last.
    """
    half = dtype in (torch.bfloat16, torch.float16)
    if device.type != "cuda" or not half or dim % 16 or dim > 256 or heads % kv_heads:
        return None
    index = gpu_index(device)
    if not proven("flash decoding", _agrees, index, dtype, heads, kv_heads, dim, window):
        return None
    from desk_rag.kv.kernels.flash_decoding_triton import FlashDecoding

    return FlashDecoding(heads, kv_heads, dim, dtype, torch.device("cuda", index), window=window)


def is_worthwhile(count: int) -> bool:
    """True for so few tokens that torch's operator would leave most of a GPU idle."""
    return count <= _MOST_TOKENS


def _agrees(device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, dim: int, window: int) -> bool:
    from desk_rag.kv.kernels.flash_decoding_triton import FlashDecoding

    with torch.inference_mode():
        attend = FlashDecoding(heads, kv_heads, dim, dtype, device, window=window)
        return agrees(attend, heads, kv_heads, dim, dtype, device, window)


def agrees(
    attend: FlashAttend,
    heads: int,
    kv_heads: int,
    dim: int,
    dtype: torch.dtype,
    device: torch.device,
    window: int = 0,
) -> bool:
    """True if attention of one token up to hundreds of rows gives the reference's results, written only to `out`.

    Checked with a known length, and with start and row read from memory in slabs that have further slots and rows.
    """
    generator = torch.Generator().manual_seed(11)
    group = heads // kv_heads
    for tokens, length in ((tokens, length) for tokens in (16, 64, 150) for length in _PROVEN_LENGTHS):
        count = max(1, tokens // group)
        if count > length:
            continue
        # Peaked near the end, so that one slot more or less changes the result visibly.
        query = torch.randn(1, count, heads, dim, generator=generator) * 3
        slabs = torch.full((2, 1, kv_heads, length + 7, dim), float("nan"))
        slabs[:, :, :, :length] = torch.randn(2, 1, kv_heads, length, dim, generator=generator)
        slabs[1, :, :, length - count : length] *= 4
        heads_first = query.to(device, dtype).transpose(1, 2)
        keys, values = slabs.to(device, dtype)
        used = keys[:, :, :length], values[:, :, :length]
        start = torch.tensor([[length - count], [1]], device=device)
        rows = [torch.cat((torch.full_like(part, float("nan")), part)) for part in (keys, values)]
        expected = reference(heads_first, *used, window)
        for (these_keys, these_values), given_start in ((used, None), (rows, start)):
            out = torch.full((1, count + 2, heads * dim), 777.0, dtype=dtype, device=device)
            attend(heads_first, these_keys, these_values, out[:, :count], given_start)
            agreed = (out[:, :count].float() - expected).abs().max() <= _TOLERANCE[dtype] * expected.abs().max()
            if not agreed or not bool((out[:, count:] == 777.0).all()):
                return False
    return True


def reference(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int = 0) -> torch.Tensor:
    """Attention in fp32 with an explicit mask: [B, heads, N, D] over [B, H, S, D] -> [B, N, heads * D]."""
    count, length = query.shape[2], keys.shape[2]
    group = query.shape[1] // keys.shape[1]
    wide, wide_values = (part.float().repeat_interleave(group, 1) for part in (keys, values))
    mask = torch.ones(count, length, dtype=torch.bool, device=query.device).tril(length - count)
    if window:
        mask = mask.triu(length - count - window + 1)
    out = scaled_dot_product_attention(query.float(), wide, wide_values, attn_mask=mask)
    return out.transpose(1, 2).flatten(2)
