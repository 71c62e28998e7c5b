"""One door to all selectors: a name, a ratio and what is known of the answer become a Selection.

Knows which selector needs what; the looking, the picking and the recomputing are done elsewhere. The question is never
part of a selection: it is always computed, all of it. (The published code of CacheBlend counts its last token only.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from desk_rag.errors import ConfigError
from desk_rag.kv.forward.sparse_decoder import LeanRows
from desk_rag.kv.recompute import attention_scores, token_selection
from desk_rag.kv.recompute.auxiliary_model import Auxiliary
from desk_rag.kv.recompute.policy import SelectorName
from desk_rag.kv.recompute.run import NOTHING, Selection, require_reordered
from desk_rag.kv.recompute.token_alignment import overlapping, token_spans
from desk_rag.kv.stitch import StitchedCache
from desk_rag.model.language_model import LanguageModel

_EDGE = 4
"""Chunk beginnings that the default always takes, as far as they fit into three quarters of the ratio: a chunk's
first tokens were computed without what stands before it, which all later ones lean on. Measured on the embedded reader
with 5 chunks at 20 %: 2 leave twice the divergence from full prefill that 4 leave; 6 and 8 take room from the rest."""
_LOOKING = (0.3, 0.7)
"""Depths between which the default watches the question: earlier layers look at words, later ones at the answer."""


@dataclass(frozen=True, slots=True)
class SelectionContext:
    """What is known of the answer in hand."""

    model: LanguageModel
    stitched: StitchedCache
    """Read only by the selectors that say `needs_cache`; the others look at its plan alone."""
    chunk_ids: Sequence[Sequence[int]]
    """Token ids of the chunks in the plan's order, frames included."""
    question_ids: Sequence[int]
    texts: Sequence[str] = ()
    """The chunks' texts in the plan's order; for the auxiliary model, as is the question."""
    question: str = ""
    auxiliary: Auxiliary | None = None
    lean: LeanRows | None = None
    """The model as looking at the cache wants it; worked out for every look where it is missing."""

    @property
    def lengths(self) -> list[int]:
        """Tokens of each chunk."""
        return [place.num_tokens for place in self.stitched.plan.placements]


def select(name: SelectorName, ratio: float, context: SelectionContext) -> Selection:
    """Choose about `ratio` of the chunk tokens; 0 is none of them and 1 all, whoever chooses.

    Raises ConfigError for ablation positions and for an auxiliary selector without its model.
    """
    plan = context.stitched.plan
    total = plan.num_slots - plan.prefix_tokens
    budget = token_selection.budget_of(ratio, total)
    if not budget:
        return NOTHING
    require_reordered(plan)
    if budget == total:
        return Selection.everything(plan)
    chosen = _SELECTORS[name](context, budget)
    return Selection.of((plan.prefix_tokens + token for token in chosen), plan)


def _first_k(context: SelectionContext, budget: int) -> list[int]:
    return token_selection.beginnings(context.lengths, max(1, token_selection.even_share(context.lengths, budget)))[
        :budget
    ]


def _delta_kv(context: SelectionContext, budget: int) -> list[int]:
    found = attention_scores.deviation(context.model, context.stitched, context.chunk_ids, lean=context.lean)
    return token_selection.best(token_selection.on_host(found), budget)


def _query(context: SelectionContext, budget: int) -> list[int]:
    return token_selection.best(_looked_at(context, range(context.model.spec.num_layers), _mean), budget)


def _edge_query(context: SelectionContext, budget: int) -> list[int]:
    lengths = context.lengths
    edges = token_selection.beginnings(lengths, min(_EDGE, token_selection.even_share(lengths, budget * 3 // 4)))
    scores = _looked_at(context, watched_layers(context.model), _hardest)
    scores[edges] = np.inf
    return token_selection.best(scores, budget)


def _mean(weights: torch.Tensor) -> torch.Tensor:
    return weights.mean((0, 1))


def _hardest(weights: torch.Tensor) -> torch.Tensor:
    """Each word of the question may ask for something else, so the one that looks hardest counts, not their mean."""
    return weights.amax(1).mean(0)


def _looked_at(
    context: SelectionContext, layers: Sequence[int], fold: Callable[[torch.Tensor], torch.Tensor]
) -> npt.NDArray[np.float32]:
    """fp32 [chunk tokens]: the mean over `layers` of what `fold` makes of weights [heads, question, chunk tokens]."""
    model, stitched, ids = context.model, context.stitched, context.question_ids
    seen = attention_scores.question_attention(model, stitched, ids, layers, fold=fold, lean=context.lean)
    return token_selection.on_host(seen.mean(0))


def watched_layers(model: LanguageModel) -> list[int]:
    """The middle layers; of a model with sliding layers those that see everything, if there are any among them."""
    count = model.spec.num_layers
    middle = list(range(int(count * _LOOKING[0]), max(int(count * _LOOKING[1]), int(count * _LOOKING[0]) + 1)))
    kinds = getattr(model.module.config, "layer_types", None) or ["full_attention"] * count
    return [layer for layer in middle if kinds[layer] == "full_attention"] or middle


def _aux(context: SelectionContext, budget: int) -> list[int]:
    return _by_auxiliary(context, budget, strict=False)


def _aux_strict(context: SelectionContext, budget: int) -> list[int]:
    return _by_auxiliary(context, budget, strict=True)


def _by_auxiliary(context: SelectionContext, budget: int, *, strict: bool) -> list[int]:
    if context.auxiliary is None:
        raise ConfigError(
            "The selector 'aux' needs an auxiliary model.", remedy="Name one, or use the selector 'edge-query'."
        )
    assert len(context.texts) == len(context.chunk_ids), "the auxiliary model reads texts"
    looked = context.auxiliary.look(context.texts, context.question)
    weights = token_selection.on_host(torch.cat([scores.weights for scores in looked]))
    lengths = [len(scores.spans) for scores in looked]
    share = token_selection.budget_of(budget / sum(context.lengths), len(weights))
    if strict:
        picked = set(token_selection.windows(token_selection.best(weights, share), lengths))
    else:
        picked = set(token_selection.windows_within(weights, lengths, share))
    chosen: list[int] = []
    start, first = 0, 0
    for text, ids, scores in zip(context.texts, context.chunk_ids, looked, strict=True):
        wanted = [span for index, span in enumerate(scores.spans) if start + index in picked]
        spans = token_spans(context.model.prompt, text)
        assert len(spans) == len(ids), "chunk ids and text belong together"
        chosen += [first + token for token in overlapping(spans, wanted)]
        start, first = start + len(scores.spans), first + len(ids)
    return chosen


_SELECTORS: dict[SelectorName, Callable[[SelectionContext, int], list[int]]] = {
    SelectorName.FIRST_K: _first_k,
    SelectorName.DELTA_KV: _delta_kv,
    SelectorName.AUX: _aux,
    SelectorName.AUX_STRICT: _aux_strict,
    SelectorName.QUERY: _query,
    SelectorName.EDGE_QUERY: _edge_query,
}
