"""Models that load, models that are refused with a reason, and messages about broken model directories."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from transformers import (
    BloomConfig,
    DeepseekV3Config,
    FalconConfig,
    Gemma2Config,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GPT2Config,
    GPTJConfig,
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    JambaConfig,
    Lfm2Config,
    LlamaConfig,
    MambaConfig,
    MiniCPM3Config,
    MptConfig,
    OPTConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3_5Config,
    Qwen3NextConfig,
    T5Config,
)

from desk_rag.bench import exactness
from desk_rag.config import ModelSettings
from desk_rag.errors import ConfigError, ModelError, ModelNotFound, UnsupportedModel
from desk_rag.kv.cache import SlabCache
from desk_rag.model import weights
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.layers.attention_layout import KeyTap, find
from desk_rag.model.loading import load_model, pick_device
from desk_rag.model.packed_linear import pack_linears
from desk_rag.model.support import check
from tests.models import FAMILIES, VOCABULARY, Family, build_model, byte_tokenizer

LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 48, "long_factor": [2.0] * 48,
    "original_max_position_embeddings": 4096,
}  # fmt: skip


# What is supported ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (GPT2Config(), "no RoPE; its position is learned or absolute"),
        (OPTConfig(), "no RoPE; its position is learned or absolute"),
        (BloomConfig(), "ALiBi"),
        (MptConfig(), "ALiBi"),
        (FalconConfig(alibi=True), "ALiBi"),
        (GPTJConfig(), "no RoPE parameters"),
        (DeepseekV3Config(), "latent"),
        (MiniCPM3Config(), "latent"),
        (Gemma3nTextConfig(), "share the KV of others"),
        (Qwen3_5Config(), "recurrent or linear-attention"),
        (Qwen3NextConfig(), "recurrent or linear-attention"),
        (MambaConfig(), "recurrent or linear-attention"),
        (Lfm2Config(num_hidden_layers=4, full_attn_idxs=[2]), "recurrent or linear-attention"),
        (JambaConfig(), "recurrent or linear-attention"),
        (T5Config(), "encoder with a decoder"),
        (Gemma4TextConfig(), "heads of several sizes"),
        (GraniteMoeHybridConfig(), "recurrent or linear-attention"),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_other_architectures_are_refused_with_the_property_that_forbids_them(config: object, reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason) as caught:
        check(config)
    assert f"'{config.model_type}'" in caught.value.message  # type: ignore[attr-defined]
    assert caught.value.exit_code == 5


def test_a_hybrid_without_recurrent_layers_is_served() -> None:
    """Granite 4 Micro: the fields of recurrent layers are in its configuration, and no such layer."""
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    config = GraniteMoeHybridConfig(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        shared_intermediate_size=96, num_local_experts=0, layer_types=["attention"] * 3, max_position_embeddings=512,
        position_embedding_type="rope", pad_token_id=0, eos_token_id=2, **rope,
    )  # fmt: skip
    model = build_model(Family("granite-4", lambda: (GraniteMoeHybridForCausalLM, config)))
    logits = exactness.logits_of(model)
    assert exactness.relative(logits.stitched, logits.masked) < 1e-4
    assert exactness.relative(logits.unmoved, logits.masked) > 0.05


@pytest.mark.parametrize(
    ("name", "tap", "heads_first", "interleaved"),
    [
        ("llama", KeyTap.K_PROJ, False, False),
        ("qwen3", KeyTap.K_NORM, False, False),
        ("phi3", KeyTap.QKV_PROJ, False, False),
        ("gemma3", KeyTap.K_NORM, True, False),
        ("gemma3-images", KeyTap.K_NORM, True, False),
        ("olmo2", KeyTap.K_NORM, False, False),
        ("glm4", KeyTap.K_PROJ, False, True),
        ("cohere2", KeyTap.K_PROJ, False, True),
        ("hunyuan", KeyTap.CACHE, True, False),
    ],
)
def test_where_keys_are_taken_and_how_they_turn_is_found(
    name: str, tap: KeyTap, heads_first: bool, interleaved: bool
) -> None:
    layout = build_model(next(family for family in FAMILIES if family.name == name)).spec.layout
    assert (layout.key_tap, layout.heads_first, layout.interleaved) == (tap, heads_first, interleaved)


def test_layers_without_position_are_found_one_by_one() -> None:
    layout = build_model(next(family for family in FAMILIES if family.name == "smollm3")).spec.layout
    assert layout.has_layers_without_position
    assert [layout.tables[table].module for table in layout.table_of_layer] == ["rotary_emb", "rotary_emb", ""]


def _absolute(module: torch.nn.Module) -> None:
    """Add to every hidden state what depends on its place."""

    layer = module.model.layers[0]  # type: ignore[union-attr,index]

    def shift(_module: object, inputs: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor]) -> object:
        place = kwargs["position_ids"].float()[..., None]
        return (inputs[0] + torch.sin(place * 0.1), *inputs[1:]), kwargs

    layer.register_forward_pre_hook(shift, with_kwargs=True)


def _stateful(module: torch.nn.Module) -> None:
    """Add to every hidden state the one before it, as a convolution over the text does."""

    def mix(_module: object, inputs: tuple[torch.Tensor, ...]) -> object:
        before = torch.nn.functional.pad(inputs[0], (0, 0, 1, 0))[:, :-1]
        return (inputs[0] + before, *inputs[1:])

    module.model.layers[1].register_forward_pre_hook(mix)  # type: ignore[union-attr,index]


@pytest.mark.parametrize("fault", [_absolute, _stateful])
def test_what_a_name_does_not_show_is_found_by_trying(fault: object) -> None:
    module = build_model(next(family for family in FAMILIES if family.name == "llama")).module
    assert find(module).key_tap is KeyTap.K_PROJ
    fault(module)  # type: ignore[operator]
    with pytest.raises(UnsupportedModel, match="moved"):
        find(module)


@pytest.mark.parametrize("kind", ["proportional", "ntk-by-parts"])
def test_unknown_rope_scaling_is_refused(kind: str) -> None:
    config = LlamaConfig()
    config.rope_parameters = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0}
    with pytest.raises(UnsupportedModel, match=kind):
        check(config)


def test_unknown_layer_types_are_refused() -> None:
    config = Qwen2Config(num_hidden_layers=2)
    config.layer_types = ["full_attention", "odd_attention"]
    with pytest.raises(UnsupportedModel, match="odd_attention"):
        check(config)


def test_without_rope_parameters_a_known_type_is_refused() -> None:
    config = LlamaConfig()
    config.rope_parameters = None
    with pytest.raises(UnsupportedModel, match="no RoPE"):
        check(config)


def test_scalings_that_depend_on_length_end_where_they_begin_to_change() -> None:
    longrope = Phi3Config(
        max_position_embeddings=131072, original_max_position_embeddings=4096, rope_parameters=LONGROPE
    )
    assert check(longrope).max_context == 4096
    dynamic = LlamaConfig(
        max_position_embeddings=2048, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    )
    assert check(dynamic).max_context == 2048
    plain = LlamaConfig(max_position_embeddings=8192)
    assert check(plain).max_context == 8192


def test_queries_scaled_by_position_are_served_up_to_where_that_begins() -> None:
    from transformers import Llama4TextConfig, Ministral3Config

    rope = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16_384}
    scaled = Ministral3Config(rope_parameters={**rope, "llama_4_scaling_beta": 0.1}, max_position_embeddings=262_144)
    assert check(scaled).max_context == 16_384
    assert check(Ministral3Config(rope_parameters=rope, max_position_embeddings=262_144)).max_context == 262_144
    tuned = Llama4TextConfig(attn_temperature_tuning=True, floor_scale=8192, layer_types=["full_attention"] * 48)
    assert check(tuned).max_context == 8191


def test_soft_capped_attention_asks_for_eager() -> None:
    assert check(Gemma2Config()).needs_eager
    assert not check(Gemma3TextConfig()).needs_eager


# Loading ----------------------------------------------------------------------------------------------------------


def test_the_reader_loads_as_its_readme_says(reader: LanguageModel) -> None:
    spec = reader.spec
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (10, 8, 2, 64)
    assert 30_000_000 < spec.num_parameters < 31_000_000
    assert spec.fp16_bytes_per_token == 5120
    assert spec.dtype is torch.float32
    assert spec.weight_quantization == "none"
    assert not reader.module.training
    assert not any(parameter.requires_grad for parameter in reader.module.parameters())
    embedded = reader.module.model.embed_tokens.weight
    torch.testing.assert_close(reader.module.lm_head.weight, embedded, rtol=2**-11, atol=2**-24)


def test_its_weights_are_the_stored_codes_times_their_scales(reader: LanguageModel, reader_dir: Path) -> None:
    from safetensors import safe_open

    name = "model.layers.4.mlp.down_proj.weight"
    with safe_open(str(reader_dir / "model.safetensors"), framework="pt") as file:
        expected = file.get_tensor(name).float() * file.get_tensor(f"{name}.scale").float().reshape(-1, 1)
        norm = file.get_tensor("model.layers.4.self_attn.k_norm.weight")
    # On a CPU without int8 products the matrices are kept in fp16: eleven bits of what was stored.
    torch.testing.assert_close(reader.decoder_layers[4].mlp.down_proj.weight, expected, rtol=2**-11, atol=2**-24)
    assert reader.decoder_layers[4].self_attn.k_norm.weight.equal(norm.float())


def test_logits_of_one_token_and_of_all_agree(reader: LanguageModel) -> None:
    ids = torch.arange(700, 730)
    one = reader.forward(ids, SlabCache(reader, 30), 0, logits=True)
    every = reader.forward_all(ids, SlabCache(reader, 30), 0)
    assert one is not None
    assert every.shape == (30, 12288)
    torch.testing.assert_close(one, every[-1], rtol=1e-4, atol=1e-4)
    assert reader.forward(ids, SlabCache(reader, 30), 0, logits=False) is None


@pytest.fixture
def tiny_dir(tmp_path: Path) -> Path:
    """An ordinary transformers checkpoint on disk."""
    model = build_model(next(family for family in FAMILIES if family.name == "qwen2"))
    model.module.save_pretrained(tmp_path)
    byte_tokenizer(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|a|>", "<|b|>"]).save(
        str(tmp_path / "tokenizer.json")
    )
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"})
    )
    return tmp_path


def load(place: Path) -> LanguageModel:
    return load_model(ModelSettings(name=str(place), device="cpu"))


def test_a_model_directory_loads_and_computes_what_was_saved(tiny_dir: Path) -> None:
    saved = build_model(next(family for family in FAMILIES if family.name == "qwen2"))
    pack_linears(saved.module)
    loaded = load(tiny_dir)
    assert loaded.spec.support.model_type == "qwen2"
    assert loaded.module.config.vocab_size == VOCABULARY
    ids = torch.arange(20, 40)
    torch.testing.assert_close(
        loaded.forward_all(ids, SlabCache(loaded, 20), 0), saved.forward_all(ids, SlabCache(saved, 20), 0)
    )


def test_the_fingerprint_is_of_the_weights(tiny_dir: Path) -> None:
    first = load(tiny_dir).spec
    assert load(tiny_dir).spec == first
    file = tiny_dir / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    changed = load(tiny_dir).spec
    assert changed.weights_fingerprint != first.weights_fingerprint
    assert changed.tokenizer_fingerprint == first.tokenizer_fingerprint


def test_a_large_file_is_fingerprinted_by_samples_that_see_size_head_and_tail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "_WHOLE_BELOW", 1 << 20)
    file = tmp_path / "big.safetensors"
    content = bytearray(8 << 20)
    seen = set()
    inside = ((8 << 20) - weights._SAMPLE_BYTES) * 31 // (weights._SAMPLES - 1) + 100
    for change in (None, 10, (8 << 20) - 1, inside):
        if change is not None:
            content[change] ^= 1
        file.write_bytes(content)
        seen.add(weights.fingerprint([file]))
    file.write_bytes(content + b"\0")
    seen.add(weights.fingerprint([file]))
    assert len(seen) == 5


def test_a_missing_model_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="neither a model directory"):
        load_model(ModelSettings(name=str(tmp_path / "nothing here")))
    with pytest.raises(ModelNotFound, match="config.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelNotFound, match="safetensors") as caught:
        load(tmp_path)
    assert caught.value.remedy


def test_a_hub_name_is_not_fetched_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelNotFound, match="not on this machine") as caught:
        load_model(ModelSettings(name="nobody/no-such-model"))
    assert "--download" in caught.value.remedy


@pytest.mark.parametrize("content", [b"", b"\0" * 100, None], ids=["empty", "zeros", "cut in half"])
def test_corrupt_weights_are_an_error_and_no_traceback(tiny_dir: Path, content: bytes | None) -> None:
    file = tiny_dir / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(ModelError, match="could not be loaded"):
        load(tiny_dir)


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"model_type": "no-such-thing"}', '{"model_type": "qwen2", "hidden_size": "x"}']
)
def test_a_broken_configuration_is_named(tiny_dir: Path, content: str) -> None:
    (tiny_dir / "config.json").write_text(content)
    with pytest.raises(ModelError, match="config.json"):
        load(tiny_dir)


def test_a_configuration_of_another_type_is_refused_before_any_weights_are_read(tiny_dir: Path) -> None:
    GPT2Config().save_pretrained(tiny_dir)
    (tiny_dir / "model.safetensors").write_bytes(b"never looked at")
    with pytest.raises(UnsupportedModel, match="no RoPE"):
        load(tiny_dir)


def test_reader_weights_that_do_not_fit_their_configuration_are_refused(tmp_path: Path, reader_dir: Path) -> None:
    for file in reader_dir.iterdir():
        shutil.copy(file, tmp_path / file.name)
    config = json.loads((reader_dir / "config.json").read_text())
    for change, match in (({"num_hidden_layers": 11}, "do not match"), ({"hidden_size": 256}, "do not match")):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ModelError, match=match) as caught:
            load(tmp_path)
        assert len(caught.value.message) < 400


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("settings", [{"quantization": "nf4"}, {"device": "cuda"}])
def test_what_needs_a_gpu_says_so_without_one(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="GPU") as caught:
        load_model(ModelSettings.model_validate(settings))
    assert caught.value.remedy
    assert caught.value.exit_code == 2


def test_quantisation_on_the_cpu_is_refused_even_beside_a_gpu() -> None:
    with pytest.raises(ConfigError, match="needs an NVIDIA GPU"):
        pick_device(ModelSettings(quantization="nf4", device="cpu"))
    assert pick_device(ModelSettings(device="cpu")).type == "cpu"


# Adapters -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def adapter_dir(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA adapter for the model in `tiny_dir`, with random weights."""
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    torch.manual_seed(5)
    config = peft.LoraConfig(r=4, lora_alpha=64, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    place = tmp_path_factory.mktemp("adapter")
    peft.get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_dir), config).save_pretrained(place)
    return place


