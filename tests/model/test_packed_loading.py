"""Models that a CPU holds in fp32 are packed in fp16 while they are read, so that memory never holds fp32."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import LlamaConfig, LlamaForCausalLM

from desk_rag.bench.models.tiny_models import peaked_module
from desk_rag.config import ModelSettings
from desk_rag.kv.cache import SlabCache
from desk_rag.model import packed_linear
from desk_rag.model.directory_check import no_init
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.library.installed import describe
from desk_rag.model.loading import load_model
from desk_rag.model.memory.plan import Device, weight_bytes
from desk_rag.model.on_cpu.placing import PlainRows, coded_weights
from desk_rag.model.packed_linear import PackedLinear, PackedPart, pack_linears
from tests.model.gguf.families import TINY, write_tiny
from tests.model.hostile_models import plain_model
from tests.models import FAMILIES

pytestmark = pytest.mark.skipif(not packed_linear.available(), reason="this torch does not pack matrices")
IDS = torch.arange(10, 60)


def written(place: Path, name: str) -> Path:
    family = next(each for each in FAMILIES if each.name == name)
    peaked_module(family).to(torch.bfloat16).save_pretrained(place)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(plain_model() / file, place / file)
    return place


def loaded(path: Path, *, pack: bool = True) -> LanguageModel:
    return load_model(ModelSettings.model_validate({"name": str(path), "device": "cpu"}), pack=pack)


def logits(model: LanguageModel) -> torch.Tensor:
    return model.forward_all(IDS, SlabCache(model, len(IDS)), 0)


@pytest.mark.parametrize("name", ["qwen2", "gemma3", "mixtral", "gpt-oss", "phi3"])
def test_it_computes_what_packing_afterwards_computes(name: str, tmp_path: Path) -> None:
    place = written(tmp_path, name)
    model, afterwards = loaded(place), loaded(place, pack=False)
    parameters = afterwards.spec.num_parameters
    pack_linears(afterwards.module)
    assert torch.equal(logits(model), logits(afterwards))
    assert model.spec.num_parameters == parameters
    assert model.spec.weights_fingerprint == afterwards.spec.weights_fingerprint


def test_a_gguf_file_is_packed_too(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_tiny(file, TINY["qwen2"], Kind.F16)
    model, afterwards = loaded(file), loaded(file, pack=False)
    kinds = {type(part) for part in model.module.modules()}
    assert kinds & {PackedLinear, PackedPart} and torch.nn.Linear not in kinds
    pack_linears(afterwards.module)
    assert torch.equal(logits(model), logits(afterwards))


def test_numbers_beyond_fp16_stay_as_they_are(tmp_path: Path) -> None:
    place = written(tmp_path, "qwen2")
    from safetensors.torch import load_file, save_file

    state = load_file(place / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    state[name][0, 0] = 1e6
    save_file(state, place / "model.safetensors", metadata={"format": "pt"})
    model = loaded(place)
    (row,) = (part for part in model.module.modules() if isinstance(part, PlainRows))
    assert row.weight[0, 0] == state[name][0, 0].float() and torch.isfinite(logits(model)).all()


def test_the_planned_memory_is_that_of_what_is_held(tmp_path: Path) -> None:
    place = written(tmp_path, "qwen2")
    module = loaded(place).module
    held = 2 * coded_weights(module) + sum(parameter.nbytes for parameter in module.parameters())
    shape = describe("tiny", "folder", place).shape
    assert shape is not None
    cpu = Device("memory", 0, 4, on_gpu=False, packs=True)
    assert abs(weight_bytes(shape, "none", cpu) - held) < 0.06 * held
    assert weight_bytes(shape, "none", Device("memory", 0, 4, on_gpu=False)) == 4 * shape.parameters


_PEAK = """
import sys
from pathlib import Path
from desk_rag.config import ModelSettings
from desk_rag.model.loading import load_model

def load(place):
    return load_model(ModelSettings.model_validate({"name": place, "device": "cpu"}))

def held(kind):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(kind))
    return int(line.split()[1]) * 1024

load(sys.argv[1])  # what the libraries take
before = held("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
load(sys.argv[2])
print(held("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak is read from Linux' /proc")
def test_memory_never_holds_fp32(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=600, hidden_size=1024, intermediate_size=4096, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=False, eos_token_id=2,
    )  # fmt: skip
    with no_init():
        module = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
    for parameter in module.parameters():
        parameter.data.fill_(0.01)
    module.save_pretrained(tmp_path)
    count = sum(parameter.numel() for parameter in module.parameters())
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(plain_model() / name, tmp_path / name)
    command = [sys.executable, "-c", _PEAK, str(plain_model()), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert 1.8 * count < int(run.stdout) < 3.2 * count < 4 * count
