"""One context both ways: full prefill, which teaches, and chunk KV stitched as for an answer, which is corrected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from desk_rag.finetune.rows import Asked, Context
from desk_rag.kv.cache import LayerCache, SlabCache, SlabLayer
from desk_rag.kv.positions import StitchPlan, plan
from desk_rag.kv.prefill import prefill_chunk
from desk_rag.kv.quant import quantize
from desk_rag.kv.rope import RotaryTables, build_tables, rotate
from desk_rag.kv.serving import ServingModel
from desk_rag.kv.shift import hat_weights
from desk_rag.kv.stitch import stitch


@dataclass(frozen=True, slots=True)
class Shifted:
    """A shift while it is learned: fp32 tensors [K, L, H, D] that may require gradients."""

    keys: torch.Tensor
    values: torch.Tensor


class Lesson:
    """A context with its questions: stitched KV, and full prefill's KV and answers."""

    def __init__(self, serving: ServingModel, context: Context, knots: Sequence[int]) -> None:
        model = serving.model
        self._model = model
        self.asked: tuple[Asked, ...] = context.asked
        self.plan: StitchPlan = plan(serving.prefix.num_tokens, [len(chunk) for chunk in context.chunks])
        longest = max(len(one.question) + len(one.answer) for one in context.asked)
        self.tables: RotaryTables = build_tables(model, self.plan.num_slots + longest)
        self.stitched = SlabCache(model, self.plan.num_slots)
        chunks = [quantize(prefill_chunk(model, serving.prefix, ids), serving.scheme) for ids in context.chunks]
        stitch(model, self.plan, serving.prefix, chunks, self.tables, self.stitched)
        self.full = SlabCache(model, self.plan.num_slots + longest)
        ids = [*context.prefix, *chain.from_iterable(context.chunks)]
        model.forward(torch.tensor(ids, device=model.device), self.full, 0, logits=False)
        before = [placement.position - self.plan.prefix_tokens for placement in self.plan.placements]
        rows = [hat_weights(knots, count) for count in before]
        self.weights = torch.tensor(rows, device=model.device)
        """fp32 [C, K]: share of each knot in each chunk's shift."""
        lengths = torch.tensor([placement.num_tokens for placement in self.plan.placements], device=model.device)
        self._chunk_of_slot = torch.repeat_interleave(torch.arange(len(before), device=model.device), lengths)
        self._taught = [self._full_logits(one) for one in context.asked]

    def _full_logits(self, asked: Asked) -> torch.Tensor:
        """Log-probabilities [answer tokens, vocab] of full prefill."""
        ids = torch.tensor([*asked.question, *asked.answer[:-1]], device=self._model.device)
        self.full.set_length(self.plan.num_slots)
        logits = self._model.forward_all(ids, self.full, self.plan.next_position)
        return logits[len(asked.question) - 1 :].float().log_softmax(-1)

    def layer(self, layer: int, shift: Shifted | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [1, H, S, D] of one layer, shifted, in the compute dtype; gradients reach the shift."""
        slab = self.stitched.layers[layer]
        if shift is None:
            return slab.keys, slab.values
        first = self.plan.prefix_tokens
        key_shift, value_shift = (
            torch.einsum("ck,khd->chd", self.weights, each[:, layer])[self._chunk_of_slot].transpose(0, 1)
            for each in (shift.keys, shift.values)
        )
        table = self.tables.table_of_layer[layer]
        rows = slice(first, self.plan.num_slots)
        turned = rotate(key_shift, self.tables.cos[table][rows], self.tables.sin[table][rows],
                        interleaved=self.tables.interleaved)  # fmt: skip

        def added(whole: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
            return torch.cat([whole[:, :, :first], (whole[:, :, first:].float() + more).to(whole.dtype)], dim=2)

        return added(slab.keys, turned), added(slab.values, value_shift)

    def divergence(self, number: int, shift: Shifted | None) -> tuple[torch.Tensor, int, int]:
        """KL(full prefill || stitched) in nats, summed over an answer's tokens; tokens; those with the same best."""
        asked, taught = self.asked[number], self._taught[number]
        cache = _ContextCache([self.layer(index, shift) for index in range(self._model.spec.num_layers)])
        ids = torch.tensor([[*asked.question, *asked.answer[:-1]]], device=self._model.device)
        start = self.plan.next_position
        positions = torch.arange(start, start + ids.shape[1], device=ids.device)[None]
        output = self._model.module(
            ids, past_key_values=cache, position_ids=positions, use_cache=True, logits_to_keep=len(asked.answer)
        )
        logits = output.logits[0].float().log_softmax(-1)
        kl = (taught.exp() * (taught - logits)).sum()
        same = int((taught.argmax(-1) == logits.argmax(-1)).sum())
        return kl, len(asked.answer), same


class _ContextLayer(SlabLayer):
    """Fixed keys and values of a context, to which tokens are appended out of place, for gradients."""

    only_appends = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__(keys, values)
        self.set_length(keys.shape[2])

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all keys and values with the new ones behind."""
        self.keys = torch.cat([self.keys, key_states], dim=2)
        self.values = torch.cat([self.values, value_states], dim=2)
        self.length += key_states.shape[2]
        return self.keys, self.values


class _ContextCache(LayerCache):
    def __init__(self, layers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__([_ContextLayer(keys, values) for keys, values in layers])
