"""Lean layers compute what the modules compute, call whoever waits in front of a layer, and leave no trace."""

from __future__ import annotations

import pytest
import torch

from desk_rag.kv.recompute import Selection, recompute
from desk_rag.kv.rows_lean import lean_layers
from desk_rag.kv.selection.looks import question_attention
from tests.kv.stitched_cases import Case, stitched_case
from tests.models import FAMILIES, Family, build_model

LEAN = [family for family in FAMILIES if family.name.split("-")[0] in {"llama", "qwen2", "qwen3", "mistral"}
        and family.name != "mistral-sliding"]  # fmt: skip


def run(case: Case) -> torch.Tensor:
    selection = Selection.of(list(case.chunk_slots)[::2], case.stitched.plan)
    return recompute(case.model, case.stitched, case.chunk_ids, case.question_ids, selection, case.tables)


@pytest.mark.parametrize("family", LEAN, ids=lambda family: family.name)
def test_lean_equals_the_modules_own_forward(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(family)
    lean = stitched_case(model)
    lean_logits = run(lean)
    monkeypatch.setattr("desk_rag.kv.rows_lean._PLAIN", frozenset())
    plain = stitched_case(model)
    plain_logits = run(plain)
    assert (lean_logits - plain_logits).abs().max().item() < 1e-4 * max(plain_logits.std().item(), 1.0)
    for one, other in zip(lean.stitched.cache.layers, plain.stitched.cache.layers, strict=True):
        assert torch.allclose(one.keys, other.keys, atol=1e-4) and torch.allclose(one.values, other.values, atol=1e-4)


def test_only_families_it_knows_run_lean() -> None:
    def nothing(*_: object) -> torch.Tensor:
        raise AssertionError

    for family in FAMILIES:
        with lean_layers(build_model(family), nothing) as lean:
            assert lean is (family in LEAN), family.name


def test_the_layers_are_as_before_afterwards() -> None:
    model = build_model(LEAN[0])
    case = stitched_case(model)
    run(case)
    question_attention(model, case.stitched, case.question_ids, [0])
    assert not any("forward" in vars(layer) for layer in model.decoder_layers)


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_chunks_may_arrive_layer_by_layer(name: str) -> None:
    """What hooks in front of a layer put into the slabs is there when the layer attends."""
    model = build_model(next(family for family in FAMILIES if family.name == name))
    there, late = stitched_case(model), stitched_case(model)
    seen = question_attention(model, there.stitched, there.question_ids, [0, 1])
    expected = run(there)
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
        layer.register_forward_pre_hook(lambda *_, index=index: bring(index))  # type: ignore[misc]
        for index, layer in enumerate(model.decoder_layers)
    ]
    assert torch.equal(question_attention(model, late.stitched, late.question_ids, [0, 1]), seen)
    assert arrived == [0, 1]
    assert torch.equal(run(late), expected)
    assert arrived == [0, 1, 2]
    for handle in handles:
        handle.remove()
