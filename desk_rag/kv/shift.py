"""Learned shift of a chunk's keys and values that compensates for the context missing at its prefill.

A model that was not fine-tuned to read chunks that were prefilled apart leaves in keys and values how much it has read
so far; prefilled alone, every chunk looks like the first. The shift is a vector per layer and key-value head, learned
once per model (`finetune/adapt`) and added while a chunk is placed, interpolated by the tokens between shared prefix
and chunk. The first chunk of a context is not shifted, and stored chunk KV stays as it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

if TYPE_CHECKING:
    from desk_rag.kv.positions import StitchPlan

KNOTS = (64, 128, 256, 512, 1024, 2048, 4096)
"""Tokens before a chunk at which the shift is learned; linear in between, from nothing at 0, constant past the last."""
_FORM = "desk-rag shift 1"


@dataclass(frozen=True, slots=True)
class PlaceShift:
    """Vectors to add to each layer's keys (before RoPE) and values, at every knot."""

    knots: tuple[int, ...]
    keys: torch.Tensor
    """fp32 [K, L, H, D]."""
    values: torch.Tensor
    """fp32 [K, L, H, D]."""

    @classmethod
    def zero(cls, layers: int, heads: int, dim: int) -> PlaceShift:
        """The shift that changes nothing."""
        shape = (len(KNOTS), layers, heads, dim)
        return cls(KNOTS, torch.zeros(shape), torch.zeros(shape))

    def to(self, device: torch.device) -> PlaceShift:
        """The same shift on `device`."""
        return PlaceShift(self.knots, self.keys.to(device), self.values.to(device))

    def of_chunks(self, plan: StitchPlan) -> torch.Tensor | None:
        """The shifts of a context's chunks, fp32 [L, C, 2, H, D], keys first; None where none has another before it."""
        before = [placement.position - plan.prefix_tokens for placement in plan.placements]
        if not any(before):
            return None
        weights = torch.tensor([hat_weights(self.knots, count) for count in before], device=self.keys.device)
        return torch.einsum("ck,klphd->lcphd", weights, torch.stack([self.keys, self.values], dim=2)).contiguous()

    @property
    def digest(self) -> str:
        """32 hex digits over the tensors."""
        digest = hashlib.blake2b(digest_size=16)
        for tensor in (self.keys, self.values):
            digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def to_bytes(self, facts: Mapping[str, object]) -> bytes:
        """A safetensors file of the shift, with `facts` about its making."""
        tensors = {"keys": self.keys.cpu().contiguous(), "values": self.values.cpu().contiguous()}
        metadata = {"form": _FORM, "knots": json.dumps(self.knots), "facts": json.dumps(facts), "sum": self.digest}
        return save(tensors, metadata)


def from_bytes(data: bytes) -> tuple[PlaceShift, dict[str, Any]]:
    """The shift and the facts of a file. Raises ValueError if it is damaged or of another form."""
    try:
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        shift = PlaceShift(tuple(json.loads(header["knots"])), tensors["keys"], tensors["values"])
        if header["form"] != _FORM or header["sum"] != shift.digest:
            raise ValueError("it is of another form, or damaged")
        return shift, json.loads(header["facts"])
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError(str(error)) from error


def hat_weights(knots: Sequence[int], before: int) -> list[float]:
    """Weight of each knot for a chunk behind `before` tokens; they add up to at most 1, for the first chunk to 0."""
    ends = (0, *knots)
    weights = [0.0] * len(knots)
    for index, (left, right) in enumerate(zip(ends, knots, strict=False)):
        if left < before <= right:
            weights[index] = (before - left) / (right - left)
            if index:
                weights[index - 1] = 1.0 - weights[index]
    if before > knots[-1]:
        weights[-1] = 1.0
    return weights

