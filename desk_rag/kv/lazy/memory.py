"""Decide whether an answer's chunks are materialised in the compute dtype or attended to as int8, by arithmetic.

Materialised, a context costs its int8 payloads while they are placed, and its slab for the whole answer;
lazily it costs the payloads for the whole answer, and a slab for prefix, question and answer alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from desk_rag.kv.positions import StitchPlan
    from desk_rag.model.language_model import ModelSpec

_HEADROOM = 0.9
"""Share of the free memory that may be planned with: allocators round up, and the question's pass needs some too."""
_INT8_SHARE = 0.52
"""Maximum size of int8 chunk KV, as a share of fp16; the bar that the store has for it."""


class AttentionPath(Enum):
    """The way an answer reads its chunks."""

    MATERIALIZE = "materialize"
    """Dequantised and rotated into a slab once, then attended to as any cache."""
    LAZY = "lazy"
    """Left as int8; rotated and widened by the attention kernel each time."""


@dataclass(frozen=True, slots=True)
class PathBytes:
    """Device memory that both paths need, beyond the model."""

    materialize: int
    lazy: int


def path_bytes(spec: ModelSpec, plan: StitchPlan, room: int) -> PathBytes:
    """Bytes for this plan and `room` tokens of question and answer."""
    per_token = spec.fp16_bytes_per_token * spec.dtype.itemsize // 2
    chunk_tokens = plan.num_slots - plan.prefix_tokens
    payloads = int(spec.fp16_bytes_per_token * chunk_tokens * _INT8_SHARE)
    return PathBytes(
        materialize=per_token * (plan.num_slots + room) + payloads,
        lazy=per_token * (plan.prefix_tokens + room) + payloads,
    )


def choose_attention(free_vram_bytes: int, spec: ModelSpec, plan: StitchPlan, *, room: int = 512) -> AttentionPath:
    """Materialise if it fits into the memory that is free before slab and payloads are allocated, else lazily.

    For models that `lazy.cache.supports` says no to, and on the CPU, there is nothing to choose: materialise.
    """
    fits = path_bytes(spec, plan, room).materialize <= free_vram_bytes * _HEADROOM
    return AttentionPath.MATERIALIZE if fits else AttentionPath.LAZY
