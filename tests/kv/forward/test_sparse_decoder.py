"""Lean rows compute what the modules compute, ask whoever waits in front of a layer, and do nothing for nobody."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from desk_rag.bench.baselines.selectors import deviation
from desk_rag.bench.models import shapes
from desk_rag.kv.forward.attention import attend
from desk_rag.kv.forward.sparse_attention import QueryRows
from desk_rag.kv.forward.sparse_decoder import SparseDecoder
from desk_rag.kv.forward.sparse_rows import ScatterCache, run_rows
from desk_rag.kv.kernels.fused_ops import TorchOps
from desk_rag.kv.recompute.attention_scores import question_attention
from desk_rag.kv.recompute.run import Selection, recompute
from desk_rag.model.packed_linear import available, pack_linears
from tests.kv.stitched_cases import TEXTS, Case, stitched_case
from tests.models import FAMILIES, Family, build_model, on_device

LEAN = [family for family in FAMILIES if family.name.split("-")[0] in {"llama", "qwen2", "qwen3", "mistral"}
        and family.name != "mistral-sliding" and not family.property]  # fmt: skip
BY_NAME = {family.name: family for family in FAMILIES}


def changed(name: str, model_class: Any, config_class: Any, **changes: Any) -> Family:
    """Three narrow layers with something unusual about them."""
    common = {
        "vocab_size": 261, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "pad_token_id": 0,
        "eos_token_id": 2, "bos_token_id": None, "tie_word_embeddings": False,
    }  # fmt: skip
    return Family(name, lambda: (model_class, config_class(**common | changes)))


UNUSUAL = [
    changed("biased-llama", LlamaForCausalLM, LlamaConfig, attention_bias=True, mlp_bias=True),
    changed("gelu-qwen2", Qwen2ForCausalLM, Qwen2Config, hidden_act="gelu"),
]


def run(case: Case, decoder: SparseDecoder | None = None) -> torch.Tensor:
    selection = Selection.of(list(case.chunk_slots)[::2], case.stitched.plan)
    return recompute(
        case.model, case.stitched, case.chunk_ids, case.question_ids, selection, case.tables, decoder=decoder
    )


def as_transformers_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("desk_rag.kv.forward.sparse_decoder.is_plain", lambda model: False)


def packed_of(decoder: SparseDecoder) -> list[object]:
    return [layer.packed for layer in decoder.layers]


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("family", [*LEAN, *UNUSUAL], ids=lambda family: family.name)
def test_lean_equals_the_modules_own_forward(family: Family, pack: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(family)
    with torch.no_grad():
        for name, parameter in model.module.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    decoder = SparseDecoder.of(model, pack=pack)
    assert decoder is not None
    assert all((one is not None) is (pack and family.name != "biased-llama") for one in packed_of(decoder))
    mine = stitched_case(model)
    seen = question_attention(model, mine.stitched, mine.question_ids, [0, 2], decoder=decoder)
    apart = deviation(model, mine.stitched, mine.chunk_ids, 2, decoder=decoder)
    logits = run(mine, decoder)
    as_transformers_has_it(monkeypatch)
    theirs = stitched_case(model)
    expected = question_attention(model, theirs.stitched, theirs.question_ids, [0, 2])
    assert (seen - expected).abs().max().item() < 1e-5 and expected.max().item() > 0.05
    torch.testing.assert_close(apart, deviation(model, theirs.stitched, theirs.chunk_ids, 2), rtol=1e-3, atol=1e-5)
    plain = run(theirs)
    assert (logits - plain).abs().max().item() < 1e-4 * max(plain.std().item(), 1.0)
    for one, other in zip(mine.stitched.cache.layers, theirs.stitched.cache.layers, strict=True):
        assert torch.allclose(one.keys, other.keys, atol=1e-4) and torch.allclose(one.values, other.values, atol=1e-4)


def test_the_last_row_alone_is_given_to_whoever_divides_keys() -> None:
    """On a GPU a question's rows as well; on any device the last layer's only row that goes on."""
    model = build_model(BY_NAME["qwen2"])
    plain = SparseDecoder.of(model)
    assert plain is not None and plain.split is None, "the kernels are for GPUs"
    calls: list[tuple[int, ...]] = []

    def split(
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        out: torch.Tensor | None = None,
        start: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert out is None and start is None
        calls.append((query.shape[2], keys.shape[2]))
        return attend(query, keys, values)

    mine, theirs = stitched_case(model), stitched_case(model)
    assert torch.equal(run(mine, replace(plain, split=split)), run(theirs, plain))
    assert calls == [(1, mine.stitched.plan.num_slots + len(mine.question_ids))]


@pytest.mark.skipif(not available(), reason="this build of torch packs nothing")
def test_matrices_packed_for_a_cpu_stay_where_they_are() -> None:
    model = build_model(BY_NAME["qwen2"])
    pack_linears(model.module)
    decoder = SparseDecoder.of(model, pack=True)
    assert decoder is not None and not any(packed_of(decoder))
    mine, theirs = stitched_case(model), stitched_case(model)
    everything = Selection.everything(mine.stitched.plan)
    out = recompute(model, mine.stitched, mine.chunk_ids, mine.question_ids, everything, mine.tables, decoder=decoder)
    theirs.stitched.cache.set_length(0)
    full = model.forward(torch.tensor(theirs.all_ids), theirs.stitched.cache, 0, logits=True)
    assert full is not None
    assert (out - full).abs().max().item() < 1e-4 * max(full.std().item(), 1.0)


def test_the_kernels_between_matrix_products_serve_scattered_rows() -> None:
    """In Triton's interpreter, or compiled on a GPU."""
    pytest.importorskip("triton")
    from desk_rag.kv.kernels.fused_ops_triton import TritonOps

    model = on_device(build_model(BY_NAME["qwen3"]))
    fused, plain = stitched_case(model, TEXTS[:2]), stitched_case(model, TEXTS[:2])
    logits = run(fused, SparseDecoder.of(model, pack=True, ops=TritonOps()))
    expected = run(plain, SparseDecoder.of(model, pack=False, ops=TorchOps()))
    assert (logits - expected).abs().max().item() < 1e-4 * max(expected.std().item(), 1.0)
    for one, other in zip(fused.stitched.cache.layers, plain.stitched.cache.layers, strict=True):
        assert torch.allclose(one.keys, other.keys, atol=1e-4) and torch.allclose(one.values, other.values, atol=1e-4)


