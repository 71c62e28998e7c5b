"""Learn a shift: a first estimate in closed form, then steps towards full prefill's answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from desk_rag.errors import DeskRagError
from desk_rag.finetune.adapt.lessons import Lesson, Shifted
from desk_rag.kv.serving import ServingModel
from desk_rag.kv.shift import PlaceShift
from desk_rag.model.layers.rotary import unrotate

_RIDGE = 0.01
"""Pulls knots that few chunks lie near towards no shift, as a share of the mean weight of a knot."""
_RATE = 0.01
"""Peak step of the optimiser, as a share of a layer's typical value or key."""
_WARM = 10
_CLIP = 1.0


class Learner:
    """A shift in the making; `estimate` over some lessons first, then `step` over others."""

    def __init__(self, serving: ServingModel, knots: Sequence[int], steps: int) -> None:
        spec = serving.model.spec
        self._knots, self._steps, self._taken = tuple(knots), steps, 0
        shape = (len(self._knots), spec.num_layers, spec.num_kv_heads, spec.head_dim)
        self._keys, self._values = (
            torch.zeros(shape, device=serving.model.device, requires_grad=True) for _ in range(2)
        )
        self._weight = torch.zeros(len(knots), len(knots), dtype=torch.float64)
        self._key_sum, self._value_sum = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))
        self._optimizer: torch.optim.Optimizer | None = None

    @property
    def shift(self) -> Shifted:
        """The shift as learned so far, without gradients."""
        return Shifted(self._keys.detach(), self._values.detach())

    def result(self) -> PlaceShift:
        """A copy on the CPU."""
        return PlaceShift(self._knots, self._keys.detach().cpu().clone(), self._values.detach().cpu().clone())

    def collect(self, lesson: Lesson) -> None:
        """Add what full prefill's keys and values differ by from the stitched ones to the estimate."""
        for index, placement in enumerate(lesson.plan.placements):
            share = lesson.weights[index].double().cpu()
            if not share.any():
                continue
            self._weight += placement.num_tokens * torch.outer(share, share)
            slots = slice(placement.slot, placement.slot + placement.num_tokens)
            for layer, (full, own) in enumerate(zip(lesson.full.layers, lesson.stitched.layers, strict=True)):
                table = lesson.tables.table_of_layer[layer]
                cos, sin = lesson.tables.cos[table][slots], lesson.tables.sin[table][slots]
                turned = full.key_slab[0, :, slots].float() - own.key_slab[0, :, slots].float()
                keys = unrotate(turned, cos, sin, interleaved=lesson.tables.interleaved).sum(1)
                values = (full.value_slab[0, :, slots].float() - own.value_slab[0, :, slots].float()).sum(1)
                self._key_sum[:, layer] += share[:, None, None] * keys.double().cpu()
                self._value_sum[:, layer] += share[:, None, None] * values.double().cpu()

    def estimate(self) -> None:
        """Begin with the least-squares shift of values over the lessons collected; that of keys begins at none."""
        if not self._weight.any():
            return
        ridge = _RIDGE * self._weight.diagonal().mean() * torch.eye(len(self._knots), dtype=torch.float64)
        solved = torch.linalg.solve(self._weight + ridge, self._value_sum.flatten(1)).reshape(self._value_sum.shape)
        with torch.no_grad():
            self._values.copy_(solved)

    def step(self, lesson: Lesson) -> float:
        """Take one step towards full prefill's answers to a lesson; return the divergence in nats per token."""
        if self._optimizer is None:
            self._optimizer = torch.optim.Adam(self._groups(lesson), betas=(0.9, 0.98))
        nats, tokens = 0.0, 0
        counts = sum(len(asked.answer) for asked in lesson.asked)
        for number in range(len(lesson.asked)):
            # One question at a time: the graph of the next would double what is kept in memory.
            divergence, count, _ = lesson.divergence(number, Shifted(self._keys, self._values))
            torch.autograd.backward(divergence / counts)
            nats, tokens = nats + float(divergence.detach()), tokens + count
        norm = float(torch.nn.utils.clip_grad_norm_([self._keys, self._values], _CLIP))
        if norm != norm:
            raise DeskRagError("A gradient is not a number, so this model cannot be adapted on this device.")
        share = min(1.0, (self._taken + 1) / _WARM) * max(0.05, 1.0 - self._taken / self._steps)
        for group in self._optimizer.param_groups:
            group["lr"] = group["peak"] * share
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._taken += 1
        return nats / tokens

    def _groups(self, lesson: Lesson) -> list[dict[str, object]]:
        sizes = [
            float(torch.stack([getattr(layer, name).float().std() for layer in lesson.stitched.layers]).median())
            for name in ("keys", "values")
        ]
        pairs = zip((self._keys, self._values), sizes, strict=True)
        return [{"params": [tensor], "lr": 0.0, "peak": _RATE * size} for tensor, size in pairs]
