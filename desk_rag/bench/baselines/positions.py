"""Position schemes that answers do not use: all chunks start right behind the prefix (ablations)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from desk_rag.errors import UnsupportedModel
from desk_rag.kv.positions import Placement, StitchPlan, plan
from desk_rag.kv.stitch import has_sliding_layers
from desk_rag.model.language_model import LanguageModel


class Overlapping(Enum):
    """Position schemes in which all chunks begin right behind the prefix, by the place of the question."""

    COMPOSITE = "composite"
    """The question stands behind the sum of the chunks' lengths."""
    PARALLEL = "parallel"
    """The question stands behind the longest chunk (APE, arXiv 2502.05431)."""


def overlapping_plan(
    model: LanguageModel, prefix_tokens: int, lengths: Sequence[int], scheme: Overlapping
) -> StitchPlan:
    """Assign consecutive slots, and to every chunk the positions right behind the prefix.

    Raises UnsupportedModel for models with sliding-window layers, whose masks require slot and position to be equal.
    """
    if has_sliding_layers(model):
        raise UnsupportedModel(f"Position scheme '{scheme.value}' is not exact for models with sliding-window layers.")
    reordered = plan(prefix_tokens, lengths)
    placements = tuple(Placement(one.slot, prefix_tokens, one.num_tokens) for one in reordered.placements)
    behind = max(lengths, default=0) if scheme is Overlapping.PARALLEL else sum(lengths)
    return StitchPlan(prefix_tokens, placements, prefix_tokens + behind)
