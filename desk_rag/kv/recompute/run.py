"""Selective recompute: run selected chunk tokens with full attention, in the same pass as the question.

The ratio of selected tokens ranges from 0, plain stitching, to 1, full prefill. Selected tokens and question are the
query rows of one layer-wise pass. Each layer writes the new keys and values of all selected tokens into the cache
before any row attends, so a selected token attends to earlier chunks as if it had been prefilled with them (CacheBlend,
EuroSys 2025, section 4.2; here the question is in the same pass instead of a second one).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from desk_rag.kv.forward.sparse_attention import QueryRows
from desk_rag.kv.forward.sparse_decoder import SparseDecoder
from desk_rag.kv.forward.sparse_rows import ScatterCache, run_rows
from desk_rag.kv.positions import StitchPlan
from desk_rag.kv.rope import RotaryTables
from desk_rag.kv.stitch import StitchedCache
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.memory.steps import in_steps, tokens_at_once


@dataclass(frozen=True, slots=True)
class Selection:
    """The chunk tokens to recompute."""

    slots: tuple[int, ...]
    """Ascending cache slots, all of them chunk tokens."""
    ratio: float
    """Effective share of all chunk tokens, which may differ from the requested ratio."""

    @classmethod
    def of(cls, slots: Iterable[int], plan: StitchPlan) -> Selection:
        """Select these slots of `plan`, given in any order and with repetitions."""
        selected = tuple(sorted(set(slots)))
        assert not selected or (selected[0] >= plan.prefix_tokens and selected[-1] < plan.num_slots), "chunk slots only"
        return cls(selected, len(selected) / max(plan.num_slots - plan.prefix_tokens, 1))

    @classmethod
    def everything(cls, plan: StitchPlan) -> Selection:
        """Select all chunk tokens: full prefill behind the stored prefix."""
        return cls.of(range(plan.prefix_tokens, plan.num_slots), plan)


NOTHING = Selection((), 0.0)
"""Select no token: plain stitching."""


def recompute(
    model: LanguageModel,
    stitched: StitchedCache,
    chunk_token_ids: Sequence[Sequence[int]],
    question_ids: Sequence[int],
    selection: Selection,
    tables: RotaryTables,
    *,
    decoder: SparseDecoder | None = None,
) -> torch.Tensor:
    """Run selected chunk tokens and the question over `stitched`; logits [vocab] of the last token.

    `chunk_token_ids` are the chunks' tokens in the plan's order, frames included. Afterwards the cache holds the
    context and the question, ready for decoding at position `next_position + len(question_ids)`. With layer-wise
    loading, each layer waits only for its own chunks. `decoder`: see `run_rows`.
    """
    plan, cache = stitched.plan, stitched.cache
    start = plan.next_position
    if not selection.slots:
        # The same pass as without recompute, so that a ratio of 0 gives identical results.
        logits = model.forward(torch.tensor(list(question_ids), device=model.device), cache, start, logits=True)
        assert logits is not None
        return logits
    assert start + len(question_ids) <= tables.num_positions, "positions past the range the tables were built for"
    flat = flat_tokens(plan, chunk_token_ids)
    slots = [*selection.slots, *range(start, start + len(question_ids))]
    tokens = [*(flat[slot - plan.prefix_tokens] for slot in selection.slots), *question_ids]

    def run(begin: int, end: int) -> torch.Tensor | None:
        rows = QueryRows.of(model, slots[begin:end])
        last = end == len(slots)
        return run_rows(model, ScatterCache(cache, rows), tokens[begin:end], rows, logits=last, decoder=decoder)

    total = slots[-1] + 1
    most = tokens_at_once(model, total - len(slots), len(slots))
    result = in_steps(run, len(slots), most, model.device)
    assert result is not None
    cache.set_length(total)
    return result


def flat_tokens(plan: StitchPlan, chunk_token_ids: Sequence[Sequence[int]]) -> list[int]:
    """Token ids of all chunks in slot order."""
    lengths = [len(ids) for ids in chunk_token_ids]
    assert lengths == [place.num_tokens for place in plan.placements], "plan and chunks differ in length"
    return list(chain.from_iterable(chunk_token_ids))
