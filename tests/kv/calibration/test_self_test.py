"""The self-test passes for every family we accept and fails for a model whose keys turn otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers.models.qwen3 import modeling_qwen3

from desk_rag.errors import UnsupportedModel
from desk_rag.kv.calibration.self_test import check_keys
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.layers.attention_layout import KeyTap
from tests.models import FAMILIES, build_model, each_family


def qwen3() -> LanguageModel:
    return build_model(next(family for family in FAMILIES if family.name == "qwen3"))


@each_family
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_accepted_model_passes_in_every_dtype(family: object, dtype: torch.dtype) -> None:
    assert check_keys(build_model(family, dtype)) < (1e-6 if dtype == torch.float32 else 0.01)  # type: ignore[arg-type]


def test_the_reader_passes(reader: LanguageModel) -> None:
    assert check_keys(reader) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_interleaved_pairs_are_refused(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    def interleaved(x: torch.Tensor) -> torch.Tensor:
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)

    monkeypatch.setattr(modeling_qwen3, "rotate_half", interleaved)
    family = next(family for family in FAMILIES if family.name == "qwen3")
    with pytest.raises(UnsupportedModel, match="not only, a rotation of the keys") as caught:
        build_model(family, dtype)
    assert caught.value.remedy


def test_a_layer_without_position_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = modeling_qwen3.apply_rotary_pos_emb, []

    def second_layer_unturned(q: torch.Tensor, k: torch.Tensor, *rest: torch.Tensor) -> object:
        calls.append(k)
        return (q, k) if len(calls) == 2 else real(q, k, *rest)

    monkeypatch.setattr(modeling_qwen3, "apply_rotary_pos_emb", second_layer_unturned)
    with pytest.raises(UnsupportedModel, match="not only, a rotation of the keys"):
        check_keys(qwen3())


def test_keys_tapped_at_the_wrong_place_are_refused() -> None:
    model = qwen3()
    with torch.no_grad():
        for layer in model.decoder_layers:
            layer.self_attn.k_norm.weight.uniform_(0.5, 2.0)
    layout = replace(model.spec.layout, key_tap=KeyTap.K_PROJ)
    with pytest.raises(UnsupportedModel, match="do not match"):
        check_keys(replace(model, spec=replace(model.spec, layout=layout)))


def test_not_a_number_is_refused() -> None:
    model = qwen3()
    with torch.no_grad():
        model.decoder_layers[1].self_attn.k_norm.weight[0] = float("nan")
    with pytest.raises(UnsupportedModel, match="inf"):
        check_keys(model)
