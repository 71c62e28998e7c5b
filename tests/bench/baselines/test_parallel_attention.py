"""APE's attention is its two parts, merged by their sums of exponentials; Block-Attention's chunks know no prefix."""

from __future__ import annotations

import pytest
import torch

from desk_rag.bench.answer_quality.modes import Mode, Way
from desk_rag.bench.answer_quality.run import NO_PREFIX, ask, to_item
from desk_rag.bench.baselines import parallel_attention
from desk_rag.bench.baselines.parallel_attention import attend
from desk_rag.errors import ConfigError, UnsupportedModel
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.positions import plan
from desk_rag.kv.prefill import PrefixKV, prefill_chunk
from desk_rag.kv.quant import QuantScheme, quantize
from desk_rag.kv.stitch import stitch
from tests.bench.answer_quality.test_batch import model_of, run, samples, setting_of


def test_its_parts_are_merged_by_their_sums() -> None:
    """As published: flash attention over the contexts by q / T, its log-sum-exp times S, merged with the rest."""
    torch.manual_seed(1)
    query, key, value = torch.randn(1, 4, 2, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
    mask = torch.ones(1, 1, 2, 9, dtype=torch.bool).tril(7)
    out, _ = attend(torch.nn.Module(), query, key, value, mask, context=slice(2, 6), temperature=0.7, context_scale=0.8)
    keys, values = (states.repeat_interleave(2, dim=1) for states in (key, value))
    scores = query @ keys.transpose(-1, -2) * 8**-0.5
    inside, outside = scores[..., 2:6] / 0.7, torch.cat([scores[..., :2], scores[..., 6:]], -1)
    outside[..., 0, -1] = -torch.inf  # the second token is behind the first
    parts = [inside.softmax(-1) @ values[:, :, 2:6],
             outside.softmax(-1) @ torch.cat([values[:, :, :2], values[:, :, 6:]], 2)]  # fmt: skip
    weights = torch.stack([0.8 * inside.logsumexp(-1), outside.logsumexp(-1)]).softmax(0)
    expected = sum(part * weight[..., None] for part, weight in zip(parts, weights, strict=True))
    assert torch.allclose(out.transpose(1, 2), expected, atol=1e-5)
    additive = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    again, _ = attend(
        torch.nn.Module(), query, key, value, additive, context=slice(2, 6), temperature=0.7, context_scale=0.8
    )
    assert torch.equal(again, out)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_without_correction_ape_is_parallel_and_with_it_is_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = setting_of(model_of(name))
    before = setting.model.module.config._attn_implementation
    parallel, corrected = (run(setting, Mode(way), samples()) for way in (Way.PARALLEL, Way.APE))
    plain = parallel_attention.attending
    monkeypatch.setattr(
        "desk_rag.bench.answer_quality.run.attending", lambda model, context: plain(model, context, 1.0, 1.0)
    )
    for one, other, changed in zip(parallel, run(setting, Mode(Way.APE), samples()), corrected, strict=True):
        torch.testing.assert_close(one.begun.logits, other.begun.logits, atol=2e-4, rtol=1e-3)
        assert one.token_ids == other.token_ids
        assert not torch.allclose(one.begun.logits, changed.begun.logits, atol=1e-2)
    assert setting.model.module.config._attn_implementation == before


def test_ape_refuses_what_it_is_not_defined_for() -> None:
    model = model_of("gemma2")
    with pytest.raises(UnsupportedModel, match="capped"), parallel_attention.attending(model, slice(1, 2)):
        pass


def test_blocks_are_prefilled_alone_and_placed_one_behind_the_other() -> None:
    setting = setting_of(model_of("llama"))
    model, scheme = setting.model, QuantScheme.uniform(setting.model.spec.num_layers)
    nothing = PrefixKV(setting.prefix.keys[:, :, :0], setting.prefix.values[:, :, :0])
    item = to_item(samples()[0], setting)
    alone = {(NO_PREFIX, ids): quantize(prefill_chunk(model, nothing, ids), scheme) for ids in item.chunks}
    (said,) = ask(setting, Mode(Way.BLOCK), [item], alone, None)
    where = plan(setting.prefix.num_tokens, [len(ids) for ids in item.chunks])
    cache = SlabCache(model, 400)
    stitch(model, where, setting.prefix, [alone[NO_PREFIX, ids] for ids in item.chunks], setting.tables, cache)
    logits = model.forward(torch.tensor(item.question_ids), cache, where.next_position, logits=True)
    torch.testing.assert_close(said.begun.logits, logits, atol=5e-4, rtol=5e-3)
    (behind,) = run(setting, Mode(Way.REORDERED), [samples()[0]])
    assert not torch.allclose(said.begun.logits, behind.begun.logits, atol=1e-2)


def test_the_harness_prefills_blocks_and_refuses_chosen_quotes_with_ape() -> None:
    from desk_rag.bench.answer_quality.evaluation import QualitySettings, evaluate

    modes = [Mode(way) for way in (Way.FULL, Way.BLOCK, Way.APE)]
    report = evaluate(model_of("llama"), samples(), modes, QualitySettings(max_new_tokens=6))
    assert report.row("block").scores["kl"].mean > 1e-4 and report.row("ape").scores["kl"].mean > 1e-4
    with pytest.raises(ConfigError, match="APE"):
        evaluate(model_of("llama"), samples(), [Mode(Way.APE)], chooser=object())  # type: ignore[arg-type]
