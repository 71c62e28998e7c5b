"""Rows side by side say what they say alone, and what the product's own path says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from desk_rag.answering import generation
from desk_rag.bench.answer_quality.batch import BatchCache, append
from desk_rag.bench.answer_quality.data.sample import Sample
from desk_rag.bench.answer_quality.modes import FULL, Mode, Way
from desk_rag.bench.answer_quality.prefill import quantized_chunks
from desk_rag.bench.answer_quality.run import Said, Setting, ask, divergence, to_item
from desk_rag.errors import ConfigError
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward.runner import ModelPass
from desk_rag.kv.positions import plan
from desk_rag.kv.prefill import prefill_chunk, prefill_prefix
from desk_rag.kv.prefix_variants.variants import PrefixVariant, build_prefix_variants
from desk_rag.kv.quant import LayerScheme, QuantScheme, quantize
from desk_rag.kv.rope import build_tables
from desk_rag.kv.stitch import stitch
from desk_rag.kv.types import Int8Layer, Namespace
from desk_rag.model.language_model import LanguageModel
from tests.models import FAMILIES, build_model

NAMES = ("llama", "qwen2", "qwen3", "mistral-sliding", "phi3-partial", "gemma2", "gemma3")
CASES = (
    (("The boiler was serviced.", "Rent is due on Monday."), "When is rent due?"),
    (("A short one.", "The ferry leaves Harwick at 7.40 and takes five hours.", "It rained."), "When does it leave?"),
    (("Beans.",), "What?"),
    (("The pump runs at night.", "The code is 58213.", "Anna moved to Porto, then to Lyon."), "What is the code?"),
)
REORDERED, RECOMPUTE = Mode(Way.REORDERED), Mode(Way.RECOMPUTE, "first-k", 0.3)
ABLATIONS = (Mode(Way.COMPOSITE), Mode(Way.PARALLEL))


def model_of(name: str) -> LanguageModel:
    return build_model(next(family for family in FAMILIES if family.name == name))


def setting_of(model: LanguageModel, max_new_tokens: int = 12) -> Setting:
    return Setting(model, prefill_prefix(model), build_tables(model, 400), max_new_tokens)


def samples() -> list[Sample]:
    return [Sample(question, (("x",),), texts, "t") for texts, question in CASES]


def run(setting: Setting, mode: Mode, asked: list[Sample], full: list[Said] | None = None) -> list[Said]:
    items = [to_item(sample, setting) for sample in asked]
    scheme = QuantScheme.uniform(setting.model.spec.num_layers)
    rungs = setting.ladder.variants if setting.ladder else [PrefixVariant(0, setting.prefix, Namespace(""))]
    chunks = [ids for item in items for ids in item.chunks]
    known = {
        (rung.count, ids): kv
        for rung in rungs
        for ids, kv in quantized_chunks(setting.model, rung.prefix, chunks, scheme).items()
    }
    return ask(setting, mode, items, known, full)


def greedy(setting: Setting, sample: Sample, *, full: bool) -> tuple[list[int], torch.Tensor]:
    """The product's path, one question alone: answer ids (the stop id left out) and first logits."""
    model, prefix = setting.model, setting.prefix
    chunks = [model.prompt.chunk_ids(text) for text in sample.contexts]
    question = model.prompt.question_ids(sample.question)
    cache = SlabCache(model, 400)
    if full:
        start, ids = 0, [*model.prompt.prefix_ids, *(token for chunk in chunks for token in chunk), *question]
    else:
        scheme = QuantScheme.uniform(model.spec.num_layers)
        coded = [quantize(prefill_chunk(model, prefix, chunk), scheme) for chunk in chunks]
        where = plan(prefix.num_tokens, [chunk.num_tokens for chunk in coded])
        stitch(model, where, prefix, coded, setting.tables, cache)
        start, ids = where.next_position, question
    run = ModelPass(model, cache)
    logits, limit = run.forward(ids, start), setting.max_new_tokens
    tokens = generation.decode(
        model.prompt, run, logits, start + len(ids), max_new_tokens=limit, stop=lambda: False
    )
    text = "".join(token.text for token in tokens)
    return list(text.encode("utf-8", "replace")), logits


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", [FULL, REORDERED, RECOMPUTE], ids=lambda mode: mode.label)
def test_a_row_says_in_a_batch_what_it_says_alone(name: str, mode: Mode) -> None:
    setting = setting_of(model_of(name))
    together = run(setting, mode, samples())
    for sample, said in zip(samples(), together, strict=True):
        (alone,) = run(setting, mode, [sample])
        assert said.token_ids == alone.token_ids
        torch.testing.assert_close(said.begun.logits, alone.begun.logits, atol=2e-4, rtol=1e-3)
    assert not torch.allclose(together[0].begun.logits, together[1].begun.logits, atol=1e-2)


