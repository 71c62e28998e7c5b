"""Models of every family hold their matrices as int8 rows on a CPU, and serve chunk KV as exactly as in fp32."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from desk_rag.bench.exactness import logits_of, relative
from desk_rag.bench.models.tiny_models import peaked_module
from desk_rag.cli.main import main
from desk_rag.config import ModelSettings
from desk_rag.errors import ConfigError, OutOfMemory, UnsupportedModel
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward.cpu_decode import DecodeStep
from desk_rag.kv.rope import build_tables
from desk_rag.model.directory_check import no_init
from desk_rag.model.embedded import int8_linear
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.library.installed import describe
from desk_rag.model.loading import load_model
from desk_rag.model.memory.plan import Device, weight_bytes
from desk_rag.model.on_cpu.placing import NarrowEmbedding, coded_weights
from tests.model.gguf.families import TINY, write_tiny
from tests.model.hostile_models import plain_adapter, plain_model
from tests.models import FAMILIES, Family, byte_prompt, each_family

pytestmark = pytest.mark.skipif(not int8_linear.available(), reason="this CPU does not multiply int8")
IDS = torch.arange(10, 60)
EXPERTS = frozenset({"mixtral", "gpt-oss", "olmoe", "granite-moe"})


def family(name: str) -> Family:
    return next(each for each in FAMILIES if each.name == name)


def written(place: Path, chosen: Family) -> Path:
    peaked_module(chosen).to(torch.bfloat16).save_pretrained(place)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(plain_model() / name, place / name)
    return place


def loaded(path: Path, quantization: str = "int8") -> LanguageModel:
    settings = ModelSettings.model_validate({"name": str(path), "device": "cpu", "quantization": quantization})
    return load_model(settings)


def logits(model: LanguageModel) -> torch.Tensor:
    return model.forward_all(IDS, SlabCache(model, len(IDS)), 0)


@each_family
def test_it_means_what_it_meant_and_its_caches_move(family: Family, tmp_path: Path) -> None:
    place = written(tmp_path, family)
    if family.name in EXPERTS:
        with pytest.raises(UnsupportedModel, match="mixture of experts"):
            loaded(place)
        return
    model, plain = loaded(place), loaded(place, "none")
    assert model.spec.weight_quantization == "int8" and model.spec.dtype is torch.float32
    assert not any(type(part) is torch.nn.Linear for part in model.module.modules())
    assert model.spec.layout == plain.spec.layout
    assert 1e-4 < relative(logits(model), logits(plain)) < 0.3  # peaked attention makes much of small errors
    tried = logits_of(dataclasses.replace(model, prompt=byte_prompt()))
    assert relative(tried.stitched, tried.masked) < 1e-3 < 0.01 < relative(tried.unmoved, tried.masked)


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma2"])
def test_gguf_files_become_rows_without_being_whole_in_16_bits(name: str, tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_tiny(file, TINY[name], Kind.F16)
    model, plain = loaded(file), loaded(file, "none")
    assert not any(type(part) is torch.nn.Linear for part in model.module.modules())
    assert 1e-4 < relative(logits(model), logits(plain)) < 0.3  # peaked attention makes much of small errors


def test_a_decoded_token_is_that_of_the_whole_pass(tmp_path: Path) -> None:
    model = loaded(written(tmp_path, family("llama")))
    assert isinstance(model.module.get_input_embeddings(), NarrowEmbedding)
    cache = SlabCache(model, len(IDS) + 1)
    step = DecodeStep.of(model, cache, build_tables(model, len(IDS) + 1))
    assert step is not None
    model.forward(IDS[:-1], cache, 0, logits=False)
    torch.testing.assert_close(step.run(int(IDS[-1]), len(IDS) - 1), logits(model)[-1], rtol=1e-3, atol=1e-4)


def test_the_planned_memory_is_that_of_what_is_held(tmp_path: Path) -> None:
    place = written(tmp_path, family("qwen2"))
    model = loaded(place)
    codes = coded_weights(model.module)
    assert model.spec.num_parameters == loaded(place, "none").spec.num_parameters
    rest = sum(parameter.nbytes for parameter in model.module.parameters())
    shape = describe("tiny", "folder", place).shape
    assert shape is not None
    planned = weight_bytes(shape, "int8", Device("memory", 0, 4, on_gpu=False))
    assert abs(planned - codes - rest) < 0.05 * planned
    assert planned < weight_bytes(shape, "none", Device("memory", 0, 2, on_gpu=False))


def test_what_is_not_possible_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="cannot carry an adapter"):
        load_model(
            ModelSettings(name=str(plain_model()), device="cpu", quantization="int8", adapter=str(plain_adapter()))
        )
    with pytest.raises(ConfigError, match="nf4") as refusal:
        loaded(plain_model(), "nf4")
    assert "--quantization int8" in refusal.value.remedy
    monkeypatch.setattr(int8_linear, "available", lambda: False)
    with pytest.raises(ConfigError, match="does not multiply int8"):
        loaded(plain_model())


def test_a_gguf_file_that_fits_only_as_rows_is_told_so_and_chosen_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import psutil

    file = tmp_path / "tiny.gguf"
    write_tiny(file, TINY["qwen2"], Kind.F16)
    shape = describe("tiny", "folder", file).shape
    assert shape is not None
    free = psutil.virtual_memory()._replace(available=2 * shape.parameters)
    with monkeypatch.context() as patch:
        patch.setattr(psutil, "virtual_memory", lambda: free)
        with pytest.raises(OutOfMemory, match="GB are free") as refusal:
            loaded(file, "none")
        assert "--quantization int8" in refusal.value.remedy
        assert logits(loaded(file)).isfinite().all()
    monkeypatch.setenv("DESK_RAG_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text("# mine\n[model]\ndevice = 'cpu'\n")
    monkeypatch.setattr("desk_rag.cli.models._fitting", lambda *_: "int8")
    assert main(["models", "use", str(file)]) == 0
    assert "with int8 weights" in capsys.readouterr().out
    chosen = (tmp_path / "config.toml").read_text()
    assert chosen.startswith("# mine\n") and 'quantization = "int8"' in chosen


_PEAK = """
import sys, threading
from pathlib import Path
from desk_rag.config import ModelSettings
from desk_rag.model.loading import load_model

