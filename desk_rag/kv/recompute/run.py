"""Chosen chunk tokens are computed anew with full attention, in the same pass as the question.

Knows a stitched cache and which of its slots were chosen; does not know who chose them or why. Between nothing, which
is plain stitching, and everything, which is full prefill, the ratio is a knob at run time. The chosen tokens and the
question are the query rows of one layer-wise pass: at every layer the fresh keys and values of all chosen tokens lie in
the slab before any row attends, so a chosen token reads the chunks before its own as if they had been prefilled with it
(CacheBlend, EuroSys 2025, section 4.2; here with the question in the same pass instead of a second one).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from desk_rag.errors import ConfigError
from desk_rag.kv.forward.sparse_attention import Rows
from desk_rag.kv.forward.sparse_decoder import LeanRows
from desk_rag.kv.forward.sparse_rows import ScatterCache, run_rows
from desk_rag.kv.positions import Positions, StitchPlan
from desk_rag.kv.rope import RotaryTables
from desk_rag.kv.stitch import StitchedCache
from desk_rag.model.language_model import LanguageModel


@dataclass(frozen=True, slots=True)
class Selection:
    """Which chunk tokens are computed anew."""

    slots: tuple[int, ...]
    """Ascending slots of the stitched cache, all of them of chunks."""
    ratio: float
    """Share of all chunk tokens that these are: what is done, not what was asked for."""

    @classmethod
    def of(cls, slots: Iterable[int], plan: StitchPlan) -> Selection:
        """These slots of `plan`, in any order and with repetitions."""
        chosen = tuple(sorted(set(slots)))
        assert not chosen or (chosen[0] >= plan.prefix_tokens and chosen[-1] < plan.num_slots), "slots of chunks only"
        return cls(chosen, len(chosen) / max(plan.num_slots - plan.prefix_tokens, 1))

    @classmethod
    def everything(cls, plan: StitchPlan) -> Selection:
        """All chunk tokens: full prefill behind the stored prefix."""
        return cls.of(range(plan.prefix_tokens, plan.num_slots), plan)


NOTHING = Selection((), 0.0)
"""Plain stitching."""


def recompute(
    model: LanguageModel,
    stitched: StitchedCache,
    chunk_token_ids: Sequence[Sequence[int]],
    question_ids: Sequence[int],
    selection: Selection,
    tables: RotaryTables,
    *,
    lean: LeanRows | None = None,
) -> torch.Tensor:
    """Run the chosen chunk tokens and the question over `stitched`; logits [vocab] of the question's last token.

    `chunk_token_ids` are the chunks' tokens in the plan's order, frames included. Afterwards the cache holds the
    context and the question, ready for decoding at position `next_position + len(question_ids)`. Where loading goes
    by layers, each layer waits for its own chunks only. `lean`: see `run_rows`. Raises ConfigError for the ablation
    positions.
    """
    plan, cache = stitched.plan, stitched.cache
    start = plan.next_position
    if not selection.slots:
        # Not only equal: the very same pass, so that nothing changes for those who do not want recompute.
        logits = model.forward(torch.tensor(list(question_ids), device=model.device), cache, start, logits=True)
        assert logits is not None
        return logits
    require_reordered(plan)
    assert start + len(question_ids) <= tables.num_positions, "positions past the range the tables were built for"
    flat = flat_tokens(plan, chunk_token_ids)
    slots = [*selection.slots, *range(start, start + len(question_ids))]
    tokens = [flat[slot - plan.prefix_tokens] for slot in selection.slots]
    rows = Rows.of(model, slots)
    logits = run_rows(model, ScatterCache(cache, rows), [*tokens, *question_ids], rows, lean=lean)
    assert logits is not None
    cache.set_length(rows.total)
    return logits


def require_reordered(plan: StitchPlan) -> None:
    """Raises ConfigError where slot and position differ: what comes before a token is then not well defined."""
    if plan.positions is not Positions.REORDERED:
        raise ConfigError(
            f"Chunk tokens cannot be recomputed at '{plan.positions.value}' positions, where chunks overlap.",
            remedy="Use 'reordered' positions, or a recompute ratio of 0.",
        )


def flat_tokens(plan: StitchPlan, chunk_token_ids: Sequence[Sequence[int]]) -> list[int]:
    """The chunks' tokens one after the other, as they lie behind the prefix."""
    lengths = [len(ids) for ids in chunk_token_ids]
    assert lengths == [place.num_tokens for place in plan.placements], "plan and chunks differ in length"
    return list(chain.from_iterable(chunk_token_ids))
