"""Captured keys are those before RoPE, prefill stops within a layer, and no hook outlives it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from desk_rag.errors import Cancelled
from desk_rag.kv import prefill
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.prefill import PrefixKV, chunks_at_once, prefill_chunk, prefill_chunks, prefill_prefix, tap_keys
from desk_rag.kv.rope import build_tables, rotate
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.layers.rotary import NO_POSITION
from tests.models import FAMILIES, build_model, each_family

BY_NAME = {family.name: family for family in FAMILIES}
IDS = list(range(40, 70))


def count_hooks(model: LanguageModel) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.module.modules())


@each_family
def test_captured_keys_rotated_to_where_they_were_are_the_cache(family) -> None:  # type: ignore[no-untyped-def]
    model = build_model(family)
    prefix = prefill_prefix(model)
    kv = prefill_chunk(model, prefix, IDS)
    assert kv.keys.shape == kv.values.shape
    assert kv.keys.shape == (model.spec.num_layers, model.spec.num_kv_heads, len(IDS), model.spec.head_dim)

    start = prefix.num_tokens
    cache = SlabCache(model, start + len(IDS))
    model.forward(torch.tensor([*model.prompt.prefix_ids, *IDS]), cache, 0, logits=False)
    tables = build_tables(model, start + len(IDS))
    for layer in range(model.spec.num_layers):
        table = tables.table_of_layer[layer]
        cos, sin = tables.cos[table][start:], tables.sin[table][start:]
        expected = cache.layers[layer].keys[0, :, start:]
        rotated = rotate(kv.keys[layer], cos, sin, interleaved=tables.interleaved)
        torch.testing.assert_close(rotated, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(kv.values[layer], cache.layers[layer].values[0, :, start:], rtol=1e-4, atol=1e-4)
        if model.spec.layout.tables[table] != NO_POSITION:  # rotated keys would pass the shapes above
            assert (kv.keys[layer] - expected).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "llama", "phi3"])
@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_a_chunk_of_as_many_tokens_as_heads_is_captured_the_right_way_round(name: str, tokens: int) -> None:
    """[1, N, H, D] and [1, H, N, D] look alike when N equals H (here 2)."""
    model = build_model(BY_NAME[name])
    assert model.spec.num_kv_heads == 2
    prefix = prefill_prefix(model)
    short = prefill_chunk(model, prefix, IDS[:tokens])
    long = prefill_chunk(model, prefix, IDS)
    torch.testing.assert_close(short.keys, long.keys[:, :, :tokens], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(short.values, long.values[:, :, :tokens], rtol=1e-4, atol=1e-5)


@each_family
def test_chunks_prefilled_together_are_those_prefilled_alone(family) -> None:  # type: ignore[no-untyped-def]
    model = build_model(family)
    prefix = prefill_prefix(model)
    chunks = [IDS, list(range(100, 112)), IDS[3:20]]
    together = prefill_chunks(model, prefix, chunks)
    for ids, kv in zip(chunks, together, strict=True):
        alone = prefill_chunk(model, prefix, ids)
        torch.testing.assert_close(kv.keys, alone.keys, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(kv.values, alone.values, rtol=1e-4, atol=1e-4)
    # The control: what another chunk of the same length has is something else.
    other = prefill_chunk(model, prefix, chunks[1])
    assert (together[0].values[:, :, :12] - other.values).abs().max() > 1e-2
    assert not count_hooks(model)


def test_chunks_together_are_stopped_within_a_layer() -> None:
    model = build_model(BY_NAME["qwen2"])
    prefix = prefill_prefix(model)
    calls: list[None] = []

    def stop() -> bool:
        calls.append(None)
        return len(calls) == 2

    with pytest.raises(Cancelled):
        prefill_chunks(model, prefix, [IDS, IDS[:9]], stop)
    assert len(calls) == 2 and not count_hooks(model)


def test_as_many_chunks_go_together_as_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(BY_NAME["qwen2"])
    prefix = prefill_prefix(model)
    of_chunk = 3 * model.spec.fp16_bytes_per_token * (prefix.num_tokens + 100)
    for chunks, count in ((0.5, 1), (1.5, 1), (3.5, 3), (9.0, 4)):
        monkeypatch.setattr(prefill, "free_bytes", lambda _, chunks=chunks: int(4 * chunks * of_chunk))
        assert chunks_at_once(model, prefix, [100, 90, 100, 100]) == count


def test_the_prefix_is_what_an_ordinary_pass_leaves_in_the_cache() -> None:
    model = build_model(BY_NAME["qwen2"])
    prefix = prefill_prefix(model)
    assert prefix.num_tokens == len(model.prompt.prefix_ids)
    cache = SlabCache(model, prefix.num_tokens + 3)
    prefix.write_to(cache)
    cache.set_length(prefix.num_tokens)
    ids = torch.tensor([*model.prompt.prefix_ids, 40, 41])
    whole = model.forward_all(ids, SlabCache(model, len(ids)), 0)
    behind = model.forward_all(ids[-2:], cache, prefix.num_tokens)
    torch.testing.assert_close(behind, whole[-2:], rtol=1e-4, atol=1e-4)


def test_a_chunk_depends_on_its_prefix_and_not_on_other_chunks() -> None:
    model = build_model(BY_NAME["qwen2"])
    prefix = prefill_prefix(model)
    one = prefill_chunk(model, prefix, IDS)
    prefill_chunk(model, prefix, list(range(100, 120)))
    again = prefill_chunk(model, prefix, IDS)
    assert one.keys.equal(again.keys)
    assert one.values.equal(again.values)
    bent = PrefixKV(prefix.keys, prefix.values * 1.5)
    assert not prefill_chunk(model, bent, IDS).values.equal(one.values)


def test_what_is_returned_is_not_overwritten_by_the_next_pass() -> None:
    model = build_model(BY_NAME["phi3"])
    prefix = prefill_prefix(model)
    kv = prefill_chunk(model, prefix, IDS)
    keys, values = kv.keys.clone(), kv.values.clone()
    prefill_chunk(model, prefix, list(reversed(IDS)))
    assert kv.keys.equal(keys)
    assert kv.values.equal(values)


def test_taps_see_each_pass_anew_and_close_behind_themselves() -> None:
    model = build_model(BY_NAME["llama"])
    before = count_hooks(model)
    with tap_keys(model) as tapped:
        model.forward(torch.tensor(IDS[:5]), SlabCache(model, 5), 0, logits=False)
        assert tapped[0].shape[2] == 5
        model.forward(torch.tensor(IDS[:7]), SlabCache(model, 7), 0, logits=False)
        assert tapped[0].shape[2] == 7
        assert sorted(tapped) == list(range(model.spec.num_layers))
    assert count_hooks(model) == before
    model.forward(torch.tensor(IDS), SlabCache(model, 30), 0, logits=False)
    assert tapped[0].shape[2] == 7


def after_calls(count: int) -> Callable[[], bool]:
    """False that often, then True."""
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls > count

    return stop


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_a_stop_is_obeyed_before_the_next_layer_runs(layers: int) -> None:
    model = build_model(BY_NAME["qwen3"])
    prefix = prefill_prefix(model)
    ran: list[int] = []
    watchers = [
        layer.mlp.register_forward_hook(lambda *_, index=index: ran.append(index))
        for index, layer in enumerate(model.decoder_layers)
    ]
    before = count_hooks(model)
    try:
        with pytest.raises(Cancelled):
            prefill_chunk(model, prefix, IDS, stop=after_calls(layers))
    finally:
        hooks = count_hooks(model)
        for watcher in watchers:
            watcher.remove()
    assert ran == list(range(layers))
    assert hooks == before


def test_after_a_stop_the_same_chunk_is_computed_as_ever() -> None:
    model = build_model(BY_NAME["qwen2"])
    prefix = prefill_prefix(model)
    undisturbed = prefill_chunk(model, prefix, IDS)
    with pytest.raises(Cancelled):
        prefill_chunk(model, prefix, IDS, stop=after_calls(1))
    again = prefill_chunk(model, prefix, IDS, stop=lambda: False)
    assert again.keys.equal(undisturbed.keys)
    assert again.values.equal(undisturbed.values)


def test_a_stop_from_another_thread_ends_the_readers_prefill_between_layers(reader: LanguageModel) -> None:
    prefix = prefill_prefix(reader)
    wanted = threading.Event()
    ran: list[int] = []

    def note(_module: torch.nn.Module, _inputs: object, _output: object) -> None:
        ran.append(len(ran))
        if len(ran) == 3:
            wanted.set()

    watchers = [layer.mlp.register_forward_hook(note) for layer in reader.decoder_layers]
    try:
        with pytest.raises(Cancelled):
            prefill_chunk(reader, prefix, list(range(500, 700)), stop=wanted.is_set)
    finally:
        for watcher in watchers:
            watcher.remove()
    assert len(ran) == 3
    assert reader.spec.num_layers == 10
    assert count_hooks(reader) == 0


def test_an_error_inside_the_model_leaves_no_hooks() -> None:
    model = build_model(BY_NAME["llama"])
    prefix = prefill_prefix(model)
    before = count_hooks(model)
    with pytest.raises(IndexError):
        prefill_chunk(model, prefix, [10**6], stop=lambda: False)
    assert count_hooks(model) == before