def load(place):
    return load_model(ModelSettings.model_validate({"name": place, "device": "cpu", "quantization": "int8"}))

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
def test_memory_never_holds_the_checkpoint(tmp_path: Path) -> None:
    """Mapped files count: what is loaded takes little more than the int8 rows at any time."""
    config = LlamaConfig(
        vocab_size=600, hidden_size=1024, intermediate_size=4096, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=False, eos_token_id=2,
    )  # fmt: skip
    with no_init():
        module = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
    for parameter in module.parameters():
        parameter.data.fill_(0.01)
    module.save_pretrained(tmp_path)
    rows = sum(parameter.numel() for parameter in module.parameters())
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(plain_model() / name, tmp_path / name)
    command = [sys.executable, "-c", _PEAK, str(plain_model()), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert 0.8 * rows < int(run.stdout) < 1.6 * rows < 2 * rows  # the file alone is two bytes a weight


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_output_matrix_is_that_of_the_word_table(tied: bool, tmp_path: Path) -> None:
    module = peaked_module(family("qwen2"))
    module.config.tie_word_embeddings = tied
    module.tie_weights()
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    if tied:  # some checkpoints hold it twice
        state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    module.config.save_pretrained(tmp_path)
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(plain_model() / name, tmp_path / name)
    model = loaded(tmp_path)
    words, head = model.module.get_input_embeddings().weight, model.module.get_output_embeddings()
    assert isinstance(head, int8_linear.Int8Linear)
    same = (head.weight - words.float()).abs().max() < 0.02 * words.abs().max()
    assert bool(same) is tied
