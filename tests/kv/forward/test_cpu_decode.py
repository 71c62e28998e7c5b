"""The decode step computes what the model's own pass computes, writes what it writes, and steps aside where it must."""

from __future__ import annotations

import pytest
import torch

from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward.cpu_decode import DecodeStep, _Norm
from desk_rag.kv.forward.families import is_plain
from desk_rag.kv.forward.runner import ModelPass, ModelRunner
from desk_rag.kv.prefill import prefill_prefix
from desk_rag.kv.rope import build_tables
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.packed_linear import pack_linears
from tests.models import FAMILIES, VOCABULARY, Family, build_model

PROMPT = [(7 * index) % 190 + 5 for index in range(40)]
TOKENS = [9, 12, 150, 31]


def family(name: str) -> Family:
    return next(one for one in FAMILIES if one.name == name)


def shaped(heads: int, kv_heads: int, dim: int) -> LanguageModel:
    """A Qwen3 with these heads."""
    model_class, config = family("qwen3").build()
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = heads, kv_heads, dim
    config.max_position_embeddings = 4096
    return build_model(Family("shaped", lambda: (model_class, config)))


def made(model: LanguageModel, capacity: int) -> tuple[SlabCache, DecodeStep]:
    cache = SlabCache(model, capacity)
    step = DecodeStep.of(model, cache, build_tables(model, capacity))
    assert step is not None
    return cache, step


def filled(cache: SlabCache, length: int, seed: int = 3) -> None:
    generator = torch.Generator().manual_seed(seed)
    for layer in cache.layers:
        for slab in (layer.key_slab, layer.value_slab):
            slab[:, :, :length] = torch.randn(slab[:, :, :length].shape, generator=generator)
    cache.set_length(length)


def both(model: LanguageModel, context: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Logits and slabs after every token, by the step and by the model's own pass."""
    cache, step = made(model, context + len(TOKENS))
    outputs: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for run, tensors in zip((ModelPass(model, cache, step), ModelPass(model, cache)), outputs, strict=True):
        filled(cache, context)
        for place, token_id in enumerate(TOKENS):
            tensors.append(run.forward([token_id], context + place).clone())
        assert cache.get_seq_length() == context + len(TOKENS)
        tensors += [slab.clone() for layer in cache.layers for slab in (layer.key_slab, layer.value_slab)]
    return outputs


@pytest.mark.parametrize("one", FAMILIES, ids=lambda one: one.name)
def test_every_family_either_agrees_with_its_own_pass_or_keeps_it(one: Family) -> None:
    model = build_model(one)
    if not is_plain(model):
        cache = SlabCache(model, 60)
        assert DecodeStep.of(model, cache, build_tables(model, 60)) is None
        return
    ours, theirs = both(model, 50)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (8, 2), (7, 1)])
@pytest.mark.parametrize("dim", [64, 96, 128])
@pytest.mark.parametrize("context", [1, 2045, 2501])
def test_heads_of_all_shapes_over_short_and_long_contexts(heads: int, kv_heads: int, dim: int, context: int) -> None:
    """Around 2,048 keys the way of reading them changes while an answer is decoded."""
    ours, theirs = both(shaped(heads, kv_heads, dim), context)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-4)


def test_packed_weights_are_used_as_they_are() -> None:
    model = build_model(family("qwen2"))
    plain = both(model, 20)[0][0]
    pack_linears(model.module)
    ours, theirs = both(model, 20)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-4)
    assert not torch.equal(ours[0], plain)


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-5, 0.0])
def test_norms_have_their_floor(size: float) -> None:
    """Epsilon decides for tokens whose numbers are tiny or zero."""
    norm = build_model(family("llama")).module.model.norm
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2.0)
    x = torch.randn(3, norm.weight.shape[0], generator=torch.Generator().manual_seed(1)) * size
    with torch.inference_mode():
        torch.testing.assert_close(_Norm.of(norm)(x), norm(x), rtol=1e-5, atol=1e-7)


def test_what_was_given_up_leaves_no_trace() -> None:
    """As a quote is walked: a token by the step, several by the model's pass, back again."""
    model = build_model(family("qwen3"))
    cache, step = made(model, 60)
    run = ModelPass(model, cache, step)
    run.forward(PROMPT, 0)
    first = run.forward([9], 40).clone()
    run.forward([12, 13, 14], 41)
    run.rewind(3)
    run.forward([77], 41)
    run.rewind(2)
    assert cache.get_seq_length() == 40
    assert torch.equal(run.forward([9], 40), first)
    whole = ModelPass(model, SlabCache(model, 60)).forward([*PROMPT, 9], 0)
    torch.testing.assert_close(first, whole, rtol=1e-4, atol=1e-4)


def test_while_somebody_waits_in_front_of_a_layer_the_model_runs_its_own_way() -> None:
    model = build_model(family("llama"))
    cache, step = made(model, 60)
    run = ModelPass(model, cache, step)
    run.forward(PROMPT, 0)
    by_step = run.forward([9], 40).clone()
    run.rewind(1)
    calls: list[int] = []
    handle = model.decoder_layers[1].register_forward_pre_hook(lambda *_: calls.append(1))
    assert not step.ready
    with_hook = run.forward([9], 40).clone()
    handle.remove()
    assert calls == [1]
    assert step.ready
    torch.testing.assert_close(by_step, with_hook, rtol=1e-4, atol=1e-4)


def test_other_dtypes_and_partial_rotary_keep_their_own_pass() -> None:
    half = build_model(family("llama"), dtype=torch.bfloat16)
    assert DecodeStep.of(half, SlabCache(half, 8), build_tables(half, 8)) is None
    model = build_model(family("llama"))
    assert DecodeStep.of(model, SlabCache(model, 8, torch.bfloat16), build_tables(model, 8)) is None


def test_past_the_slab_is_a_programming_error() -> None:
    model = build_model(family("llama"))
    _, step = made(model, 4)
    with pytest.raises(AssertionError, match="slab too small"):
        step.run(7, 4)


def test_an_engines_slab_decodes_by_it_unless_it_has_the_lean_pass() -> None:
    model = build_model(family("qwen3"))
    prefix = prefill_prefix(model)
    run = ModelRunner(model, prefix, build_tables(model, 60), 60).run()
    assert isinstance(run, ModelPass)
    assert run.step is not None
    runner = ModelRunner(model, prefix, build_tables(model, 60), 60, fused=True)
    assert runner.fused is not None
    assert runner.step is None


def test_a_step_that_says_something_else_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = build_model(family("qwen3"))
    slab = ModelRunner(model, prefill_prefix(model), build_tables(model, 60), 60)
    slab.prepare(PROMPT[:5])
    assert slab.step is not None

    def broken(*_: object) -> torch.Tensor:
        raise RuntimeError("no such product here")

    for wrong in (lambda *_: torch.ones(VOCABULARY), broken):
        slab = ModelRunner(model, prefill_prefix(model), build_tables(model, 60), 60)
        with monkeypatch.context() as patch:
            patch.setattr(DecodeStep, "run", wrong)
            slab.prepare(PROMPT[:5])
        assert slab.step is None
        run = slab.run()
        assert isinstance(run, ModelPass)
        assert run.step is None
    assert "differs from the reference by" in caplog.text
    assert "no such product" in caplog.text
