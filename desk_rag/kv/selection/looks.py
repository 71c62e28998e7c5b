"""What the model itself tells about a stitched cache: where the question looks, which keys would come out differently.

Knows partial passes over a stitched cache; chooses nothing. Neither look changes what is stitched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from desk_rag.kv.recompute import flat_tokens, require_reordered
from desk_rag.kv.rows import Enough, Probe, Rows, ScatterCache, run_rows
from desk_rag.kv.stitch import StitchedCache
from desk_rag.model import LanguageModel


def question_attention(
    model: LanguageModel, stitched: StitchedCache, question_ids: Sequence[int], layers: Sequence[int]
) -> torch.Tensor:
    """Attention weights fp32 [len(layers), heads, question, chunk tokens] of the question's tokens over `stitched`.

    Costs a pass of the question through the layers up to the highest of `layers`. Its keys are left behind the chunks,
    where the question's own pass overwrites them.
    """
    require_reordered(stitched.plan)
    start = stitched.plan.next_position
    rows = Rows.of(model, range(start, start + len(question_ids)))
    probe = Probe(frozenset(layers), len(question_ids))
    until = max(layers) + 1
    cache = ScatterCache(stitched.cache, rows)
    run_rows(model, cache, question_ids, rows, logits=False, probe=probe, until=until)
    seen = torch.stack([probe.seen[layer] for layer in layers])
    return seen[..., stitched.plan.prefix_tokens : stitched.plan.num_slots]


def deviation(
    model: LanguageModel, stitched: StitchedCache, chunk_token_ids: Sequence[Sequence[int]], depth: int = 1
) -> torch.Tensor:
    """How far each chunk token's keys and values at layer `depth` are from those of full prefill; fp32 [chunk tokens].

    Costs `depth` layers of full prefill and the projections of one more. Squared distances, keys and values each in
    units of their own mean square, so that neither drowns the other. (CacheBlend, EuroSys 2025, section 4.3: KV
    deviation of the first layers foretells that of the deeper ones.)
    """
    plan = stitched.plan
    require_reordered(plan)
    rows = Rows.of(model, range(plan.prefix_tokens, plan.num_slots))
    peek = _Peek(stitched, rows, depth)
    run_rows(model, peek, flat_tokens(plan, chunk_token_ids), rows, logits=False)
    assert peek.fresh is not None
    here = slice(plan.prefix_tokens, plan.num_slots)
    slab = stitched.cache.layers[depth]
    total = torch.zeros(plan.num_slots - plan.prefix_tokens, device=model.device)
    for fresh, stored in zip(peek.fresh, (slab.key_slab, slab.value_slab), strict=True):
        exact = fresh[0].float()
        gap = (exact - stored[0, :, here].float()).square().sum((0, 2))
        total += gap / exact.square().sum((0, 2)).mean()
    return total


class _Peek(ScatterCache):
    """Keeps what layer `depth` computes and ends the pass; scatters earlier layers into copies."""

    def __init__(self, stitched: StitchedCache, rows: Rows, depth: int) -> None:
        super().__init__(stitched.cache, rows)
        self._depth = depth
        self.fresh: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if layer_idx == self._depth:
            self.fresh = (key_states, value_states)
            raise Enough
        slab, rows = self._layers[layer_idx], self._rows
        keys, values = (t[:, :, : rows.total].clone() for t in (slab.key_slab, slab.value_slab))
        keys.index_copy_(2, rows.slots, key_states)
        values.index_copy_(2, rows.slots, value_states)
        return keys, values
