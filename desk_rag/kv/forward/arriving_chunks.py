"""Run a first pass over a slab while a load's chunks arrive in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from desk_rag.kv.forward.runner import Pass, Slab
from desk_rag.kv.loading.layerwise import Placer, layerwise
from desk_rag.kv.loading.load import Load
from desk_rag.kv.loading.load_part import LoadPart
from desk_rag.kv.positions import StitchPlan
from desk_rag.model.language_model import LanguageModel


@contextmanager
def placed(
    model: LanguageModel, slab: Slab, load: Load | LoadPart, plan: StitchPlan, *, by_layers: bool = False
) -> Iterator[Pass]:
    """Yield the pass to run first and to decode with; every chunk has been placed when the context ends.

    With `by_layers` the caller runs the first pass itself, through the model's own layers. It may raise ChunksLost.
    """
    slab.lay_prefix()
    if by_layers or slab.fused is None:
        with layerwise(model, load, plan, None, slab.slots):
            yield slab.run()
        return
    slab.cache.set_length(plan.num_slots)
    placer = Placer(load, plan, slab.slots)
    placer.place_resident()
    yield slab.run(placer.place_through)
    assert placer.begun, "the first pass did not run through the yielded pass"
    placer.place_all()
