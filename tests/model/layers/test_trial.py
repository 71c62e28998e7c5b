"""What layers do with their keys is found out before the weights are loaded, as `find` does afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from desk_rag.config import ModelSettings
from desk_rag.errors import UnsupportedModel
from desk_rag.model import directory_check
from desk_rag.model.layers import attention_layout, text_part, trial
from tests.models import FAMILIES, VOCABULARY, Family, byte_tokenizer

_SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
    "pad_token_id": 0, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
_VISION = {"hidden_size": 32, "intermediate_size": 32, "image_size": 28, "patch_size": 14, "depth": 1, "num_heads": 2}

_REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "turned the other way": ("NanoChat", _SMALL, "not, or not only, a rotation of the keys"),
    "values of another size": (
        "MiMoV2Flash", {**_SMALL, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                        "n_group": 1, "topk_group": 1}, "keep keys and values of different sizes",
    ),
    "sections for other heads": (
        "Qwen2VL", {"text_config": _SMALL, "vision_config": _VISION}, "cannot be run over a cache of keys and values",
    ),
}  # fmt: skip


def _config(stem: str, fields: dict[str, Any]) -> Any:
    return getattr(transformers, f"{stem}Config")(**json.loads(json.dumps(fields)))


def _class(stem: str) -> Any:
    return getattr(transformers, f"{stem}ForCausalLM", None) or getattr(transformers, f"{stem}ForConditionalGeneration")


def _message(module: Any) -> str:
    with pytest.raises(UnsupportedModel) as refusal:
        attention_layout.find(text_part.text_part(module.eval()))
    return refusal.value.message


@pytest.mark.parametrize("kind", _REFUSED)
def test_a_model_is_refused_before_its_weights_are_read_as_it_is_afterwards(kind: str, tmp_path: Path) -> None:
    stem, fields, reason = _REFUSED[kind]
    torch.manual_seed(0)
    module = _class(stem)(_config(stem, fields))
    module.save_pretrained(tmp_path)
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UnsupportedModel, match=reason) as refusal:
        directory_check.check(tmp_path, ModelSettings(name=str(tmp_path), device="cpu"))
    afterwards = _message(module)
    assert refusal.value.message.partition("(")[0] == afterwards.partition("(")[0]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_one_layer_of_each_kind_stands_for_all(family: Family) -> None:
    model_class, config = family.build()
    with directory_check.no_init(), torch.device("meta"):
        module = text_part.text_part(model_class._from_config(config))
    kinds = {
        (kind, bool(getattr(layer.self_attn, "use_rope", True)))
        for layer, kind in zip(
            module.model.layers, getattr(module.config, "layer_types", None) or [""] * 3, strict=True
        )
    }
    trial.try_layers(module)
    tried = {
        (kind, bool(getattr(layer.self_attn, "use_rope", True)))
        for layer, kind in zip(
            module.model.layers, getattr(module.config, "layer_types", None) or [""] * 3, strict=False
        )
    }
    assert tried == kinds


def test_a_large_model_is_tried_in_the_memory_of_its_largest_matrix() -> None:
    config = transformers.LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=40, num_attention_heads=8, num_key_value_heads=2,
        vocab_size=1_200_000,
    )  # fmt: skip
    with directory_check.no_init(), torch.device("meta"):
        module = transformers.LlamaForCausalLM._from_config(config)
    trial.try_layers(module)
    assert len(module.model.layers) == 1
    storages = {
        parameter.untyped_storage().data_ptr(): parameter.untyped_storage().nbytes()
        for parameter in module.parameters() if parameter.dim() > 1
    }  # fmt: skip
    assert len(storages) == 1
    assert sum(storages.values()) < 4 * (1024 * 2816 + 1_100_000)


def test_a_configuration_with_numbers_for_keys_is_read(tmp_path: Path) -> None:
    fields = {
        "text_config": _SMALL | {"moe_num_experts": 4},
        "vision_config": _VISION,
        "projector_patch_to_query_dict": {"4": 2},
    }
    config = _config("Aria", fields)
    config.save_pretrained(tmp_path)
    directory_check.checkpoint_config.check_config(tmp_path / "config.json", {**config.to_dict(), "auto_map": None})
    assert any(isinstance(key, int) for key in config.to_dict()["projector_patch_to_query_dict"])