def test_an_adapter_in_the_settings_is_served_and_has_chunk_kv_of_its_own(tiny_dir: Path, adapter_dir: Path) -> None:
    from desk_rag.kv.identity import identify
    from desk_rag.kv.quant import QuantScheme

    settings = ModelSettings(name=str(tiny_dir), device="cpu")
    plain, adapted, again = (
        load_model(settings.model_copy(update={"adapter": adapter}))
        for adapter in ("", str(adapter_dir), str(adapter_dir))
    )
    ids = torch.arange(20, 40)
    before, after, repeated = (model.forward_all(ids, SlabCache(model, 20), 0) for model in (plain, adapted, again))
    assert float((before - after).abs().max()) > 1e-2
    assert torch.equal(after, repeated)
    scheme = QuantScheme.uniform(plain.spec.num_layers)
    names = [identify(model.spec, model.prompt.prefix_ids, scheme).namespace() for model in (plain, adapted, again)]
    assert names[0] != names[1] == names[2]
    # Merged before the matrices were packed: were it the other way round, the adapter would lie beside them.
    kinds = [[type(part).__name__ for part in model.module.modules()] for model in (plain, adapted)]
    assert kinds[0] == kinds[1]
    assert adapted.spec.num_parameters == plain.spec.num_parameters


def test_an_adapter_that_is_none_or_peft_that_is_missing_is_said(
    tiny_dir: Path, adapter_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ModelSettings(name=str(tiny_dir), device="cpu", adapter=str(tiny_dir))
    with pytest.raises(ModelNotFound, match="is no adapter"):
        load_model(settings)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match="not installed") as caught:
        load_model(settings.model_copy(update={"adapter": str(adapter_dir)}))
    assert "pip install 'desk-rag[finetune]'" in caught.value.remedy


def test_loading_opens_no_socket(reader_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert load_model(ModelSettings(device="cpu")).spec.name == "embedded"
