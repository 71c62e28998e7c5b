"""What scattered rows see: which keys are before each of them, attention over those, and the weights of the last rows.

Knows slots, masks and the question pass's attention; runs no layer. Rows are cut into blocks in order of position. A
block reads only the keys that its last row may see, and a sliding layer only those that its first row may still see,
which saves the masked half of the work and its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import scaled_dot_product_attention

from desk_rag.kv.forward import fused_decoder
from desk_rag.kv.kernels import sparse_queries
from desk_rag.kv.kernels.flash_decoding import SplitAttend, worth
from desk_rag.kv.kernels.upload import upload
from desk_rag.model.language_model import LanguageModel

Numbers = Sequence[int] | npt.NDArray[np.int64]
_BLOCK = {"cpu": 64, "cuda": 512}
"""Query rows per block: few enough that little is masked, enough to fill the device."""
_SHORT = 256
"""Rows at a context's end, as a question's, up to which FlashAttention is asked: it divides long keys as well."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A run of rows and the keys they may see."""

    rows: slice
    keys: slice
    mask: torch.Tensor | None
    """bool [1, 1, rows, keys], True where visible; None where all of it is."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Which rows a pass computes; shared by all its layers."""

    slots: torch.Tensor
    """int64 [R] on the model's device, ascending; slot and position at once."""
    total: int
    """Slots in use once the pass is done."""
    numbers: npt.NDArray[np.int64]
    """The same slots, on the host."""
    block: int
    """Most rows of one block."""
    cut: dict[int | None, tuple[_Block, ...]] = field(default_factory=dict)
    """Blocks by window, as far as they have been asked for."""

    @classmethod
    def of(cls, model: LanguageModel, slots: Numbers) -> Rows:
        """Rows at these ascending slots, the last of which is the context's last."""
        numbers = np.asarray(slots, np.int64)
        assert len(numbers) and bool((np.diff(numbers) > 0).all()), "slots must ascend"
        at = upload(numbers, model.device)
        return cls(at, int(numbers[-1]) + 1, numbers, _BLOCK.get(model.device.type, 64))

    @property
    def at_end(self) -> bool:
        """True if no slot between the first row and the last is left out."""
        return int(self.numbers[0]) + len(self.numbers) == self.total

    def blocks(self, window: int | None) -> tuple[_Block, ...]:
        """The blocks for layers with this window, None for layers without; their masks are shared by all layers."""
        if window not in self.cut:
            self.cut[window] = _cut(self.numbers, self.slots, window, self.block)
        return self.cut[window]


@dataclass(slots=True)
class Probe:
    """What the pass's last rows looked at, kept layer by layer; made per pass."""

    layers: frozenset[int]
    last: int
    """How many of the last rows are looked over the shoulder."""
    fold: Callable[[torch.Tensor], torch.Tensor] = lambda weights: weights
    """What is kept of a layer's attention weights, fp32 [heads, last, total]: all of them would fill a small GPU."""
    seen: dict[int, torch.Tensor] = field(default_factory=dict)
    """Per layer what `fold` left."""
    hidden: dict[int | None, tuple[int, torch.Tensor]] = field(default_factory=dict)
    """By window: the first slot that any of the rows does not see, and what is added to scores from there on."""


def attend_last(
    rows: Rows, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, split: SplitAttend | None = None
) -> torch.Tensor:
    """Attention of query [1, heads, N, D] over keys, values [1, H, total, D] for the last N rows -> [1, N, heads * D].

    These are all rows, or so few that no slot between the first of them and the last is left out. `split` is used for
    few rows at the end, where there is one.
    """
    count = query.shape[2]
    short = rows.at_end and count <= _SHORT and query.device.type == "cuda"
    if short or count < len(rows.numbers):
        if split is not None and worth(count):
            return split(query, keys, values)
        return fused_decoder.attend(query, keys, values)
    return attend(rows, query, keys, values, query.shape[3] ** -0.5).flatten(2)


