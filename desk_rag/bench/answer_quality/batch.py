"""Rows of different lengths, decoded side by side: padded slabs, and masks made of each key's position.

Rows are filled one by one through `BatchCache.row`, which is an ordinary slab cache over one row, so that the product's
own functions fill it. From then on all rows append at one common slot. What a query sees is decided by positions alone:
every key whose position is not past its own (and, in sliding layers, within the window); slots between a row's end and
the common slot have no position and are never seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from desk_rag.answering.token_choice import next_token
from desk_rag.kv.cache import LayerCache, SlabCache, SlabLayer
from desk_rag.model.language_model import LanguageModel

_NOWHERE = 1 << 40
"""Position of a slot that holds nothing."""


class RowCache(SlabCache):
    """One row of a batch as a slab cache of its own; the memory is the batch's."""

    def __init__(self, layers: Sequence[SlabLayer], row: int, capacity: int) -> None:
        own_row = slice(row, row + 1)
        own = [SlabLayer(layer.key_slab[own_row], layer.value_slab[own_row]) for layer in layers]
        LayerCache.__init__(self, layers=own)
        self.capacity = capacity


class BatchCache(LayerCache):
    """Slabs [B, H, capacity, D] of every layer, and the position of every slot."""

    def __init__(self, model: LanguageModel, rows: int, capacity: int, layers: list[SlabLayer] | None = None) -> None:
        spec = model.spec
        shape = (rows, spec.num_kv_heads, capacity, spec.head_dim)

        def slab() -> torch.Tensor:
            # Zeros, because a slot that is masked out still meets a weight of 0, and 0 times NaN is NaN.
            return torch.zeros(shape, dtype=spec.dtype, device=model.device)

        super().__init__(layers=layers or [SlabLayer(slab(), slab()) for _ in range(spec.num_layers)])
        self.rows, self.capacity, self.length = rows, capacity, 0
        self.positions = torch.full((rows, capacity), _NOWHERE, dtype=torch.int64, device=model.device)

    def row(self, index: int) -> RowCache:
        """Row `index`, for filling."""
        return RowCache(self.layers, index, self.capacity)

    def set_length(self, length: int) -> None:
        """Set the slot at which all rows append next; slots from there on lose their positions."""
        self.length = length
        self.positions[:, length:] = _NOWHERE
        for layer in self.layers:
            layer.set_length(length)

    def filled(self, positions: Sequence[Sequence[int]]) -> None:
        """Declare what the rows hold: per row the positions of its slots from the first on."""
        self.positions[:] = _NOWHERE
        for row, places in enumerate(positions):
            self.positions[row, : len(places)] = torch.tensor(places, device=self.positions.device)
        self.set_length(max(len(places) for places in positions))

    def kept(self, model: LanguageModel, rows: Sequence[int]) -> BatchCache:
        """A copy with these rows only."""
        index = torch.tensor(list(rows), device=self.positions.device)
        layers = [SlabLayer(layer.key_slab[index], layer.value_slab[index]) for layer in self.layers]
        other = BatchCache(model, len(rows), self.capacity, layers)
        other.set_length(self.length)
        other.positions[:] = self.positions[index]
        return other


def append(
    model: LanguageModel, cache: BatchCache, ids: torch.Tensor, positions: torch.Tensor, last: int
) -> torch.Tensor:
    """Run ids [B, N] at positions [B, N] behind what the rows hold; logits [B, last, vocab] of the last columns."""
    start, count = cache.length, ids.shape[1]
    cache.positions[:, start : start + count] = positions
    mask = _mask(model, cache.positions[:, : start + count], positions)
    with torch.inference_mode():
        output = model.module(
            ids, attention_mask=mask, past_key_values=cache, position_ids=positions, use_cache=True, logits_to_keep=last
        )
    cache.length = start + count
    logits: torch.Tensor = output.logits
    return logits


def decode(
    model: LanguageModel, cache: BatchCache, opening: Sequence[Sequence[int]], positions: Sequence[int], most: int
) -> list[list[int]]:
    """Decode every row after its `opening`, which goes to `positions`; at most `most` ids a row, opening included.

    Of an opening all but the last token is in the cache. A stop id ends its row and is the last of its ids. Rows that
    have ended are dropped once they are half of the batch. `cache` keeps its contents up to its length at the call.
    """
    stops = model.prompt.stop_ids
    outputs = [list(ids) for ids in opening]
    alive = [row for row, ids in enumerate(outputs) if ids[-1] not in stops and len(ids) < most]
    prompt_length, rows_kept, work = cache.length, list(range(len(outputs))), cache
    while alive:
        if 2 * len(alive) <= len(rows_kept):
            work, rows_kept = work.kept(model, [rows_kept.index(row) for row in alive]), list(alive)
        ids = torch.tensor([[outputs[row][-1]] for row in rows_kept], device=model.device)
        last = [[positions[row] + len(outputs[row]) - 1] for row in rows_kept]
        last_positions = torch.tensor(last, device=model.device)
        logits = append(model, work, ids, last_positions, 1)[:, 0]
        for row, best, of_row in zip(rows_kept, logits.argmax(-1).tolist(), logits, strict=True):
            if row in alive:
                outputs[row].append(next_token(model.prompt, outputs[row], int(best), of_row))
        alive = [row for row in alive if outputs[row][-1] not in stops and len(outputs[row]) < most]
    cache.set_length(prompt_length)
    return outputs


def forced(
    model: LanguageModel, cache: BatchCache, answers: Sequence[Sequence[int]], positions: Sequence[int]
) -> list[list[int]]:
    """Return the id that the model would choose after each proper prefix of each answer: len(answer) - 1 ids a row.

    `positions` are those of the answers' first tokens. `cache` keeps its contents up to its length at the call.
    """
    longest = max(len(answer) for answer in answers) - 1
    if longest < 1:
        return [[] for _ in answers]
    prompt_length = cache.length
    ids = torch.zeros((len(answers), longest), dtype=torch.int64)
    for row, answer in enumerate(answers):
        ids[row, : len(answer) - 1] = torch.tensor(list(answer[:-1]))
    starts = torch.tensor(list(positions), device=model.device)
    position_ids = starts[:, None] + torch.arange(longest, device=model.device)
    best = append(model, cache, ids.to(model.device), position_ids, longest).argmax(-1).tolist()
    cache.set_length(prompt_length)
    return [row[: len(answer) - 1] for row, answer in zip(best, answers, strict=True)]


def _mask(model: LanguageModel, keys: torch.Tensor, queries: torch.Tensor) -> Any:
    """keys [B, S] and queries [B, N], both positions -> mask [B, 1, N, S], by kind of layer where there are kinds."""
    behind = queries[:, :, None] - keys[:, None, :]
    config = model.module.config
    window = getattr(config, "sliding_window", None)
    everything = _shown(model, behind >= 0)
    if not window:
        return everything
    near = _shown(model, (behind >= 0) & (behind < window))
    kinds = getattr(config, "layer_types", None) or ()
    if "sliding_attention" in kinds:
        return {"full_attention": everything, "sliding_attention": near}
    # Configurations without kinds slide in every layer; with kinds, but none of them sliding, the window is not in use.
    return everything if kinds else near


def _shown(model: LanguageModel, visible: torch.Tensor) -> torch.Tensor:
    if not model.spec.support.needs_eager:
        return visible[:, None]
    zero = torch.zeros(visible.shape, dtype=model.spec.dtype, device=visible.device)
    return zero.masked_fill(~visible, torch.finfo(model.spec.dtype).min)[:, None]
