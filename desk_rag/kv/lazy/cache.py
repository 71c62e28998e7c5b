"""Attention cache whose chunks stay int8 as loaded; a model runs over it as over any other cache.

Only the shared prefix, the question and the answer are kept in the compute dtype. Chunks stay int8 and unrotated, so
one copy serves every position and the context takes about half the memory. Layers that the quality gate keeps
unquantised are stitched into the slab as usual. The attention is in `lazy.reference`.

    cache = LazyCache(model, prefix, LazyContext(chunks, plan.placements, tables), room)
    logits = model.forward(question_ids, cache, plan.next_position, logits=True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from desk_rag.errors import UnsupportedModel
from desk_rag.kv.cache import LayerCache, SlabLayer
from desk_rag.kv.lazy.backend import implementation
from desk_rag.kv.lazy.reference import Attend, LazyContext, enable, mark
from desk_rag.kv.prefill import PrefixKV
from desk_rag.kv.stitch import has_sliding_layers
from desk_rag.model.language_model import LanguageModel


class LazyLayer(SlabLayer):
    """Slab of prefix and suffix only, which counts the chunks between them as if they were in it."""

    only_appends = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, hidden: int, run: Attend) -> None:
        self.hidden, self._run = hidden, run
        super().__init__(keys, values)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [1, H, N, D]; the returned keys carry the attention over the chunks (`reference.mark`)."""
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        return mark(keys, self._run), values

    def get_seq_length(self) -> int:
        """Tokens before the next one, chunks included: positions and masks follow it."""
        return self.length + self.hidden


class LazyCache(LayerCache):
    """One answer's cache: prefix and suffix in slabs, the chunks of `context` where they are."""

    def __init__(
        self, model: LanguageModel, prefix: PrefixKV, context: LazyContext, room: int, *, loaded: bool = True
    ) -> None:
        """`room` is the maximum of tokens of question and answer together. Raises UnsupportedModel.

        With `loaded=False` the chunks' memory is allocated but not yet filled; `place` must be called for each layer
        before it runs.
        """
        if not supports(model):
            raise UnsupportedModel(
                f"'{model.spec.name}' has sliding-window or soft-capped layers, which lazy attention does not cover.",
                remedy="Stitch into an ordinary cache instead, which serves these models exactly.",
            )
        self.context = context
        self._dtype = model.spec.dtype
        self._placed: set[int] = set()
        run = implementation(context, model)
        layers = [self._layer(model, prefix, index, room, run) for index in range(model.spec.num_layers)]
        super().__init__(layers=layers)
        enable(model)
        if loaded:
            for index in range(len(layers)):
                self.place(index)

    @property
    def capacity(self) -> int:
        """Maximum number of tokens, chunks included."""
        return min(int(layer.key_slab.shape[2]) + int(layer.hidden) for layer in self.layers)

    def place(self, layer: int) -> None:
        """Stitch the chunks of a layer that is not int8 into the slab; does nothing for other layers."""
        slab = self.layers[layer]
        if slab.hidden or layer in self._placed:
            return
        self._placed.add(layer)
        with torch.inference_mode():
            for placement, turned, plain in self.context.positioned(layer):
                slots = slice(placement.slot, placement.slot + placement.num_tokens)
                slab.key_slab[0, :, slots], slab.value_slab[0, :, slots] = turned.to(self._dtype), plain.to(self._dtype)

    def _layer(self, model: LanguageModel, prefix: PrefixKV, index: int, room: int, run: Attend) -> SlabLayer:
        spec, hidden = model.spec, self.context.num_tokens
        lazy = self.context.is_int8(index)
        first = prefix.num_tokens
        length = first + (0 if lazy else hidden)
        shape = (1, spec.num_kv_heads, length + room, spec.head_dim)
        keys, values = (torch.empty(shape, dtype=spec.dtype, device=model.device) for _ in range(2))
        keys[0, :, :first], values[0, :, :first] = prefix.keys[index], prefix.values[index]
        layer: SlabLayer = LazyLayer(keys, values, hidden, run) if lazy else SlabLayer(keys, values)
        layer.set_length(length)
        return layer


def supports(model: LanguageModel) -> bool:
    """False for sliding, soft-capped or interleaved layers and learned sinks, which only an ordinary cache serves."""
    return not (has_sliding_layers(model) or model.spec.support.needs_eager or model.spec.layout.interleaved)


@contextmanager
def arriving(model: LanguageModel, cache: LazyCache, wait: Callable[[int], None]) -> Iterator[None]:
    """Call `wait(layer)` before each layer of a forward pass over a cache created with `loaded=False`.

    `wait` returns when the current stream may read that layer of every chunk, or raises what the pass should raise.
    Open the context for the question's pass only.
    """

    def before(layer: int) -> Callable[[torch.nn.Module, Any], None]:
        def ready(_module: torch.nn.Module, _inputs: Any) -> None:
            wait(layer)
            cache.place(layer)

        return ready

    with ExitStack() as stack:
        for index, module in enumerate(model.decoder_layers):
            stack.callback(module.register_forward_pre_hook(before(index)).remove)
        yield
