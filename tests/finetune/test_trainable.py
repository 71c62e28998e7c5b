"""Every family learns through the same rows, and what is merged computes what was trained."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from desk_rag.errors import ConfigError
from desk_rag.finetune.masked import loss_of, to_batch
from desk_rag.finetune.rows import build_island, build_row
from desk_rag.finetune.settings import Method, TrainSettings
from desk_rag.finetune.trainable import make_trainable
from desk_rag.kv.prefill import prefill_chunk, prefill_prefix
from desk_rag.model.prompt import IM_END
from tests.finetune.test_masked import TEXTS, context_of
from tests.models import FAMILIES, SPECIALS, build_model, byte_prompt

NAMES = ("llama-yarn", "qwen3", "mistral-sliding", "phi3-partial", "gemma2", "gemma3")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", list(Method))
def test_every_family_learns(name: str, method: Method) -> None:
    model = build_model(next(family for family in FAMILIES if family.name == name))
    trainable = make_trainable(model, TrainSettings(method=method, lora_rank=4))
    batch = to_batch(
        [build_row([build_island(context_of(model, full=full))], 512) for full in (False, True)],
        model.device,
    )
    model.module.train()
    loss = loss_of(model.module, batch)
    torch.autograd.backward(loss.total / loss.weight)
    gradients = {key: weight.grad for key, weight in trainable.parameters.items()}
    touched = [key for key, value in gradients.items() if value is not None and bool(value.abs().sum() > 0)]
    if method is Method.FULL:
        assert set(touched) == {key for key, _ in model.module.named_parameters()}
        return
    # The other half of an adapter has no gradient before the first step, because this half is still zero.
    assert set(touched) == {key for key in gradients if "lora_B" in key}
    linear = 4 if "phi3" in name else 7
    assert len(touched) == linear * model.spec.num_layers


@pytest.mark.parametrize("name", ["qwen3", "phi3-partial"])
def test_chunk_kv_is_the_same_beside_and_merged(name: str) -> None:
    model = build_model(next(family for family in FAMILIES if family.name == name))
    trainable = make_trainable(model, TrainSettings(lora_rank=4))
    ids = model.prompt.chunk_ids(TEXTS[0])
    plain = prefill_chunk(model, prefill_prefix(model), ids)
    with torch.no_grad():
        for key, weight in trainable.parameters.items():
            if "lora_B" in key:
                weight.normal_(std=0.05)
    beside = prefill_chunk(model, prefill_prefix(model), ids)
    merged = replace(model, module=trainable.peft.merge_and_unload())
    after = prefill_chunk(merged, prefill_prefix(merged), ids)
    assert torch.allclose(beside.keys, after.keys, atol=1e-3) and torch.allclose(beside.values, after.values, atol=1e-3)
    assert float((beside.keys - plain.keys).abs().max()) > 0.1


def test_what_cannot_be_trained_is_refused() -> None:
    model = build_model(FAMILIES[0])
    coded = replace(model, spec=replace(model.spec, weight_quantization="nf4"))
    with pytest.raises(ConfigError, match="quantised to nf4"):
        make_trainable(coded, TrainSettings(method=Method.FULL))
    adapted = replace(model, spec=replace(model.spec, adapter="a" * 32))
    with pytest.raises(ConfigError, match="carries an adapter"):
        make_trainable(adapted, TrainSettings())


def test_an_answer_ends_as_the_model_ends_its_turn() -> None:
    prompt = byte_prompt()
    ids = prompt.answer_ids(f"red{IM_END}")
    assert ids[-1] == SPECIALS.index(IM_END) and ids[-1] in prompt.stop_ids
    assert SPECIALS.index(IM_END) not in ids[:-1], "marks in an answer are plain text"
    assert prompt.decode(ids) == f"red{IM_END}"
