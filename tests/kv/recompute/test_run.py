"""Nothing recomputed is plain stitching bit for bit, everything is full prefill, and what lies between equals a slow
reference; for every family and RoPE scaling we accept."""

from __future__ import annotations

import pytest
import torch

from desk_rag.kv.cache import SlabCache
from desk_rag.kv.recompute.run import NOTHING, Selection, recompute
from tests.kv.oracle import plain_forward
from tests.kv.recompute.reference import slow_recompute
from tests.kv.stitched_cases import TEXTS, Case, stitched_case
from tests.models import FAMILIES, Family, build_model, each_family


def named(name: str) -> Family:
    return next(family for family in FAMILIES if family.name == name)


def run(case: Case, selection: Selection) -> torch.Tensor:
    return recompute(case.model, case.stitched, case.chunk_ids, case.question_ids, selection, case.tables)


def slabs(case: Case) -> list[torch.Tensor]:
    return [slab.clone() for layer in case.stitched.cache.layers for slab in (layer.key_slab, layer.value_slab)]


@each_family
def test_none_some_and_all(family: Family) -> None:
    model = build_model(family)
    full = plain_forward(model, stitched_case(model).all_ids, 1)[-1]
    scale = max(full.std().item(), 1.0)

    plain, case = stitched_case(model), stitched_case(model)
    question = torch.tensor(plain.question_ids)
    expected = model.forward(question, plain.stitched.cache, plain.stitched.plan.next_position, logits=True)
    assert torch.equal(run(case, NOTHING), expected)
    assert case.stitched.cache.layers[0].length == plain.stitched.cache.layers[0].length
    used = plain.stitched.cache.layers[0].length
    assert all(
        torch.equal(one[:, :, :used], other[:, :, :used]) for one, other in zip(slabs(case), slabs(plain), strict=True)
    )
    # Were stitched and full prefill the same anyway, the rest would prove nothing.
    assert (expected - full).abs().max().item() > 1e-2 * scale

    case = stitched_case(model)
    everything = run(case, Selection.everything(case.stitched.plan))
    assert (everything - full).abs().max().item() < 1e-4 * scale

    case = stitched_case(model)
    chosen = set(list(case.chunk_slots)[::3]) | set(list(case.chunk_slots)[5:14])
    slow, mixed = slow_recompute(model, case.stitched.cache, case.all_ids, chosen, case.chunk_slots)
    some = run(case, Selection.of(chosen, case.stitched.plan))
    assert (some - slow).abs().max().item() < 1e-4 * scale
    assert (some - full).abs().max().item() > 1e-3 * scale
    for layer, (keys, values) in zip(case.stitched.cache.layers, mixed, strict=True):
        assert layer.length == len(case.all_ids)
        assert torch.allclose(layer.keys, keys, atol=1e-4) and torch.allclose(layer.values, values, atol=1e-4)


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "mistral-sliding"])
def test_only_chosen_slots_and_the_question_are_written(name: str) -> None:
    model = build_model(named(name))
    case = stitched_case(model)
    before = slabs(case)
    start, end = case.stitched.plan.next_position, len(case.all_ids)
    second = case.stitched.plan.placements[1].slot + 1
    chosen = sorted({case.chunk_slots[3], second, case.chunk_slots[-1]})
    run(case, Selection.of(chosen, case.stitched.plan))
    touched = {*chosen, *range(start, end)}
    left = [slot for slot in range(end) if slot not in touched]
    for one, other in zip(before, slabs(case), strict=True):
        assert torch.equal(one[:, :, left], other[:, :, left])
    # Above layer 0 a token of the second chunk differs once it has read the first.
    assert not torch.allclose(before[-1][:, :, second], slabs(case)[-1][:, :, second], atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_decoding_goes_on_from_the_recomputed_cache(name: str) -> None:
    """Greedy decoding after recompute says token by token what the slow reference says of the longer prompt."""
    model = build_model(named(name))
    case = stitched_case(model)
    chosen = set(list(case.chunk_slots)[10:30])
    logits = run(case, Selection.of(chosen, case.stitched.plan))
    ids, position = case.all_ids, len(case.all_ids)
    other = stitched_case(model)
    for _ in range(6):
        slow, _ = slow_recompute(model, other.stitched.cache, ids, chosen, case.chunk_slots)
        assert (logits - slow).abs().max().item() < 1e-4 * max(slow.std().item(), 1.0)
        token = int(logits.argmax())
        ids = [*ids, token]
        forwarded = model.forward(torch.tensor([token]), case.stitched.cache, position, logits=True)
        assert forwarded is not None
        logits, position = forwarded, position + 1


def test_rows_in_several_blocks_equal_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(named("gemma3"))
    results = []
    for block in (5, 1000):
        monkeypatch.setattr("desk_rag.kv.forward.sparse_attention._BLOCK", {"cpu": block})
        case = stitched_case(model)
        results.append(run(case, Selection.of(list(case.chunk_slots)[::2], case.stitched.plan)))
    assert (results[0] - results[1]).abs().max().item() < 1e-5 * max(results[0].std().item(), 1.0)


def test_half_precision_stays_near_full_prefill() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        model = build_model(named("qwen2"), dtype)
        case = stitched_case(model)
        full = plain_forward(model, case.all_ids, 1)[-1].float()
        everything = run(case, Selection.everything(case.stitched.plan)).float()
        stitched = run(stitched_case(model), NOTHING).float()
        assert (everything - full).norm() < 0.3 * (stitched - full).norm()


def test_a_selection_is_ordered_and_says_its_ratio() -> None:
    plan = stitched_case(build_model(named("qwen3"))).stitched.plan
    first = plan.prefix_tokens
    selection = Selection.of([first + 4, first, first + 4], plan)
    assert selection.slots == (first, first + 4)
    assert selection.ratio == pytest.approx(2 / (plan.num_slots - first))
    assert Selection.everything(plan).ratio == 1.0
    for outside in (first - 1, plan.num_slots):
        with pytest.raises(AssertionError):
            Selection.of([outside], plan)


def test_the_model_attends_as_before_afterwards() -> None:
    model = build_model(named("qwen3"))
    before = model.module.config._attn_implementation
    case = stitched_case(model)
    run(case, Selection.everything(case.stitched.plan))
    assert model.module.config._attn_implementation == before
    with pytest.raises(AssertionError):
        recompute(model, case.stitched, case.chunk_ids[:-1], case.question_ids,
                  Selection.everything(case.stitched.plan), case.tables)  # fmt: skip
    assert model.module.config._attn_implementation == before


@pytest.mark.gpu
def test_on_a_gpu_kernel_and_reference_agree_and_all_is_full_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    from desk_rag.bench.models import shapes

    model = shapes.build("tiny", torch.device("cuda"), positions=2048)
    texts = [f"{text} {number}. " * 6 for number, text in enumerate(TEXTS)]
    results = []
    for kernel in (True, False):
        if not kernel:
            monkeypatch.setattr("desk_rag.kv.kernels.sparse_queries.attend_for", lambda query: None)
        case = stitched_case(model, texts)
        some = run(case, Selection.of(list(case.chunk_slots)[::3], case.stitched.plan)).float()
        case = stitched_case(model, texts)
        everything = run(case, Selection.everything(case.stitched.plan)).float()
        results.append((some, everything))
    ids = torch.tensor(case.all_ids, device=model.device)
    full = model.forward(ids, SlabCache(model, len(ids)), 0, logits=True)
    assert full is not None
    full = full.float()
    for one, other in zip(*results, strict=True):
        assert (one - other).norm() < 0.05 * one.norm()
    assert (results[0][1] - full).norm() < 0.05 * full.norm()
