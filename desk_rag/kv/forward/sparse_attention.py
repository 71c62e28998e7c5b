"""Causal attention of selected tokens (rows) over a cache, and recording of attention weights.

Rows are divided into blocks by position. A block reads only the keys up to its last row's position, and in a
sliding-window layer only those within its first row's window, which saves the masked half of work and memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import scaled_dot_product_attention

from desk_rag.kv.forward import attention
from desk_rag.kv.kernels import sparse_queries
from desk_rag.kv.kernels.flash_decoding import FlashAttend, is_worthwhile
from desk_rag.kv.kernels.upload import upload
from desk_rag.model.language_model import LanguageModel

Numbers = Sequence[int] | npt.NDArray[np.int64]
_BLOCK = {"cpu": 64, "cuda": 512}
"""Query rows per block: small enough that little is masked, large enough to fill the device."""
_SHORT = 256
"""Maximum rows at a context's end for which FlashAttention is used, which also splits long keys."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Consecutive rows and the keys that they may attend to."""

    rows: slice
    keys: slice
    mask: torch.Tensor | None
    """bool [1, 1, rows, keys], True where visible; None if all keys are."""


@dataclass(frozen=True, slots=True)
class QueryRows:
    """The tokens that a pass computes; shared by all its layers."""

    slots: torch.Tensor
    """int64 [R] on the model's device, ascending; both slot and position."""
    total: int
    """Slots in use after the pass."""
    numbers: npt.NDArray[np.int64]
    """The same slots on the host."""
    block: int
    """Maximum rows of one block."""
    blocks_by_window: dict[int | None, tuple[_Block, ...]] = field(default_factory=dict)
    """Blocks computed so far, by sliding window."""

    @classmethod
    def of(cls, model: LanguageModel, slots: Numbers) -> QueryRows:
        """Rows at these ascending slots; the last one is the last slot of the context."""
        numbers = np.asarray(slots, np.int64)
        assert len(numbers) and bool((np.diff(numbers) > 0).all()), "slots must ascend"
        slots_on_device = upload(numbers, model.device)
        return cls(slots_on_device, int(numbers[-1]) + 1, numbers, _BLOCK.get(model.device.type, 64))

    @property
    def at_end(self) -> bool:
        """True if the rows are all slots from the first row to the end."""
        return int(self.numbers[0]) + len(self.numbers) == self.total

    def blocks(self, window: int | None) -> tuple[_Block, ...]:
        """Blocks for layers with this sliding window, None for full attention; shared by these layers."""
        if window not in self.blocks_by_window:
            self.blocks_by_window[window] = _blocks(self.numbers, self.slots, window, self.block)
        return self.blocks_by_window[window]


@dataclass(slots=True)
class AttentionRecorder:
    """Records the attention weights of a pass's last rows; one per pass."""

    layers: frozenset[int]
    last: int
    """Number of last rows whose weights are recorded."""
    fold: Callable[[torch.Tensor], torch.Tensor] = lambda weights: weights
    """Reduces a layer's attention weights, fp32 [heads, last, total]: all layers' would fill a small GPU."""
    weights: dict[int, torch.Tensor] = field(default_factory=dict)
    """Result of `fold` by layer."""
    unseen: dict[int | None, tuple[int, torch.Tensor]] = field(default_factory=dict)
    """First slot that any of the rows does not see, and the additive mask from there on, by window."""


def attend_last(
    rows: QueryRows, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, split: FlashAttend | None = None
) -> torch.Tensor:
    """Attention of query [1, heads, N, D] over keys, values [1, H, total, D] for the last N rows -> [1, N, heads * D].

    These are all rows, or so few that they are consecutive slots. `split` is the flash-decoding kernel, used for few
    rows at the end.
    """
    count = query.shape[2]
    short = rows.at_end and count <= _SHORT and query.device.type == "cuda"
    if short or count < len(rows.numbers):
        if split is not None and is_worthwhile(count):
            return split(query, keys, values)
        return attention.attend(query, keys, values)
    return attend(rows, query, keys, values, query.shape[3] ** -0.5).flatten(2)


