"""Stitched equals the masked forward pass, for every family and RoPE scaling we accept; through the product's own
code."""

from __future__ import annotations

import pytest
import torch

from desk_rag.bench.baselines.positions import Overlapping, overlapping_plan
from desk_rag.errors import UnsupportedModel
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.positions import StitchPlan, plan
from desk_rag.kv.prefill import PrefixKV, prefill_chunk, prefill_prefix
from desk_rag.kv.quant import keep_exact
from desk_rag.kv.rope import build_tables
from desk_rag.kv.stitch import stitch
from desk_rag.model.language_model import LanguageModel
from tests.kv.oracle import masked_forward, plain_forward
from tests.models import FAMILIES, Family, build_model, each_family, on_device

TEXTS = ["The boiler was serviced.", "Rent is due on Monday.", "Anna moved to Porto, then to Lyon."]
QUESTION = "When is rent due?"
NAMED = [family for family in FAMILIES if family.name in {"llama", "qwen2", "qwen3", "mistral"}]


def question_logits(
    model: LanguageModel, texts: list[str], stitch_plan: StitchPlan | None = None, prefix: PrefixKV | None = None
) -> tuple[torch.Tensor, StitchPlan]:
    """Logits of every question token over the stitched, unquantised cache."""
    prefix = prefix or prefill_prefix(model)
    ids = [model.prompt.chunk_ids(text) for text in texts]
    chunks = [keep_exact(prefill_chunk(model, prefix, chunk)) for chunk in ids]
    chosen = stitch_plan or plan(prefix.num_tokens, [len(chunk) for chunk in ids])
    question = torch.tensor(model.prompt.question_ids(QUESTION))
    cache = SlabCache(model, chosen.num_slots + len(question))
    tables = build_tables(model, chosen.next_position + len(question))
    stitch(model, chosen, prefix, chunks, tables, cache)
    positions = torch.arange(chosen.next_position, chosen.next_position + len(question))[None]
    with torch.inference_mode():
        return model.module(question[None], past_key_values=cache, position_ids=positions).logits[0], chosen


@each_family
def test_stitched_equals_masked_forward(family: Family, record_property: pytest.RecordProperty) -> None:
    model = build_model(family)
    got, chosen = question_logits(model, TEXTS)
    ids = [model.prompt.chunk_ids(text) for text in TEXTS]
    question = model.prompt.question_ids(QUESTION)
    starts = [placement.position for placement in chosen.placements]
    expected = masked_forward(model, ids, question, starts, chosen.next_position)
    error = (got - expected).abs().max().item()
    spread = expected.std().item()
    record_property("max_abs_error", error)
    record_property("logits_std", spread)
    assert error < 1e-4 * max(spread, 1.0)

    # Negative control: the same chunks left where they were prefilled must be visibly wrong.
    unmoved = StitchPlan(
        chosen.prefix_tokens,
        tuple(type(p)(slot=p.slot, position=chosen.prefix_tokens, num_tokens=p.num_tokens) for p in chosen.placements),
        chosen.next_position,
    )
    wrong, _ = question_logits(model, TEXTS, unmoved)
    assert (wrong - expected).abs().max().item() > 100 * error
    assert (wrong - expected).abs().max().item() > 1e-2 * spread


def half_precision_errors(family: Family, dtype: torch.dtype, device: torch.device) -> tuple[float, float]:
    """Relative errors against fp32 on the CPU: of the stitched logits, and of transformers' masked forward pass."""
    exact, chosen = question_logits(build_model(family), TEXTS)
    half = on_device(build_model(family, dtype), device)
    starts = [placement.position for placement in chosen.placements]
    with device:
        stitched, _ = question_logits(half, TEXTS)
        ids = [half.prompt.chunk_ids(text) for text in TEXTS]
        reference = masked_forward(half, ids, half.prompt.question_ids(QUESTION), starts, chosen.next_position)
    errors = [((logits.float().cpu() - exact).norm() / exact.norm()).item() for logits in (stitched, reference)]
    return errors[0], errors[1]


