"""Some rows of a context through the model over a slab that holds the rest: scattered keys, exact causal visibility.

Knows the model's attention interface, slots and positions; knows no question and no reason why these rows were chosen.
A row at position p sees every slot at positions 0..p, as the layer before it left them or, for rows of the same pass,
as this layer has just computed them: new keys and values are scattered over the slab before a layer's attention.
Slot and position are the same number here, so a key's place in the slab says where it stands.

Rows are cut into blocks in order of position. A block reads only the keys that its last row may see, and a sliding
layer only those that its first row may still see, which saves the masked half of the work and its memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from desk_rag.kv import rows_kernel
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.rows_lean import lean_layers
from desk_rag.model import LanguageModel

NAME = "desk_rag_rows"
_BLOCK = {"cpu": 64, "cuda": 512}
"""Query rows per block: few enough that little is masked, enough to fill the device."""


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
    numbers: tuple[int, ...]
    """The same, on the host."""
    block: int
    """Most rows of one block."""
    cut: dict[int | None, tuple[_Block, ...]] = field(default_factory=dict)
    """Blocks by window, as far as they have been asked for."""

    @classmethod
    def of(cls, model: LanguageModel, slots: Sequence[int]) -> Rows:
        """Rows at these ascending slots, the last of which is the context's last."""
        assert slots and all(one < other for one, other in zip(slots, slots[1:], strict=False)), "slots must ascend"
        at = torch.tensor(list(slots), device=model.device)
        return cls(at, slots[-1] + 1, tuple(slots), _BLOCK.get(model.device.type, 64))

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
    seen: dict[int, torch.Tensor] = field(default_factory=dict)
    """Per layer fp32 [heads, last, total]: attention weights."""


class Enough(Exception):
    """Ends a pass early, on purpose; never leaves this module's callers."""


class ScatterCache:
    """Stands where transformers expects a cache: takes a layer's new keys and values, returns all of them in order."""

    def __init__(self, cache: SlabCache, rows: Rows) -> None:
        assert rows.total <= cache.capacity, "slab too small: the engine plans its capacity"
        self._layers, self._rows = cache.layers, rows

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scatter [1, H, R, D] over the slab and return the slots in use, [1, H, total, D]."""
        slab = self._layers[layer_idx]
        slab.key_slab.index_copy_(2, self._rows.slots, key_states)
        slab.value_slab.index_copy_(2, self._rows.slots, value_states)
        total = self._rows.total
        return slab.key_slab[:, :, :total], slab.value_slab[:, :, :total]


def run_rows(
    model: LanguageModel,
    cache: Any,
    token_ids: Sequence[int],
    rows: Rows,
    *,
    logits: bool = True,
    probe: Probe | None = None,
    until: int | None = None,
) -> torch.Tensor | None:
    """One layer-wise pass of `token_ids` [R] as `rows`; logits [vocab] of the last row, or None.

    `cache` is a ScatterCache, or whatever else offers its `update`. `until` ends the pass before that layer, which is
    then not even loaded where loading goes by layers.
    """
    assert len(token_ids) == rows.slots.shape[0], "as many rows as tokens"
    ids = torch.tensor(list(token_ids), device=model.device)[None]
    # A mask of four dimensions is handed through as it is; that it holds positions only `_attend` has to know.
    marker: Any = rows.slots[None, None, :, None]
    kinds = set(getattr(model.module.config, "layer_types", None) or ())
    if "sliding_attention" in kinds:
        marker = dict.fromkeys(("full_attention", "sliding_attention"), marker)
    options: dict[str, Any] = {
        "attention_mask": marker, "position_ids": rows.slots[None], "past_key_values": cache, "use_cache": True,
        "rows": rows, "probe": probe,
    }  # fmt: skip
    attend = partial(_attend_layer, rows, probe)
    with torch.inference_mode(), _attending(model), lean_layers(model, attend), _ending_before(model, until):
        try:
            if logits:
                output: torch.Tensor = model.module(ids, logits_to_keep=1, **options).logits[0, -1]
                return output
            model.module.model(ids, **options)
        except Enough:
            pass
    return None


def _cut(slots: Sequence[int], at: torch.Tensor, window: int | None, block: int) -> tuple[_Block, ...]:
    blocks = []
    for start in range(0, len(slots), block):
        rows = slice(start, min(start + block, len(slots)))
        first, last = slots[rows.start], slots[rows.stop - 1]
        keys = slice(0 if window is None else max(0, first - window + 1), last + 1)
        behind = at[rows, None] - torch.arange(keys.start, keys.stop, device=at.device)[None]
        visible = behind >= 0 if window is None else (behind >= 0) & (behind < window)
        alone = len(range(*rows.indices(len(slots)))) == 1
        blocks.append(_Block(rows, keys, None if alone else visible[None, None]))
    return tuple(blocks)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    *,
    rows: Rows,
    probe: Probe | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """query [1, heads, R, D], key/value [1, kv_heads, total, D] -> [1, R, heads, D]."""
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    layer = int(getattr(module, "layer_idx", -1))
    return _attend_layer(rows, probe, layer, query, key, value, scale, sliding_window, softcap), None


def _attend_layer(
    rows: Rows,
    probe: Probe | None,
    layer: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    kernel = rows_kernel.attend_for(query) if softcap is None else None
    if kernel is not None:
        out = kernel(query, key, value, rows.slots, scale, sliding_window)
    else:
        out = _by_blocks(query, key, value, rows.blocks(sliding_window), scale, softcap)
    if probe is not None and layer in probe.layers:
        probe.seen[layer] = _weights(query, key, rows, probe.last, scale, sliding_window, softcap)
    return out


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
        if softcap is None and not (query.device.type == "cuda" and count <= rows_kernel.FEW):
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


def _weights(
    query: torch.Tensor, key: torch.Tensor, rows: Rows, last: int, scale: float, window: int | None,
    softcap: float | None,
) -> torch.Tensor:  # fmt: skip
    """Attention weights fp32 [heads, last, total] of the last rows."""
    at = rows.slots[-last:]
    behind = at[:, None] - torch.arange(rows.total, device=at.device)[None]
    visible = behind >= 0 if window is None else (behind >= 0) & (behind < window)
    packed = query[:, :, -last:].reshape(key.shape[1], -1, last, query.shape[3])
    weights = _softmax(packed, key[0], visible[None, None], scale, softcap)
    return weights.flatten(0, 1)


@contextmanager
def _attending(model: LanguageModel) -> Iterator[None]:
    """While open, the model's layers attend by rows. One caller at a time, as for every use of a model."""
    AttentionInterface.register(NAME, _attend)
    config = model.module.config
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before


@contextmanager
def _ending_before(model: LanguageModel, layer: int | None) -> Iterator[None]:
    if layer is None or layer >= model.spec.num_layers:
        yield
        return

    def end(_module: torch.nn.Module, _inputs: Any) -> None:
        raise Enough

    with ExitStack() as stack:
        # First of the layer's hooks: one that waits for the layer's keys must not be asked.
        stack.callback(model.decoder_layers[layer].register_forward_pre_hook(end, prepend=True).remove)
        yield
