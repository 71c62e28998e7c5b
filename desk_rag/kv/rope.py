"""Rotate pre-RoPE keys to their positions: the torch reference and its convention.

Rotation is by +theta, in fp32, with one rounding at the end; which dimensions are turned together is the model's
(`model.layers`), and only halves are known to the kernels. The tables are computed by the model's own rotary
module, which covers llama3, YaRN and linear scaling, partial rotary dimensions and attention scaling.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from desk_rag.errors import UnsupportedModel
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.layers.rotary import NO_POSITION, half_tables, rotate

__all__ = ["RotaryTables", "build_tables", "rotate", "rotate_into"]


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """cos and sin for every position, on the model's device."""

    cos: tuple[torch.Tensor, ...]
    """One fp32 [positions, R / 2] per distinct table, attention scaling included; R may be less than head_dim."""
    sin: tuple[torch.Tensor, ...]
    table_of_layer: tuple[int, ...]
    """Index of each layer's table; models with local and global layers have two tables, layers without position one
    whose angles are zero."""
    interleaved: bool = False
    """Neighbouring dimensions are turned together, instead of halves; the kernels do not know that."""

    @property
    def num_positions(self) -> int:
        return int(self.cos[0].shape[0])


def build_tables(model: LanguageModel, num_positions: int) -> RotaryTables:
    """Build tables for positions 0..num_positions-1; raises UnsupportedModel beyond the model's context."""
    if num_positions > model.spec.max_context:
        raise UnsupportedModel(
            f"A context of {num_positions} tokens is too long: '{model.spec.name}' supports {model.spec.max_context}.",
            remedy="Use a model with a longer context.",
        )
    layout = model.spec.layout
    positions = torch.arange(num_positions, device=model.device)
    rotated = [name for name in layout.tables if name != NO_POSITION]
    tables_by_name = {name: half_tables(model.module.model, name, positions) for name in rotated}
    width = next((cos.shape[-1] for cos, _ in tables_by_name.values()), model.spec.head_dim // 2)
    still = torch.zeros(num_positions, width, device=model.device)
    pairs = [tables_by_name.get(name, (still + 1.0, still)) for name in layout.tables]
    return RotaryTables(
        tuple(cos for cos, _ in pairs), tuple(sin for _, sin in pairs), layout.table_of_layer, layout.interleaved
    )


def rotate_into(
    keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, out: torch.Tensor, *, interleaved: bool = False
) -> None:
    """Rotate keys into `out` [..., T, D] of any float dtype, rounding once."""
    turned = 2 * cos.shape[-1]
    half = turned // 2
    halves = (slice(0, turned, 2), slice(1, turned, 2)) if interleaved else (slice(0, half), slice(half, turned))
    first, second = (keys[..., part] for part in halves)
    out[..., halves[0]] = torch.addcmul(first * cos, second, sin, value=-1)
    out[..., halves[1]] = torch.addcmul(second * cos, first, sin)
    if turned < keys.shape[-1]:
        out[..., turned:] = keys[..., turned:]