LARGEST_REFERENCE = 0.25
"""Above it the reference itself is wrong; granite-moe with random weights has 0.17 in bf16, others at most 0.06."""
MOST_OF_REFERENCE = 2.0
"""Most that the stitched logits' error may be of transformers' own in the same precision; both are rounding."""


@each_family
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_stitching_in_half_precision_errs_as_little_as_transformers(family: Family, dtype: torch.dtype) -> None:
    error, reference = half_precision_errors(family, dtype, torch.device("cpu"))
    assert 0.0 < reference < LARGEST_REFERENCE
    assert error < MOST_OF_REFERENCE * reference


@each_family
def test_one_chunk_right_after_the_prefix_equals_plain_prefill(family: Family) -> None:
    model = build_model(family)
    got, _ = question_logits(model, TEXTS[:1])
    question = model.prompt.question_ids(QUESTION)
    ids = [*model.prompt.prefix_ids, *model.prompt.chunk_ids(TEXTS[0]), *question]
    expected = plain_forward(model, ids, len(question))
    assert (got - expected).abs().max().item() < 1e-4 * max(expected.std().item(), 1.0)


@pytest.mark.parametrize("family", NAMED, ids=lambda family: family.name)
def test_two_chunks_are_not_full_attention(family: Family) -> None:
    """Stitching drops attention between chunks; if this passed as equal the oracle above would prove nothing."""
    model = build_model(family)
    got, _ = question_logits(model, TEXTS[:2])
    question = model.prompt.question_ids(QUESTION)
    ids = [*model.prompt.prefix_ids]
    for text in TEXTS[:2]:
        ids += model.prompt.chunk_ids(text)
    expected = plain_forward(model, [*ids, *question], len(question))
    assert (got - expected).abs().max().item() > 1e-2 * expected.std().item()


@pytest.mark.parametrize("family", NAMED, ids=lambda family: family.name)
def test_chunk_kv_does_not_depend_on_what_else_is_stitched(family: Family) -> None:
    """Permuting the chunks permutes the placements and nothing else: the masked forward pass agrees in any order."""
    model = build_model(family)
    order = [TEXTS[2], TEXTS[0], TEXTS[1]]
    got, chosen = question_logits(model, order)
    ids = [model.prompt.chunk_ids(text) for text in order]
    starts = [placement.position for placement in chosen.placements]
    expected = masked_forward(model, ids, model.prompt.question_ids(QUESTION), starts, chosen.next_position)
    assert (got - expected).abs().max().item() < 1e-4 * max(expected.std().item(), 1.0)


@pytest.mark.parametrize("scheme", list(Overlapping))
def test_ablation_positions_equal_the_masked_forward(scheme: Overlapping) -> None:
    model = build_model(NAMED[2])
    ids = [model.prompt.chunk_ids(text) for text in TEXTS]
    chosen = overlapping_plan(model, len(model.prompt.prefix_ids), [len(chunk) for chunk in ids], scheme)
    got, _ = question_logits(model, TEXTS, chosen)
    starts = [placement.position for placement in chosen.placements]
    assert set(starts) == {len(model.prompt.prefix_ids)}
    expected = masked_forward(model, ids, model.prompt.question_ids(QUESTION), starts, chosen.next_position)
    assert (got - expected).abs().max().item() < 1e-4 * max(expected.std().item(), 1.0)


def test_ablation_positions_are_refused_for_sliding_layers() -> None:
    model = build_model(next(family for family in FAMILIES if family.name == "gemma3"))
    with pytest.raises(UnsupportedModel, match="composite"):
        overlapping_plan(model, 8, [20, 30], Overlapping.COMPOSITE)


def test_ranged_scalings_are_refused_past_their_range() -> None:
    """Dynamic NTK and longrope change their frequencies past a length: exact below it, refused above it."""
    for name, limit in [("llama-dynamic", 512), ("phi3-longrope", 256)]:
        model = build_model(next(family for family in FAMILIES if family.name == name))
        assert model.spec.max_context == limit
        build_tables(model, limit)
        with pytest.raises(UnsupportedModel, match=str(limit)):
            build_tables(model, limit + 1)
