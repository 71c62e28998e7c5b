"""Selectors of tokens to recompute that others have published, to compare the product's own with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from desk_rag.errors import ConfigError
from desk_rag.kv.forward.sparse_attention import QueryRows
from desk_rag.kv.forward.sparse_decoder import SparseDecoder
from desk_rag.kv.forward.sparse_rows import ScatterCache, StopPass, run_rows
from desk_rag.kv.recompute import selectors, token_selection
from desk_rag.kv.recompute.policy import SelectorName
from desk_rag.kv.recompute.run import Selection, flat_tokens
from desk_rag.kv.recompute.selectors import SelectionContext, Selector
from desk_rag.kv.stitch import StitchedCache
from desk_rag.model.language_model import LanguageModel


def select(name: str, ratio: float, context: SelectionContext) -> Selection:
    """Select about `ratio` of the chunk tokens by one of `NAMES`. Raises ConfigError as the product's `select` does."""
    check(name)
    if name in _COMPARED:
        return selectors.select_by(_COMPARED[name], ratio, context)
    return selectors.select(SelectorName(name), ratio, context)


def check(name: str) -> None:
    """Raise ConfigError if there is no selector of this name."""
    if name not in NAMES:
        raise ConfigError(f"There is no selector '{name}'.", remedy=f"Known: {', '.join(NAMES)}.")


def needs_cache(name: str) -> bool:
    """True if the selector reads the stitched cache; others can select while chunk KV is still being loaded."""
    return name in (_DELTA_KV, _QUERY) if name in _COMPARED else SelectorName(name).needs_cache


def _random(context: SelectionContext, budget: int) -> list[int]:
    """Any tokens; the same ones for the same question and chunks."""
    generator = np.random.default_rng([*context.question_ids, *context.lengths])
    return [int(token) for token in generator.choice(sum(context.lengths), budget, replace=False)]


def _first_k(context: SelectionContext, budget: int) -> list[int]:
    """The first tokens of every chunk (EPIC, arXiv 2410.15332)."""
    count = max(1, token_selection.even_share(context.lengths, budget))
    return token_selection.beginnings(context.lengths, count)[:budget]


def _delta_kv(context: SelectionContext, budget: int) -> list[int]:
    """Tokens whose keys and values at layer 1 differ most from full prefill (CacheBlend, EuroSys 2025)."""
    scores = deviation(context.model, context.stitched, context.chunk_ids, decoder=context.decoder)
    return token_selection.best(token_selection.on_host(scores), budget)


def _query(context: SelectionContext, budget: int) -> list[int]:
    """Tokens that the question attends to over the stitched cache (ProphetKV, arXiv 2602.02579)."""
    layers = range(context.model.spec.num_layers)
    return token_selection.best(selectors.question_scores(context, layers, partial(torch.mean, dim=(0, 1))), budget)


_DELTA_KV, _QUERY = "delta-kv", "query"
_COMPARED: dict[str, Selector] = {"random": _random, "first-k": _first_k, _DELTA_KV: _delta_kv, _QUERY: _query}
NAMES = (*_COMPARED, *(name.value for name in SelectorName))
"""Names of all selectors, those for comparison first."""


def deviation(
    model: LanguageModel,
    stitched: StitchedCache,
    chunk_token_ids: Sequence[Sequence[int]],
    depth: int = 1,
    *,
    decoder: SparseDecoder | None = None,
) -> torch.Tensor:
    """KV deviation of each chunk token from full prefill at layer `depth`, fp32 [chunk tokens].

    Squared distances; keys and values each in units of their own mean square, so that neither dominates. Costs `depth`
    layers of full prefill and the projections of one more. (CacheBlend, EuroSys 2025, section 4.3: the deviation of the
    first layers predicts that of deeper ones.) `decoder`: see `run_rows`.
    """
    plan = stitched.plan
    rows = QueryRows.of(model, np.arange(plan.prefix_tokens, plan.num_slots))
    recording = _RecordingCache(stitched, rows, depth)
    run_rows(model, recording, flat_tokens(plan, chunk_token_ids), rows, logits=False, decoder=decoder)
    assert recording.recomputed is not None
    chunk_slots = slice(plan.prefix_tokens, plan.num_slots)
    slab = stitched.cache.layers[depth]
    total = torch.zeros(plan.num_slots - plan.prefix_tokens, device=model.device)
    for recomputed, stored in zip(recording.recomputed, (slab.key_slab, slab.value_slab), strict=True):
        exact = recomputed[0, :, chunk_slots].float()
        gap = (exact - stored[0, :, chunk_slots].float()).square().sum((0, 2))
        total += gap / exact.square().sum((0, 2)).mean()
    return total


class _RecordingCache(ScatterCache):
    """Scatters into copies of the slabs, and ends the pass once layer `depth` has written its keys."""

    def __init__(self, stitched: StitchedCache, rows: QueryRows, depth: int) -> None:
        super().__init__(stitched.cache, rows)
        self._depth = depth
        self.recomputed: tuple[torch.Tensor, torch.Tensor] | None = None

    def slabs(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = (slab.narrow(2, 0, self._rows.total).clone() for slab in super().slabs(layer))
        return keys, values

    def filled(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if layer == self._depth:
            self.recomputed = keys, values
            raise StopPass
        return keys, values
