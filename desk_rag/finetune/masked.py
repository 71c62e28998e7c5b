"""Run rows as one masked forward pass: attention masks, logits where they count, and the loss.

Masks are bool for SDPA and additive for eager attention, which would add a bool as 0 and 1. Masks of sliding layers
compare positions, as a stitched cache does, where slot and position are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from desk_rag.finetune.rows import IS_CHUNK, IS_PREFIX, SEES_CHUNKS, SEES_PREFIX, Row

_PIECE = 512
"""Tokens whose logits are in memory at a time."""
Mask = torch.Tensor | dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows on the device; tensors [B, N]."""

    ids: torch.Tensor
    positions: torch.Tensor
    islands: torch.Tensor
    owners: torch.Tensor
    roles: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True, slots=True)
class Loss:
    """A sum and what to divide it by."""

    total: torch.Tensor
    """Weighted negative log likelihood, in nats; carries the gradient."""
    weight: float


def to_batch(rows: Sequence[Row], device: torch.device) -> Batch:
    """Stack rows of one length."""

    def stack(name: str) -> torch.Tensor:
        return torch.from_numpy(np.stack([getattr(row, name) for row in rows])).to(device)

    return Batch(*(stack(name) for name in ("ids", "positions", "islands", "owners", "roles", "weights")))


def visibility(batch: Batch) -> torch.Tensor:
    """bool [B, N, N]: whether token i sees token j."""
    size = batch.ids.shape[1]
    past = torch.ones(size, size, dtype=torch.bool, device=batch.ids.device).tril()
    own = batch.owners[:, :, None] == batch.owners[:, None, :]

    def across(sees: int, being: int) -> torch.Tensor:
        return ((batch.roles & sees) > 0)[:, :, None] & ((batch.roles & being) > 0)[:, None, :]

    shown = own | across(SEES_PREFIX, IS_PREFIX) | across(SEES_CHUNKS, IS_CHUNK)
    return past & shown & (batch.islands[:, :, None] == batch.islands[:, None, :])


def attention_mask(batch: Batch, config: Any, *, dtype: torch.dtype, additive: bool) -> Mask:
    """The mask [B, 1, N, N] of every layer, or one per layer type where a model has two."""
    visible = visibility(batch)
    types = getattr(config, "layer_types", None) or []
    window = getattr(config, "sliding_window", None)
    if types and "sliding_attention" not in types:
        window = None

    def form(mask: torch.Tensor) -> torch.Tensor:
        mask = mask[:, None]
        if not additive:
            return mask
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)

    if window is None:
        return form(visible)
    near = visible & ((batch.positions[:, :, None] - batch.positions[:, None, :]) < window)
    if types:
        return {"full_attention": form(visible), "sliding_attention": form(near)}
    return form(near)


def hidden_of(module: Any, batch: Batch) -> torch.Tensor:
    """Last hidden states [B, N, hidden] under the rows' own masks."""
    config = module.config
    eager = config._attn_implementation == "eager"
    norm = getattr(module.model, "norm", None) or module.model.final_layernorm  # as Phi calls it
    mask = attention_mask(batch, config, dtype=norm.weight.dtype, additive=eager)
    output = module.model(input_ids=batch.ids, attention_mask=mask, position_ids=batch.positions, use_cache=False)
    result: torch.Tensor = output.last_hidden_state
    return result


def logits_of(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Logits [..., vocab] of hidden states, as the model's own head makes them."""
    logits: torch.Tensor = module.lm_head(hidden)
    logits = logits * (getattr(module.config, "logit_scale", None) or 1.0)
    logits = logits / (getattr(module.config, "logits_scaling", None) or 1.0)
    cap = getattr(module.config, "final_logit_softcapping", None)
    return logits if cap is None else torch.tanh(logits / cap) * cap


def loss_of(module: Any, batch: Batch) -> Loss:
    """Loss of the tokens that count; logits are made for those alone, a few hundred at a time.

    With a large vocabulary the logits of a whole row would take more memory than everything else; those of a piece are
    computed again in the backward pass.
    """
    counts = batch.weights[:, 1:] > 0
    weights = batch.weights[:, 1:][counts]
    if not len(weights):
        return Loss(torch.zeros((), device=batch.ids.device), 0.0)
    hidden = hidden_of(module, batch)[:, :-1][counts]
    wanted = batch.ids[:, 1:][counts]
    total = torch.zeros((), device=batch.ids.device)
    pieces = (torch.split(each, _PIECE) for each in (hidden, wanted, weights))
    for piece in zip(*pieces, strict=True):
        if torch.is_grad_enabled() and len(wanted) > _PIECE:
            total = total + checkpoint(_piece_loss, module, *piece, use_reentrant=False)
        else:
            total = total + _piece_loss(module, *piece)
    return Loss(total, float(weights.sum()))


def _piece_loss(module: Any, hidden: torch.Tensor, wanted: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    logits = logits_of(module, hidden).float()
    return (cross_entropy(logits, wanted, reduction="none") * weights).sum()