def test_kernels_that_do_not_fit_a_model_leave_torch_to_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from desk_rag.kv.kernels.fused_ops_triton import TritonOps

    model = on_device(build_model(BY_NAME["qwen3"]))
    monkeypatch.setattr("desk_rag.kv.forward.sparse_decoder.fused_ops_for", lambda device, dtype: TritonOps())
    fits = SparseDecoder.of(model)
    assert fits is not None and isinstance(fits.ops, TritonOps)

    def too_wide(*_: object) -> None:
        raise RuntimeError("out of shared memory")

    monkeypatch.setattr(TritonOps, "swiglu", too_wide)
    other = SparseDecoder.of(model)
    assert other is not None and isinstance(other.ops, TorchOps)


def test_only_models_it_knows_run_lean() -> None:
    for family in FAMILIES:
        assert (SparseDecoder.of(build_model(family)) is not None) is (family in LEAN), family.name
    model = build_model(BY_NAME["llama"])
    rotary = model.module.model.rotary_emb
    rotary.inv_freq = rotary.inv_freq[: rotary.inv_freq.shape[0] // 2]  # of every head only half is rotated
    assert SparseDecoder.of(model) is None


def test_what_belongs_to_another_model_is_refused() -> None:
    case = stitched_case(build_model(BY_NAME["llama"]))
    with pytest.raises(AssertionError, match="another model"):
        run(case, SparseDecoder.of(build_model(BY_NAME["llama"])))


def test_weights_are_moved_only_where_that_is_wanted() -> None:
    model = build_model(BY_NAME["qwen2"])
    attention: Any = model.decoder_layers[0].self_attn

    def side_by_side() -> bool:
        query = attention.q_proj.weight
        return bool(attention.k_proj.weight.data_ptr() == query.data_ptr() + query.numel() * query.element_size())

    SparseDecoder.of(model)
    assert not side_by_side()
    SparseDecoder.of(model, pack=True)
    assert side_by_side()


def test_without_room_a_layer_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(layer: Any) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr("desk_rag.kv.forward.sparse_decoder.Packed.of", full)
    decoder = SparseDecoder.of(build_model(BY_NAME["qwen2"]), pack=True)
    assert decoder is not None and not any(packed_of(decoder))


def test_nothing_is_computed_that_nobody_reads() -> None:
    model = build_model(BY_NAME["qwen3"])
    case = stitched_case(model)
    calls: list[tuple[int, int]] = []

    def note(index: int) -> Callable[..., None]:
        return lambda _mlp, inputs: calls.append((index, inputs[0].shape[1]))

    for index, layer in enumerate(model.module.model.layers):
        layer.mlp.register_forward_pre_hook(note(index))
    question_attention(model, case.stitched, case.question_ids, [0, 1])
    assert calls == [(0, len(case.question_ids))]
    calls.clear()
    deviation(model, case.stitched, case.chunk_ids)
    assert calls == [(0, len(case.chunk_slots))]
    calls.clear()
    run(case)
    rows = len(list(case.chunk_slots)[::2]) + len(case.question_ids)
    assert calls == [(0, rows), (1, rows), (2, 1)]


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_chunks_may_arrive_layer_by_layer(name: str) -> None:
    """A layer attends to whatever a hook in front of it put into the slabs."""
    model = build_model(BY_NAME[name])
    early, late = stitched_case(model), stitched_case(model)
    seen = question_attention(model, early.stitched, early.question_ids, [0, 1])
    expected = run(early)
    arrived: list[int] = []
    source = stitched_case(model)

    def bring(index: int) -> None:
        if index in arrived:
            return
        arrived.append(index)
        for slab in ("key_slab", "value_slab"):
            into, origin = (getattr(case.stitched.cache.layers[index], slab) for case in (late, source))
            end = late.stitched.plan.num_slots
            into[:, :, :end] = origin[:, :, :end]

    for layer in late.stitched.cache.layers:
        layer.key_slab.fill_(float("nan"))
        layer.value_slab.fill_(float("nan"))
    handles = [
        layer.register_forward_pre_hook(lambda *_, index=index: bring(index))
        for index, layer in enumerate(model.decoder_layers)
    ]
    assert torch.equal(question_attention(model, late.stitched, late.question_ids, [0, 1]), seen)
    assert arrived == [0, 1]
    assert torch.equal(run(late), expected)
    assert arrived == [0, 1, 2]
    for handle in handles:
        handle.remove()


def test_what_fails_in_front_of_a_layer_ends_the_pass_and_nothing_else() -> None:
    model = build_model(BY_NAME["llama"])
    case, fresh = stitched_case(model), stitched_case(model)

    def lost(*_: object) -> None:
        raise OSError("a chunk is gone")

    handle = model.decoder_layers[1].register_forward_pre_hook(lost)
    with pytest.raises(OSError, match="gone"):
        run(case)
    handle.remove()
    assert torch.equal(run(stitched_case(model)), run(fresh))


def test_a_look_folds_each_layer_s_weights() -> None:
    case = stitched_case(build_model(BY_NAME["qwen2"]))

    def hardest(weights: torch.Tensor) -> torch.Tensor:
        assert weights.shape == (4, len(case.question_ids), len(case.chunk_slots))
        return weights.amax(1).mean(0)

    whole = question_attention(case.model, case.stitched, case.question_ids, [2, 0])
    folded = question_attention(case.model, case.stitched, case.question_ids, [2, 0], fold=hardest)
    assert torch.equal(folded, whole.amax(2).mean(1))
    assert not torch.equal(folded[0], folded[1])


def test_rows_ascend_and_know_whether_they_are_the_last() -> None:
    model = build_model(BY_NAME["qwen2"])
    assert QueryRows.of(model, range(3, 9)).at_end and not QueryRows.of(model, [3, 5, 6]).at_end
    assert QueryRows.of(model, [4]).at_end and QueryRows.of(model, [3, 5, 6]).total == 7
    for wrong in ([], [2, 2], [3, 1]):
        with pytest.raises(AssertionError):
            QueryRows.of(model, wrong)
    case = stitched_case(model)
    rows = QueryRows.of(model, [1, 2])
    with pytest.raises(AssertionError, match="as many"):
        run_rows(model, ScatterCache(case.stitched.cache, rows), [1], rows)
    with pytest.raises(AssertionError, match="need the last layer"):
        run_rows(model, ScatterCache(case.stitched.cache, rows), [1, 2], rows, stop_layer=1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu_the_fused_way_says_what_torch_alone_says(monkeypatch: pytest.MonkeyPatch) -> None:
    from desk_rag.kv.kernels.fused_ops_triton import TritonOps

    model = shapes.build("tiny", torch.device("cuda"), positions=2048)
    texts = [f"{text} {number}. " * 6 for number, text in enumerate(TEXTS)]
    fused, plain = stitched_case(model, texts), stitched_case(model, texts)
    reference = SparseDecoder.of(model, pack=False, ops=TorchOps())
    fast = SparseDecoder.of(model)
    assert reference is not None
    slow = replace(reference, split=None)
    assert fast is not None and all(packed_of(fast)) and isinstance(fast.ops, TritonOps)
    outputs = []
    for case, decoder in ((fused, fast), (plain, slow)):
        if decoder is slow:  # torch's own attention as well
            monkeypatch.setattr("desk_rag.kv.forward.sparse_attention._SHORT", 0)
            monkeypatch.setattr("desk_rag.kv.kernels.sparse_queries.attend_for", lambda query: None)
        seen = question_attention(model, case.stitched, case.question_ids, [0, 1, 2], decoder=decoder)
        apart = deviation(model, case.stitched, case.chunk_ids, decoder=decoder)
        outputs.append((seen, apart, run(case, decoder).float(), case.stitched.cache.layers[2].keys.float()))
    for one, other in zip(*outputs, strict=True):
        assert (one - other).norm() < 0.05 * other.norm()
