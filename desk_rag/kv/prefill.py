"""Prefill chunks behind the shared prefix and keep their values and their keys before RoPE.

A forward hook takes the keys from the last module before RoPE: `k_norm` where the model has one, else `k_proj`, else
the key slice of `qkv_proj`. This is exact, needs no change to the model and works with weights quantized by
bitsandbytes. Where none of them gives out the key itself, it is taken from the cache and turned back. Values are read
from the cache, which stores them unchanged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from desk_rag.errors import Cancelled
from desk_rag.kv.cache import LayerCache, SlabCache, SlabRows
from desk_rag.kv.types import ChunkKV
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.layers import attention_layout
from desk_rag.model.layers.attention_layout import KeyTap
from desk_rag.model.layers.rotary import NO_POSITION, half_tables, unrotate
from desk_rag.model.memory.steps import free_bytes, in_steps, tokens_at_once

_LAYERS_AHEAD = 2
"""Layers that a GPU may have been given to do; more would keep an answer waiting that `stop` announces."""
_BATCH_SHARE = 0.25
"""Share of free memory that the keys and values of chunks prefilled together may take."""


@dataclass(frozen=True, slots=True)
class PrefixKV:
    """KV of the shared prefix in the compute dtype, keys rotated to positions 0..P-1; one per model."""

    keys: torch.Tensor
    """[L, H, P, D], after RoPE."""
    values: torch.Tensor
    """[L, H, P, D]."""

    @property
    def num_tokens(self) -> int:
        return int(self.keys.shape[2])

    def write_to(self, cache: SlabCache) -> None:
        """Write the prefix into slots 0..P-1 of `cache`."""
        for layer in range(self.keys.shape[0]):
            key_slots, value_slots = cache.write(layer, 0, self.num_tokens)
            key_slots.copy_(self.keys[layer])
            value_slots.copy_(self.values[layer])


def prefill_prefix(model: LanguageModel) -> PrefixKV:
    """Prefill the shared prefix from position 0; it holds the attention sink of every chunk and answer."""
    ids = torch.tensor(model.prompt.prefix_ids, device=model.device)
    cache = SlabCache(model, len(ids))
    if len(ids):
        model.forward(ids, cache, 0, logits=False)
    return PrefixKV(
        torch.stack([layer.key_slab[0] for layer in cache.layers]),
        torch.stack([layer.value_slab[0] for layer in cache.layers]),
    )


def prefill_chunk(
    model: LanguageModel,
    prefix: PrefixKV,
    token_ids: Sequence[int],
    stop: Callable[[], bool] | None = None,
) -> ChunkKV:
    """Prefill `token_ids` (frame included) right behind the shared prefix.

    Returns keys [L, H, T, D] before RoPE and values [L, H, T, D] in the compute dtype, on the model's device. `stop` is
    called before every layer; Cancelled is raised when it returns True.
    """
    ids = torch.tensor(token_ids, device=model.device)
    start = prefix.num_tokens
    cache = SlabCache(model, start + len(ids))
    prefix.write_to(cache)
    cache.set_length(start)
    keys: list[torch.Tensor] = []

    def run(begin: int, end: int) -> None:
        cache.set_length(start + begin)
        model.forward_step(ids[begin:end], cache, start + begin, logits=False)
        keys.append(torch.stack([tapped[layer][0] for layer in range(model.spec.num_layers)]))

    with tap_keys(model) as tapped, _stoppable(model, stop):
        in_steps(run, len(ids), tokens_at_once(model, start, len(ids)), model.device)
    values = torch.stack([layer.value_slab[0, :, start:] for layer in cache.layers])
    return ChunkKV(keys[0] if len(keys) == 1 else torch.cat(keys, 2), values)


def prefill_chunks(
    model: LanguageModel,
    prefix: PrefixKV,
    chunks: Sequence[Sequence[int]],
    stop: Callable[[], bool] | None = None,
) -> list[ChunkKV]:
    """Prefill several chunks in one pass, as `prefill_chunk` does one after the other.

    The results are equal but for the rounding of larger matrix products. A GPU takes hardly longer for a few chunks
    than for one. Raises torch's own error if memory does not suffice (see `chunks_at_once`).
    """
    if len(chunks) == 1:
        return [prefill_chunk(model, prefix, chunks[0], stop)]
    start, longest = prefix.num_tokens, max(map(len, chunks))
    rows = SlabRows(model, len(chunks), start + longest)
    for of_row in rows.caches:
        prefix.write_to(of_row)
    cache = LayerCache(rows.layers)
    for layer in cache.layers:
        layer.set_length(start)
    # Padding stands behind a chunk's own tokens, which therefore never see it.
    ids = torch.zeros((len(chunks), longest), dtype=torch.int64)
    for row, chunk in enumerate(chunks):
        ids[row, : len(chunk)] = torch.tensor(chunk)
    with tap_keys(model) as tapped, _stoppable(model, stop):
        model.forward_rows(ids.to(model.device), cache, start)
    layers = [(tapped[index], layer.value_slab[:, :, start:]) for index, layer in enumerate(cache.layers)]
    return [
        ChunkKV(*(torch.stack([part[row, :, : len(chunk)] for part in kind]) for kind in zip(*layers, strict=True)))
        for row, chunk in enumerate(chunks)
    ]


def chunks_at_once(model: LanguageModel, prefix: PrefixKV, lengths: Sequence[int]) -> int:
    """Number of chunks, of these lengths in tokens, that `prefill_chunks` may take by the memory now free."""
    per_token = 3 * model.spec.fp16_bytes_per_token  # slabs, keys before RoPE, results
    room = _BATCH_SHARE * free_bytes(model.device)
    count = len(lengths)
    while count > 1:
        tokens = count * (prefix.num_tokens + max(lengths[:count]))
        if tokens * per_token <= room and tokens_at_once(model, 0, tokens) == tokens:
            break
        count -= 1
    return count


@contextmanager
def tap_keys(model: LanguageModel) -> Iterator[dict[int, torch.Tensor]]:
    """While open, every forward pass stores its pre-RoPE keys [B, H, N, D] in the yielded dict, by layer."""
    tapped: dict[int, torch.Tensor] = {}
    with ExitStack() as stack:
        for index, layer in enumerate(model.decoder_layers):
            attention: Any = layer.self_attn
            if model.spec.layout.key_tap is KeyTap.CACHE:
                handle = attention.register_forward_hook(_cache_hook(tapped, index, model), with_kwargs=True)
            else:
                module = getattr(attention, model.spec.layout.key_tap.value)
                handle = module.register_forward_hook(_key_hook(tapped, index, model))
            stack.callback(handle.remove)
        yield tapped


def _key_hook(tapped: dict[int, torch.Tensor], index: int, model: LanguageModel) -> Callable[..., None]:
    spec, layout = model.spec, model.spec.layout
    start = spec.num_heads * spec.head_dim if layout.key_tap is KeyTap.QKV_PROJ else 0

    def keep(_module: torch.nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        keys = attention_layout.by_heads(
            output, spec.num_kv_heads, spec.head_dim, start=start, heads_first=layout.heads_first
        )
        assert keys is not None, "as it was when the model was tried"
        tapped[index] = keys

    return keep


def _cache_hook(tapped: dict[int, torch.Tensor], index: int, model: LanguageModel) -> Callable[..., None]:
    """Turn back the keys that a layer has just written; their slots are their positions."""
    layout, decoder = model.spec.layout, model.module.model
    table = layout.tables[layout.table_of_layer[index]]

    def keep(_module: torch.nn.Module, _inputs: Any, kwargs: dict[str, Any], _output: Any) -> None:
        count = kwargs["hidden_states"].shape[1]
        keys = kwargs["past_key_values"].layers[index].keys
        end = keys.shape[2]
        written = keys[:, :, end - count :].float()
        if table != NO_POSITION:
            positions = torch.arange(end - count, end, device=written.device)
            written = unrotate(written, *half_tables(decoder, table, positions), interleaved=layout.interleaved)
        tapped[index] = written.to(keys.dtype)

    return keep


@contextmanager
def _stoppable(model: LanguageModel, stop: Callable[[], bool] | None) -> Iterator[None]:
    if stop is None:
        yield
        return

    begun: deque[torch.cuda.Event] = deque()

    def ask(_module: torch.nn.Module, _inputs: Any) -> None:
        if model.device.type == "cuda":
            begun.append(torch.cuda.current_stream(model.device).record_event())
            if len(begun) > _LAYERS_AHEAD:
                begun.popleft().synchronize()
        if stop():
            raise Cancelled("Prefill was interrupted to free the device for other work.")

    with ExitStack() as stack:
        for layer in model.decoder_layers:
            stack.callback(layer.register_forward_pre_hook(ask).remove)
        yield