def attend(
    rows: QueryRows,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of all rows: query [1, heads, R, D] over key, value [1, H, total, D] -> [1, R, heads, D]."""
    kernel = sparse_queries.attend_for(query) if softcap is None and sinks is None else None
    if kernel is not None:
        return kernel(query, key, value, rows.slots, scale, sliding_window)
    return _by_blocks(query, key, value, rows.blocks(sliding_window), scale, softcap, sinks)


def record(
    rows: QueryRows,
    recorder: AttentionRecorder | None,
    layer: int,
    query: torch.Tensor,
    key: torch.Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    """Record this layer's attention weights, if wanted; query [1, heads, R, D], key [1, H, total, D]."""
    if recorder is None or layer not in recorder.layers:
        return
    if window not in recorder.unseen:
        recorder.unseen[window] = _unseen_by(rows, recorder.last, window, query)
    start, unseen = recorder.unseen[window]
    kv_heads, dim = key.shape[1], key.shape[3]
    packed = query[:, :, -recorder.last :].reshape(kv_heads, -1, dim)
    # One launch for product and scale; with beta=0 the first argument is not read.
    scores = torch.baddbmm(query.new_empty((1, 1, 1)), packed, key[0].transpose(-1, -2), beta=0, alpha=scale)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.view(-1, recorder.last, rows.total)
    scores[..., start:] += unseen
    recorder.weights[layer] = recorder.fold(_softmax_with(sinks, scores, scores.shape[0]))


def _unseen_by(rows: QueryRows, last: int, window: int | None, query: torch.Tensor) -> tuple[int, torch.Tensor]:
    """(start, mask [last, total - start]): -inf for keys after a row or outside its window, else 0."""
    start = int(rows.numbers[-last]) + 1 if window is None else 0
    behind = rows.slots[-last:, None] - torch.arange(start, rows.total, device=rows.slots.device)[None]
    unseen = behind < 0 if window is None else (behind < 0) | (behind >= window)
    return start, torch.zeros(unseen.shape, dtype=query.dtype, device=query.device).masked_fill_(unseen, -torch.inf)


def _by_blocks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    blocks: Sequence[_Block],
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """The torch reference, exact for every model family."""
    _, heads, count, dim = query.shape
    kv_heads = key.shape[1]
    # KV heads become the batch and the query heads of a group the heads, so keys are not copied per query head.
    packed = query.reshape(kv_heads, heads // kv_heads, count, dim)
    out = torch.empty(count, kv_heads, heads // kv_heads, dim, dtype=query.dtype, device=query.device)
    for block in blocks:
        q, k, v = packed[:, :, block.rows], key[0, :, block.keys], value[0, :, block.keys]
        # A fused kernel is parallel over rows and heads only: few rows over many keys would leave a GPU idle.
        if softcap is None and sinks is None and not (query.device.type == "cuda" and count <= sparse_queries.FEW):
            k, v = (t[:, None].expand(-1, q.shape[1], -1, -1) for t in (k, v))
            part = scaled_dot_product_attention(q, k, v, attn_mask=block.mask, scale=scale)
        else:
            weights = _softmax(q, k, block.mask, scale, softcap, sinks).to(query.dtype)
            part = (weights.flatten(1, 2) @ v).view(*weights.shape[:3], dim)
        out[block.rows] = part.permute(2, 0, 1, 3)
    return out.reshape(1, count, heads, dim)


def _softmax(
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """query [H, groups, R, D], key [H, T, D], mask [1, 1, R, T] -> weights fp32 [H, groups, R, T]."""
    scores = (query.flatten(1, 2) @ key.transpose(-1, -2) * scale).view(*query.shape[:3], key.shape[1])
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return _softmax_with(sinks, scores.flatten(0, 1), scores.shape[0] * scores.shape[1]).view(scores.shape)


def _softmax_with(sinks: torch.Tensor | None, scores: torch.Tensor, heads: int) -> torch.Tensor:
    """Weights fp32 of scores [heads, R, T]; each head's sink takes its share and is left out of the result."""
    if sinks is None:
        return scores.softmax(-1, dtype=torch.float32)
    column = sinks.to(scores.dtype).view(heads, 1, 1).expand(-1, scores.shape[1], -1)
    weights: torch.Tensor = torch.cat([scores, column], -1).softmax(-1, dtype=torch.float32)[..., :-1]
    return weights


def _blocks(
    slots: npt.NDArray[np.int64], slots_on_device: torch.Tensor, window: int | None, block: int
) -> tuple[_Block, ...]:
    blocks = []
    for start in range(0, len(slots), block):
        rows = slice(start, min(start + block, len(slots)))
        first, last = int(slots[rows.start]), int(slots[rows.stop - 1])
        keys = slice(0 if window is None else max(0, first - window + 1), last + 1)
        behind = slots_on_device[rows, None] - torch.arange(keys.start, keys.stop, device=slots_on_device.device)[None]
        visible = behind >= 0 if window is None else (behind >= 0) & (behind < window)
        alone = len(range(*rows.indices(len(slots)))) == 1
        blocks.append(_Block(rows, keys, None if alone else visible[None, None]))
    return tuple(blocks)
