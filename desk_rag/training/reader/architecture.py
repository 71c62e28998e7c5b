"""The reader's architecture in plain torch, for training: Qwen3 with RoPE, grouped queries, q/k norm, SwiGLU.

Embeddings are tied, and the weights carry the names of Qwen3ForCausalLM, so that transformers loads what is exported
and nothing of this file is needed to run the reader.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a decoder."""

    vocab: int = 12288
    width: int = 512
    layers: int = 10
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    inner: int = 1152
    theta: float = 100_000.0
    eps: float = 1e-6
    positions: int = 4096
    """Longest context that rotary tables are made for in training."""


READER = Shape()
"""30.55 M parameters: what is shipped."""
TINY = Shape(width=64, layers=2, heads=2, kv_heads=1, head_dim=32, inner=96)
"""For trying the recipe out on a CPU."""


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    """Grouped-query attention with per-head norms of queries and keys."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.width, queries, bias=False)
        self.k_proj = nn.Linear(shape.width, keys, bias=False)
        self.v_proj = nn.Linear(shape.width, keys, bias=False)
        self.o_proj = nn.Linear(queries, shape.width, bias=False)
        self.q_norm = RMSNorm(shape.head_dim, shape.eps)
        self.k_norm = RMSNorm(shape.head_dim, shape.eps)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [B, heads, T, D], rotated keys and values [B, kv_heads, T, D]."""
        batch, length, _ = x.shape
        size = self.shape
        q = self.q_norm(self.q_proj(x).view(batch, length, size.heads, size.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(batch, length, size.kv_heads, size.head_dim)).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, size.kv_heads, size.head_dim).transpose(1, 2)
        return rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype), v

    def merge(self, y: Tensor) -> Tensor:
        """[B, heads, T, D] -> [B, T, width]."""
        merged: Tensor = self.o_proj(y.transpose(1, 2).reshape(y.shape[0], y.shape[2], -1))
        return merged

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = self.project(x, cos, sin)
        repeat = self.shape.heads // self.shape.kv_heads
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        return self.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.inner, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.inner, bias=False)
        self.down_proj = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    """One decoder layer; `drop` of each branch's output is dropped while training."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.width, shape.eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.width, shape.eps)
        self.mlp = MLP(shape)
        self.drop = 0.0

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        x = x + F.dropout(self.self_attn(self.input_layernorm(x), cos, sin, mask), self.drop, self.training)
        return x + F.dropout(self.mlp(self.post_attention_layernorm(x)), self.drop, self.training)


class Decoder(nn.Module):
    """Embedding, blocks, final norm; logits through the tied embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab, shape.width)
        self.layers = nn.ModuleList([Block(shape) for _ in range(shape.layers)])
        self.norm = RMSNorm(shape.width, shape.eps)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                std = 0.02 if "embed" in name else 1.0 / math.sqrt(parameter.shape[1])
                if "o_proj" in name or "down_proj" in name:
                    std /= math.sqrt(2 * shape.layers)
                nn.init.normal_(parameter, std=std)

    def set_dropout(self, drop: float) -> None:
        """Drop this share of every branch's output from now on, while training."""
        for block in self.layers:
            assert isinstance(block, Block)
            block.drop = drop

    def hidden(self, ids: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None = None) -> Tensor:
        """ids [B, T] -> last hidden states [B, T, width]. Without `mask` causal; else additive [B, 1, T, T]."""
        x: Tensor = self.embed_tokens(ids)
        for block in self.layers:
            x = block(x, cos, sin, mask)
        normed: Tensor = self.norm(x)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., width] -> fp32 [..., vocab]."""
        return F.linear(hidden, self.embed_tokens.weight.to(hidden.dtype)).float()


def shape_of(config: Mapping[str, object]) -> Shape:
    """The sizes that a `config_json` tells."""

    def whole(name: str) -> int:
        return int(str(config[name]))

    return Shape(
        vocab=whole("vocab_size"),
        width=whole("hidden_size"),
        layers=whole("num_hidden_layers"),
        heads=whole("num_attention_heads"),
        kv_heads=whole("num_key_value_heads"),
        head_dim=whole("head_dim"),
        inner=whole("intermediate_size"),
        theta=float(str(config["rope_theta"])),
        eps=float(str(config["rms_norm_eps"])),
        positions=whole("max_position_embeddings"),
    )


def rotary_tables(shape: Shape, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """cos and sin [positions, head_dim], fp32, split halves."""
    inverse = 1.0 / shape.theta ** (torch.arange(0, shape.head_dim, 2, device=device).float() / shape.head_dim)
    angles = torch.outer(torch.arange(shape.positions, device=device).float(), inverse)
    both = torch.cat([angles, angles], -1)
    return both.cos(), both.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE with split halves; cos and sin broadcast to x [B, heads, T, D]."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return x * cos + torch.cat([-second, first], -1) * sin


def config_json(shape: Shape, end_id: int) -> dict[str, object]:
    """Configuration with which transformers loads exported weights as Qwen3ForCausalLM."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": shape.vocab,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.inner,
        "rope_theta": shape.theta,
        "rms_norm_eps": shape.eps,
        "max_position_embeddings": shape.positions,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "eos_token_id": end_id,
        "torch_dtype": "float32",
    }
