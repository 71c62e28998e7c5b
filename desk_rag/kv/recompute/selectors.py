"""Select the chunk tokens to recompute, by the name of a selector and a ratio.

The question is never part of a selection: all of its tokens are always computed. (CacheBlend's published code counts
only its last token.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from desk_rag.errors import ConfigError
from desk_rag.kv.forward.sparse_decoder import SparseDecoder
from desk_rag.kv.recompute import attention_scores, token_selection
from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel
from desk_rag.kv.recompute.policy import SelectorName
from desk_rag.kv.recompute.run import NOTHING, Selection
from desk_rag.kv.recompute.token_alignment import overlapping, token_spans
from desk_rag.kv.stitch import StitchedCache
from desk_rag.model.language_model import LanguageModel

_EDGE = 4
"""First tokens per chunk that the default selector always takes, within three quarters of the budget: they were
prefilled without the chunks before them, and later tokens rely on them (bench/LOG.md, "Edge tokens")."""
_OBSERVED_DEPTHS = (0.3, 0.7)
"""Relative depths between which the default selector observes the question's attention: the middle layers."""


@dataclass(frozen=True, slots=True)
class SelectionContext:
    """The inputs of a selector for one answer."""

    model: LanguageModel
    stitched: StitchedCache
    """Selectors without `needs_cache` read only its plan."""
    chunk_ids: Sequence[Sequence[int]]
    """Token ids of the chunks in the plan's order, frames included."""
    question_ids: Sequence[int]
    texts: Sequence[str] = ()
    """Texts of the chunks in the plan's order; only the auxiliary model needs them and the question."""
    question: str = ""
    auxiliary: AuxiliaryModel | None = None
    decoder: SparseDecoder | None = None
    """The model prepared for sparse passes; see `run_rows`."""

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each chunk."""
        return [place.num_tokens for place in self.stitched.plan.placements]


Selector = Callable[[SelectionContext, int], list[int]]
"""Returns at most about the given number of chunk tokens, numbered from the first chunk's first."""


def select(name: SelectorName, ratio: float, context: SelectionContext) -> Selection:
    """Select about `ratio` of the chunk tokens; 0 selects none and 1 all, by every selector.

    Raises ConfigError for an auxiliary selector without an auxiliary model.
    """
    return select_by(_SELECTORS[name], ratio, context)


def select_by(selector: Selector, ratio: float, context: SelectionContext) -> Selection:
    """Select as `select` does, by a selector that is given itself."""
    plan = context.stitched.plan
    total = plan.num_slots - plan.prefix_tokens
    budget = token_selection.budget_of(ratio, total)
    if not budget:
        return NOTHING
    if budget == total:
        return Selection.everything(plan)
    chosen = selector(context, budget)
    return Selection.of((plan.prefix_tokens + token for token in chosen), plan)


def _edge_query(context: SelectionContext, budget: int) -> list[int]:
    lengths = context.lengths
    edges = token_selection.beginnings(lengths, min(_EDGE, token_selection.even_share(lengths, budget * 3 // 4)))
    scores = question_scores(context, observed_layers(context.model), _max_over_question)
    scores[edges] = np.inf
    return token_selection.best(scores, budget)


def _max_over_question(weights: torch.Tensor) -> torch.Tensor:
    """Maximum over the question's tokens, since each may ask for something else; mean over the heads."""
    return weights.amax(1).mean(0)


def question_scores(
    context: SelectionContext, layers: Sequence[int], fold: Callable[[torch.Tensor], torch.Tensor]
) -> npt.NDArray[np.float32]:
    """fp32 [chunk tokens]: mean over `layers` of `fold`, which reduces weights [heads, question, chunk tokens]."""
    model, stitched, ids = context.model, context.stitched, context.question_ids
    scores = attention_scores.question_attention(model, stitched, ids, layers, fold=fold, decoder=context.decoder)
    return token_selection.on_host(scores.mean(0))


def observed_layers(model: LanguageModel) -> list[int]:
    """The middle layers; of these only the ones with full attention, if there are any."""
    count = model.spec.num_layers
    first, end = (int(count * depth) for depth in _OBSERVED_DEPTHS)
    middle = list(range(first, max(end, first + 1)))
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
    assert len(context.texts) == len(context.chunk_ids), "the auxiliary model needs the texts"
    auxiliary_scores = context.auxiliary.score(context.texts, context.question)
    weights = token_selection.on_host(torch.cat([scores.weights for scores in auxiliary_scores]))
    lengths = [len(scores.spans) for scores in auxiliary_scores]
    share = token_selection.budget_of(budget / sum(context.lengths), len(weights))
    if strict:
        selected = set(token_selection.windows(token_selection.best(weights, share), lengths))
    else:
        selected = set(token_selection.windows_within(weights, lengths, share))
    chosen: list[int] = []
    auxiliary_start, start = 0, 0
    for text, ids, scores in zip(context.texts, context.chunk_ids, auxiliary_scores, strict=True):
        selected_spans = [span for index, span in enumerate(scores.spans) if auxiliary_start + index in selected]
        spans = token_spans(context.model.prompt, text)
        assert len(spans) == len(ids), "chunk ids and text belong together"
        chosen += [start + token for token in overlapping(spans, selected_spans)]
        auxiliary_start, start = auxiliary_start + len(scores.spans), start + len(ids)
    return chosen


_SELECTORS: dict[SelectorName, Selector] = {
    SelectorName.AUX: _aux,
    SelectorName.AUX_STRICT: _aux_strict,
    SelectorName.EDGE_QUERY: _edge_query,
}