@pytest.mark.parametrize("mode", ABLATIONS, ids=lambda mode: mode.label)
def test_ablation_positions_too_and_they_differ_from_reordered(mode: Mode) -> None:
    setting = setting_of(model_of("llama"))
    together, reordered = run(setting, mode, samples()), run(setting, REORDERED, samples())
    for sample, said in zip(samples(), together, strict=True):
        assert said.token_ids == run(setting, mode, [sample])[0].token_ids
    assert divergence(reordered[1].begun.logits, together[1].begun.logits) > 1e-3
    one_chunk = divergence(reordered[2].begun.logits, together[2].begun.logits)
    assert one_chunk < 1e-9  # a single chunk stands where it was prefilled, whatever the mode


@pytest.mark.parametrize("full", [True, False])
def test_the_product_says_the_same(full: bool) -> None:
    setting = setting_of(model_of("llama"))
    for sample, said in zip(samples(), run(setting, FULL if full else REORDERED, samples()), strict=True):
        text, logits = greedy(setting, sample, full=full)
        torch.testing.assert_close(said.begun.logits, logits, atol=2e-4, rtol=1e-3)
        kept = [token for token in said.token_ids if token not in setting.model.prompt.stop_ids]
        assert list(setting.model.prompt.decode(kept).encode("utf-8", "replace")) == text


@pytest.mark.parametrize("name", NAMES)
def test_primed_chunks_are_those_of_the_product(name: str) -> None:
    """Each chunk's KV is of the largest rung that is not above its place; the rest is as in 'reordered'."""
    plain = setting_of(model_of(name))
    model, scheme = plain.model, QuantScheme.uniform(plain.model.spec.num_layers)
    short = ("Beans are dry.", "It rained all day.")
    ladder = build_prefix_variants(model, plain.prefix, (0, 1, 2), scheme, passages=short)
    setting = replace(plain, ladder=ladder)
    primed = run(setting, Mode(Way.REORDERED, primed=True), samples())
    for sample, said in zip(samples(), primed, strict=True):
        chunks = [model.prompt.chunk_ids(text) for text in sample.contexts]
        before = [ladder.for_place(place).prefix for place in range(len(chunks))]
        coded = [quantize(prefill_chunk(model, *pair), scheme) for pair in zip(before, chunks, strict=True)]
        where = plan(setting.prefix.num_tokens, [len(chunk) for chunk in chunks])
        cache = SlabCache(model, 400)
        stitch(model, where, setting.prefix, coded, setting.tables, cache)
        ids = torch.tensor(model.prompt.question_ids(sample.question))
        logits = model.forward(ids, cache, where.next_position, logits=True)
        torch.testing.assert_close(said.begun.logits, logits, atol=5e-4, rtol=5e-3)
    reordered = run(setting, REORDERED, samples())
    same = [torch.allclose(a.begun.logits, b.begun.logits, atol=1e-2) for a, b in zip(primed, reordered, strict=True)]
    assert same == [False, False, True, False], "one chunk alone stands on rung 0"
    full = run(setting, FULL, samples())
    everything = run(setting, Mode(Way.RECOMPUTE, "first-k", 1.0, primed=True), samples(), full)
    assert all(said.kl is not None and said.kl < 1e-6 for said in everything)


@pytest.mark.parametrize("name", NAMES)
def test_recomputing_everything_agrees_with_full_prefill_and_stitching_less(name: str) -> None:
    setting = setting_of(model_of(name))
    full = run(setting, FULL, samples())
    everything = run(setting, Mode(Way.RECOMPUTE, "first-k", 1.0), samples(), full)
    stitched = run(setting, REORDERED, samples(), full)
    assert all(said.kl is not None and said.kl < 1e-6 and said.top1 == 1.0 for said in everything)
    assert [said.token_ids for said in everything] == [said.token_ids for said in full]
    assert [said.begun.recomputed for said in everything] == [1.0] * len(CASES)
    assert max(said.kl or 0.0 for said in stitched) > 1e-3


def test_top1_is_teacher_forced_along_full_prefills_answer() -> None:
    """By hand: after each beginning of full prefill's answer, is its next token the most probable one here?"""
    setting = setting_of(model_of("llama"), max_new_tokens=6)
    full = run(setting, FULL, samples())
    said = run(setting, REORDERED, samples(), full)
    assert min(one.top1 or 0.0 for one in said) < 1.0
    for sample, other, one in zip(samples(), full, said, strict=True):
        agreed = []
        for length in range(len(other.token_ids)):
            cache = BatchCache(setting.model, 1, 400)
            begun = _prefilled(setting, sample, cache)
            guess = begun
            if length:
                ids = torch.tensor([other.token_ids[:length]])
                positions = torch.arange(one.begun.next_position, one.begun.next_position + length)[None]
                guess = append(setting.model, cache, ids, positions, 1)[0, -1]
            agreed.append(int(guess.argmax()) == other.token_ids[length])
        assert one.top1 == pytest.approx(sum(agreed) / len(agreed))


