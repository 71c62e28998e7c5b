"""Many rows decoded at once: one pass over all prompts, then token by token.

Prompts are padded at their end; what is generated goes into slots behind the longest.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from desk_rag.training.reader.architecture import Attention, Block, Decoder, rotary_tables


@torch.no_grad()
def decode(
    model: Decoder,
    ids: Tensor,
    positions: Tensor,
    lengths: Tensor,
    next_positions: Tensor,
    mask: Tensor,
    visible: Tensor,
    *,
    stop_id: int,
    limit: int,
    temperature: float = 0.0,
    top_k: int = 0,
) -> Tensor:
    """Continue every row: returns [B, up to limit] ids, filled up with `stop_id`.

    ids, positions [B, T] padded at the end; lengths [B]; next_positions [B]; mask additive [B, 1, T, T] for the prompt;
    visible [B, T] says which prompt tokens the generated ones see. Greedy at temperature 0, else sampled from
    the `top_k` likeliest.
    """
    batch, length = ids.shape
    shape = model.shape
    cos, sin = rotary_tables(shape, ids.device)
    dtype = mask.dtype
    room = length + limit
    caches = [
        torch.zeros(2, batch, shape.kv_heads, room, shape.head_dim, dtype=dtype, device=ids.device)
        for _ in model.layers
    ]
    cast = torch.autocast(ids.device.type, dtype, enabled=dtype != torch.float32)
    with cast:
        x = model.embed_tokens(ids)
        for block, cache in zip(model.layers, caches, strict=True):
            x = _block(block, x, cos[positions][:, None], sin[positions][:, None], mask, cache, 0)
        last = model.norm(x)[torch.arange(batch, device=ids.device), lengths - 1]
        open_slots = torch.full((batch, 1, 1, room), float("-inf"), dtype=dtype, device=ids.device)
        open_slots[:, 0, 0, :length].masked_fill_(visible, 0.0)
        ended = torch.zeros(batch, dtype=torch.bool, device=ids.device)
        tokens: list[Tensor] = []
        for step in range(limit):
            token = _pick(model.logits(last), temperature, top_k)
            token = torch.where(ended, stop_id, token)
            tokens.append(token)
            ended |= token == stop_id
            if step + 1 == limit or (step % 8 == 7 and bool(ended.all())):
                break
            open_slots[..., length + step] = 0.0
            token_positions = next_positions + step
            x = model.embed_tokens(token)[:, None]
            for block, cache in zip(model.layers, caches, strict=True):
                x = _block(
                    block,
                    x,
                    cos[token_positions][:, None, None],
                    sin[token_positions][:, None, None],
                    open_slots,
                    cache,
                    length + step,
                    grouped=True,
                )
            last = model.norm(x)[:, 0]
    return torch.stack(tokens, 1)


def _block(
    block: torch.nn.Module,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    mask: Tensor,
    cache: Tensor,
    slot: int,
    *,
    grouped: bool = False,
) -> Tensor:
    assert isinstance(block, Block)
    attention = block.self_attn
    q, k, v = attention.project(block.input_layernorm(x), cos, sin)
    cache[0, :, :, slot : slot + k.shape[2]] = k
    cache[1, :, :, slot : slot + v.shape[2]] = v
    mixed = _grouped(attention, q, cache, mask, slot) if grouped else _whole(attention, q, k, v, mask)
    x = x + attention.merge(mixed)
    out: Tensor = x + block.mlp(block.post_attention_layernorm(x))
    return out


def _whole(attention: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    repeat = attention.shape.heads // attention.shape.kv_heads
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    return F.scaled_dot_product_attention(q, k.to(q.dtype), v.to(q.dtype), attn_mask=mask.to(q.dtype))


def _grouped(attention: Attention, q: Tensor, cache: Tensor, mask: Tensor, slot: int) -> Tensor:
    """One query token per row against all slots, without repeating keys for the heads that share them."""
    shape = attention.shape
    batch = q.shape[0]
    q = q.reshape(batch, shape.kv_heads, shape.heads // shape.kv_heads, shape.head_dim)
    keys, values = cache[0, :, :, : slot + 1], cache[1, :, :, : slot + 1]
    scores = q.to(keys.dtype) @ keys.mT * shape.head_dim**-0.5 + mask[..., : slot + 1]
    weights = scores.float().softmax(-1).to(values.dtype)
    mixed: Tensor = weights @ values
    return mixed.reshape(batch, shape.heads, 1, shape.head_dim)


def _pick(logits: Tensor, temperature: float, top_k: int) -> Tensor:
    if not temperature:
        return logits.argmax(-1)
    best, which = logits.topk(top_k or logits.shape[-1], -1)
    drawn = torch.multinomial(F.softmax(best / temperature, -1), 1)
    return which.gather(-1, drawn)[:, 0]