def attend(
    rows: Rows,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Attention of all rows, query [1, heads, R, D], over key, value [1, H, total, D] -> [1, R, heads, D]."""
    kernel = sparse_queries.attend_for(query) if softcap is None else None
    if kernel is not None:
        return kernel(query, key, value, rows.slots, scale, sliding_window)
    return _by_blocks(query, key, value, rows.blocks(sliding_window), scale, softcap)


def look(
    rows: Rows,
    probe: Probe | None,
    layer: int,
    query: torch.Tensor,
    key: torch.Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> None:
    """Keep what the probe wants of this layer's attention weights; query [1, heads, R, D], key [1, H, total, D]."""
    if probe is None or layer not in probe.layers:
        return
    if window not in probe.hidden:
        probe.hidden[window] = _hidden(rows, probe.last, window, query)
    start, unseen = probe.hidden[window]
    kv_heads, dim = key.shape[1], key.shape[3]
    packed = query[:, :, -probe.last :].reshape(kv_heads, -1, dim)
    # One launch for product and scale; what is added to is not read.
    scores = torch.baddbmm(query.new_empty((1, 1, 1)), packed, key[0].transpose(-1, -2), beta=0, alpha=scale)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.view(-1, probe.last, rows.total)
    scores[..., start:] += unseen
    probe.seen[layer] = probe.fold(scores.softmax(-1, dtype=torch.float32))


def _hidden(rows: Rows, last: int, window: int | None, query: torch.Tensor) -> tuple[int, torch.Tensor]:
    """(start, [last, total - start]): -inf where the last rows do not see, 0 where they do; all see before start."""
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
) -> torch.Tensor:
    """The reference: exact for every family, in torch alone."""
    _, heads, count, dim = query.shape
    kv_heads = key.shape[1]
    # KV heads take the batch's place and a group's query heads that of the heads: one key serves its group uncopied.
    packed = query.reshape(kv_heads, heads // kv_heads, count, dim)
    out = torch.empty(count, kv_heads, heads // kv_heads, dim, dtype=query.dtype, device=query.device)
    for block in blocks:
        q, k, v = packed[:, :, block.rows], key[0, :, block.keys], value[0, :, block.keys]
        # Few rows over many keys would leave most of a GPU idle in a fused kernel, which divides rows and heads only.
        if softcap is None and not (query.device.type == "cuda" and count <= sparse_queries.FEW):
            k, v = (t[:, None].expand(-1, q.shape[1], -1, -1) for t in (k, v))
            part = scaled_dot_product_attention(q, k, v, attn_mask=block.mask, scale=scale)
        else:
            weights = _softmax(q, k, block.mask, scale, softcap).to(query.dtype)
            part = (weights.flatten(1, 2) @ v).view(*weights.shape[:3], dim)
        out[block.rows] = part.permute(2, 0, 1, 3)
    return out.reshape(1, count, heads, dim)


def _softmax(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, scale: float, softcap: float | None
) -> torch.Tensor:
    """query [H, groups, R, D], key [H, T, D], mask [1, 1, R, T] -> weights fp32 [H, groups, R, T]."""
    scores = (query.flatten(1, 2) @ key.transpose(-1, -2) * scale).view(*query.shape[:3], key.shape[1])
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights: torch.Tensor = scores.softmax(-1, dtype=torch.float32)
    return weights


def _cut(slots: npt.NDArray[np.int64], at: torch.Tensor, window: int | None, block: int) -> tuple[_Block, ...]:
    blocks = []
    for start in range(0, len(slots), block):
        rows = slice(start, min(start + block, len(slots)))
        first, last = int(slots[rows.start]), int(slots[rows.stop - 1])
        keys = slice(0 if window is None else max(0, first - window + 1), last + 1)
        behind = at[rows, None] - torch.arange(keys.start, keys.stop, device=at.device)[None]
        visible = behind >= 0 if window is None else (behind >= 0) & (behind < window)
        alone = len(range(*rows.indices(len(slots)))) == 1
        blocks.append(_Block(rows, keys, None if alone else visible[None, None]))
    return tuple(blocks)