def _prefilled(setting: Setting, sample: Sample, cache: BatchCache) -> torch.Tensor:
    model, item = setting.model, to_item(sample, setting)
    known = quantized_chunks(model, setting.prefix, item.chunks, QuantScheme.uniform(model.spec.num_layers))
    where = plan(setting.prefix.num_tokens, [len(ids) for ids in item.chunks])
    row = cache.row(0)
    stitch(model, where, setting.prefix, [known[ids] for ids in item.chunks], setting.tables, row)
    logits = model.forward(torch.tensor(item.question_ids), row, where.next_position, logits=True)
    assert logits is not None
    cache.filled([range(where.next_position + len(item.question_ids))])
    return logits


@pytest.mark.parametrize("name", NAMES)
def test_chunks_prefilled_together_are_those_prefilled_alone(name: str) -> None:
    model = model_of(name)
    prefix = prefill_prefix(model)
    chunks = [tuple(model.prompt.chunk_ids(text)) for texts, _ in CASES for text in texts]
    exact = QuantScheme.uniform(model.spec.num_layers, LayerScheme(raw=True))
    together = quantized_chunks(model, prefix, chunks, exact)
    assert set(together) == set(chunks)
    for ids in chunks:
        alone = prefill_chunk(model, prefix, ids)
        for layer, got in enumerate(together[ids].layers):
            torch.testing.assert_close(got.keys, alone.keys[layer], atol=1e-4, rtol=1e-3)
            torch.testing.assert_close(got.values, alone.values[layer], atol=1e-4, rtol=1e-3)


def test_layers_coded_at_once_have_the_codes_of_layers_coded_one_by_one() -> None:
    model = model_of("qwen2")
    prefix = prefill_prefix(model)
    ids = tuple(model.prompt.chunk_ids("Only one chunk, so that both sides are the same product."))
    scheme = QuantScheme.uniform(model.spec.num_layers)
    (kv,) = quantized_chunks(model, prefix, [ids], scheme).values()
    for got, wanted in zip(kv.layers, quantize(prefill_chunk(model, prefix, ids), scheme).layers, strict=True):
        assert isinstance(got, Int8Layer) and isinstance(wanted, Int8Layer)
        assert torch.equal(got.keys, wanted.keys) and torch.equal(got.values, wanted.values)
        assert torch.equal(got.key_scale, wanted.key_scale) and torch.equal(got.key_zero, wanted.key_zero)
        assert torch.equal(got.value_scale, wanted.value_scale)


def test_divergence() -> None:
    p, q = torch.tensor([0.5, 0.5]), torch.tensor([0.9, 0.1])
    assert divergence(p.log(), q.log()) == pytest.approx(0.5 * float(torch.log(p / q).sum()))
    assert divergence(p.log(), p.log() + 3) == pytest.approx(0, abs=1e-9)


def test_what_does_not_fit_is_left_out_from_the_middle_and_right_chunks_stay() -> None:
    setting = setting_of(model_of("qwen3"))
    texts = tuple(f"{number} " + "x" * 80 for number in range(8))
    item = to_item(Sample("q?", (("x",),), texts, "t", (3,)), setting)
    assert item.left_out > 0
    assert texts[3] in item.texts and texts[0] in item.texts and texts[7] in item.texts
    used = setting.prefix.num_tokens + item.num_tokens + setting.max_new_tokens
    assert used <= setting.model.spec.max_context < used + 80 + 20
    with pytest.raises(ConfigError, match="No chunk"):
        to_item(Sample("q?", (("x",),), ("y" * 2000,), "t"), setting)


@pytest.mark.gpu
def test_on_a_gpu_batches_say_what_single_rows_say() -> None:
    from desk_rag.config import ModelSettings
    from desk_rag.model.loading import load_model

    setting = setting_of(load_model(ModelSettings(device="cuda")), 40)
    full = run(setting, FULL, samples())
    for mode in (FULL, REORDERED, RECOMPUTE, *ABLATIONS):
        together, same = run(setting, mode, samples(), full), 0
        for sample, said in zip(samples(), together, strict=True):
            (alone,) = run(setting, mode, [sample])
            # bf16: a batched product may round otherwise, and a close call may fall the other way.
            assert divergence(alone.begun.logits, said.begun.logits) < 0.02
            same += said.token_ids == alone.token_ids
        assert same >= len(CASES) - 1
    everything = run(setting, Mode(Way.RECOMPUTE, "first-k", 1.0), samples(), full)
    assert max(said.kl or 0.0 for said in everything) < 0.02
