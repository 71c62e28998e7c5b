"""Rotary position of any model that transformers has: its tables, and the rotation of keys by them.

Two conventions pair the dimensions that are turned together: halves (i with i + R/2: Llama, Qwen, Gemma) and neighbours
(2i with 2i + 1: GLM, Cohere, Ernie). Which one a model has is not read off its name but tried (`attention_layout`). A
layer without position is a layer whose angles are all zero. (RoFormer, arXiv 2104.09864)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

AXES = 3
"""Number of axes of positions in models that also read images (M-RoPE); on text they are equal."""


@dataclass(frozen=True, slots=True)
class TableName:
    """Origin of a rotary table."""

    module: str = ""
    """Attribute of the decoder, such as 'rotary_emb'; empty for layers without position."""
    kind: str = ""
    """Layer type, for modules that keep a table per type."""


NO_POSITION = TableName()


def table_names(decoder: Any) -> list[TableName]:
    """The tables that a decoder has, as it names them."""
    names = []
    for attribute, child in decoder.named_children():
        if "Rotary" in type(child).__name__:
            kinds = child.rope_type if isinstance(getattr(child, "rope_type", None), dict) else {}
            names += [TableName(attribute, str(kind)) for kind in sorted(kinds)] or [TableName(attribute)]
        elif isinstance(child, torch.nn.ModuleDict):
            names += [TableName(attribute, kind) for kind in child if "Rotary" in type(child[kind]).__name__]
    return names


def half_tables(decoder: Any, name: TableName, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin at `positions` int64 [N], fp32 [N, R / 2], the attention scaling of the model included."""
    module = getattr(decoder, name.module)
    if isinstance(module, torch.nn.ModuleDict):
        module, name = module[name.kind], TableName(name.module)
    probe = torch.zeros(1, device=positions.device, dtype=torch.float32)
    with torch.inference_mode():
        tables = _called(module, probe, positions[None], name.kind)
    if isinstance(tables, torch.Tensor):  # complex numbers, as in Llama 4
        tables = (tables.real, tables.imag)
    cos, sin = (table.reshape(-1, *table.shape[-2:])[0].float() for table in tables)
    width = cos.shape[-1]
    half = width // 2
    if width % 2 == 0 and torch.equal(cos[:, :half], cos[:, half:]) and torch.equal(sin[:, :half], sin[:, half:]):
        cos, sin = cos[:, :half], sin[:, :half]
    elif width % 2 == 0 and torch.equal(cos[:, ::2], cos[:, 1::2]) and torch.equal(sin[:, ::2], sin[:, 1::2]):
        cos, sin = cos[:, ::2], sin[:, ::2]
    return cos.clone().contiguous(), sin.clone().contiguous()


def _called(module: Any, probe: torch.Tensor, positions: torch.Tensor, kind: str) -> Any:
    if kind:
        return module(probe, positions, kind)
    try:
        return module(probe, positions)
    except (RuntimeError, IndexError, ValueError):
        return module(probe, positions[None].expand(AXES, -1, -1))


def rotate(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool = False) -> torch.Tensor:
    """Rotate keys fp32 [..., T, D] by cos and sin fp32 [T, R / 2]; dimensions past R stay unchanged."""
    turned = 2 * cos.shape[-1]
    if interleaved:
        first, second = keys[..., :turned:2], keys[..., 1:turned:2]
        pairs = torch.stack([first * cos - second * sin, second * cos + first * sin], -1).flatten(-2)
        return torch.cat([pairs, keys[..., turned:]], -1)
    half = turned // 2
    first, second = keys[..., :half], keys[..., half:turned]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, keys[..., turned:]], -1)


def unrotate(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool = False) -> torch.Tensor:
    """Undo `rotate`, the scaling in the tables included."""
    scale = cos * cos + sin * sin
    return rotate(keys, cos / scale, -sin / scale, interleaved=interleaved)
