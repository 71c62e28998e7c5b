"""What the model itself tells about a stitched cache: where the question looks, which keys would come out differently.

Knows partial passes over a stitched cache; chooses nothing. Neither look changes what is stitched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from desk_rag.kv.forward.sparse_attention import Probe, Rows
from desk_rag.kv.forward.sparse_decoder import LeanRows
from desk_rag.kv.forward.sparse_rows import Enough, ScatterCache, run_rows
from desk_rag.kv.recompute.run import flat_tokens, require_reordered
from desk_rag.kv.stitch import StitchedCache
from desk_rag.model.language_model import LanguageModel


def question_attention(
    model: LanguageModel,
    stitched: StitchedCache,
    question_ids: Sequence[int],
    layers: Sequence[int],
    *,
    fold: Callable[[torch.Tensor], torch.Tensor] = lambda weights: weights,
    lean: LeanRows | None = None,
) -> torch.Tensor:
    """Attention weights fp32 [len(layers), heads, question, chunk tokens] of the question's tokens over `stitched`.

    `fold` takes one layer's [heads, question, chunk tokens] to what is kept of it: for a long context all layers' would
    be hundreds of megabytes. Costs a pass of the question through the layers up to the highest of `layers`. Its keys
    are left behind the chunks, where the question's own pass overwrites them. `lean`: see `run_rows`.
    """
    plan = stitched.plan
    require_reordered(plan)
    start, count = plan.next_position, len(question_ids)
    rows = Rows.of(model, np.arange(start, start + count))
    probe = Probe(frozenset(layers), count, lambda weights: fold(weights[..., plan.prefix_tokens : plan.num_slots]))
    cache = ScatterCache(stitched.cache, rows)
    run_rows(model, cache, question_ids, rows, logits=False, probe=probe, until=max(layers) + 1, lean=lean)
    return torch.stack([probe.seen[layer] for layer in layers])


def deviation(
    model: LanguageModel,
    stitched: StitchedCache,
    chunk_token_ids: Sequence[Sequence[int]],
    depth: int = 1,
    *,
    lean: LeanRows | None = None,
) -> torch.Tensor:
    """How far each chunk token's keys and values at layer `depth` are from those of full prefill; fp32 [chunk tokens].

    Costs `depth` layers of full prefill and the projections of one more. Squared distances, keys and values each in
    units of their own mean square, so that neither drowns the other. (CacheBlend, EuroSys 2025, section 4.3: KV
    deviation of the first layers foretells that of the deeper ones.) `lean`: see `run_rows`.
    """
    plan = stitched.plan
    require_reordered(plan)
    rows = Rows.of(model, np.arange(plan.prefix_tokens, plan.num_slots))
    peek = _Peek(stitched, rows, depth)
    run_rows(model, peek, flat_tokens(plan, chunk_token_ids), rows, logits=False, lean=lean)
    assert peek.fresh is not None
    here = slice(plan.prefix_tokens, plan.num_slots)
    slab = stitched.cache.layers[depth]
    total = torch.zeros(plan.num_slots - plan.prefix_tokens, device=model.device)
    for fresh, stored in zip(peek.fresh, (slab.key_slab, slab.value_slab), strict=True):
        exact = fresh[0, :, here].float()
        gap = (exact - stored[0, :, here].float()).square().sum((0, 2))
        total += gap / exact.square().sum((0, 2)).mean()
    return total


class _Peek(ScatterCache):
    """Scatters into copies, and ends the pass once layer `depth` has written its own."""

    def __init__(self, stitched: StitchedCache, rows: Rows, depth: int) -> None:
        super().__init__(stitched.cache, rows)
        self._depth = depth
        self.fresh: tuple[torch.Tensor, torch.Tensor] | None = None

    def slabs(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = (slab.narrow(2, 0, self._rows.total).clone() for slab in super().slabs(layer))
        return keys, values

    def filled(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if layer == self._depth:
            self.fresh = keys, values
            raise Enough
        return keys, values
