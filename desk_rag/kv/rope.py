"""Rotate pre-RoPE keys to their positions: the torch reference and its convention.

The convention of all paths: split halves (dimension i is paired with i + R/2, as in Llama, Qwen and transformers),
rotation by +theta, arithmetic in fp32, one rounding at the end. The tables are computed by the model's own rotary
module, which covers llama3, YaRN and linear scaling, partial rotary dimensions and attention scaling. (RoFormer, arXiv
2104.09864; layout as in `apply_rotary_pos_emb` of transformers.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from desk_rag.errors import UnsupportedModel
from desk_rag.model.language_model import LanguageModel


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """cos and sin for every position, on the model's device."""

    cos: tuple[torch.Tensor, ...]
    """Per distinct table fp32 [positions, R / 2], attention scaling included; R may be less than head_dim."""
    sin: tuple[torch.Tensor, ...]
    table_of_layer: tuple[int, ...]
    """Index of each layer's table; models with local and global layers have two tables."""

    @property
    def num_positions(self) -> int:
        return int(self.cos[0].shape[0])


def build_tables(model: LanguageModel, num_positions: int) -> RotaryTables:
    """Build tables for positions 0..num_positions-1; raises UnsupportedModel beyond the model's context."""
    if num_positions > model.spec.max_context:
        raise UnsupportedModel(
            f"A context of {num_positions} tokens is too long: '{model.spec.name}' supports {model.spec.max_context}.",
            remedy="Lower [answer] context_tokens or top_k.",
        )
    layer_types = getattr(model.module.config, "layer_types", None) or ["full_attention"] * model.spec.num_layers
    rotary = model.module.model.rotary_emb
    per_type = isinstance(getattr(rotary, "rope_type", None), dict)
    kinds = sorted(set(layer_types)) if per_type else [None]
    positions = torch.arange(num_positions, device=model.device)[None]
    probe = torch.zeros(1, device=model.device, dtype=torch.float32)
    cosines, sines = [], []
    for kind in kinds:
        with torch.inference_mode():
            cos, sin = rotary(probe, positions, kind) if kind else rotary(probe, positions)
        half = cos.shape[-1] // 2
        if not torch.equal(cos[0, :, :half], cos[0, :, half:]):
            raise UnsupportedModel(f"The rotary embedding of '{model.spec.name}' does not pair halves of a head.")
        cosines.append(cos[0, :, :half].clone().contiguous())
        sines.append(sin[0, :, :half].clone().contiguous())
    table_of_layer = tuple(kinds.index(kind) if per_type else 0 for kind in layer_types)
    return RotaryTables(tuple(cosines), tuple(sines), table_of_layer)


def rotate(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate keys fp32 [..., T, D] by cos and sin fp32 [T, R / 2]; dimensions past R stay unchanged."""
    half = cos.shape[-1]
    first, second = keys[..., :half], keys[..., half : 2 * half]
    parts = [first * cos - second * sin, second * cos + first * sin]
    if 2 * half < keys.shape[-1]:
        parts.append(keys[..., 2 * half :])
    return torch.cat(parts, -1)


def rotate_into(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, out: torch.Tensor) -> None:
    """Rotate keys into `out` [..., T, D] of any float dtype, rounding once."""
    half = cos.shape[-1]
    first, second = keys[..., :half], keys[..., half : 2 * half]
    out[..., :half] = torch.addcmul(first * cos, second, sin, value=-1)
    out[..., half : 2 * half] = torch.addcmul(second * cos, first, sin)
    if 2 * half < keys.shape[-1]:
        out[..., 2 * half :] = keys[..., 2 * half :]
