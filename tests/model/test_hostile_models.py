"""Hostile and damaged model directories: each is refused in words, in bounded time, and nothing in it is run."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from desk_rag.cli import doctor
from desk_rag.config import ModelSettings, Settings
from desk_rag.errors import DeskRagError, ModelError
from desk_rag.model.layers.text_part import text_part
from desk_rag.model.loading import load_model
from desk_rag.model.weights import weight_files
from desk_rag.retrieval.embedding import load_embedder
from tests.model.hostile_models import Directory, build, names, plain_adapter, plain_embedder, plain_model
from tests.models import Family, each_family

CPU_SECONDS = 5.0


def load(directory: Directory) -> object:
    settings = directory.settings()
    return load_embedder(settings) if directory.kind == "embedder" else load_model(settings)


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Import what loading imports, so that no test is charged with it; and see that the sound directories load."""
    model = load_model(ModelSettings(device="cpu", name=str(plain_model()), adapter=str(plain_adapter())))
    assert model.spec.num_layers == 2 and model.spec.adapter
    assert load_embedder(ModelSettings(device="cpu", embedder=str(plain_embedder()))).dim == 8


def doctors_refusal(directory: Directory, data_dir: Path) -> str | None:
    """The message of the first of doctor's checks that the directory fails."""
    settings = Settings(model=directory.settings(), data_dir=data_dir)
    try:
        doctor._model(settings)
        doctor._adapter(settings)
        doctor._embedder(settings)
    except DeskRagError as error:
        return error.message
    return None


NEEDS_LOADING = frozenset({"adapter-half", "adapter-of-other-modules"})
"""Loaders of each kind; an adapter's tensors are compared with the model's when both are loaded."""


@pytest.mark.parametrize("name", names())
def test_a_hostile_directory_is_refused_in_words_by_an_answer_and_by_doctor(name: str, tmp_path: Path) -> None:
    directory = build(name, tmp_path / "given")
    before = sum(os.times()[:4])
    with pytest.raises(ModelError) as refusal:
        load(directory)
    # Time on the processor, of child processes too: how busy the machine is does not count.
    assert sum(os.times()[:4]) - before < CPU_SECONDS
    message = refusal.value.message
    assert re.search(directory.match, message)
    assert refusal.value.exit_code == 5 and refusal.value.remedy
    assert len(message) < 1000 and "\n" not in message
    assert doctors_refusal(directory, tmp_path / "data") == (None if name in NEEDS_LOADING else message)
    assert not directory.executed.exists() and not (Path.cwd() / "executed").exists()


def test_there_are_many_of_each_sort() -> None:
    wrong = [name for name in names() if name.startswith(("wrong-", "shards-"))]
    assert len(wrong) >= 15 and len(names()) - len(wrong) >= 43


# What looks odd and is sound ------------------------------------------------------------------------------------------


def copied(tmp_path: Path, source: Path) -> Path:
    return Path(shutil.copytree(source, tmp_path / "copy"))


def test_pickles_beside_whole_safetensors_are_left_alone(tmp_path: Path) -> None:
    place = copied(tmp_path, plain_model())
    (place / "pytorch_model.bin").write_bytes(b"never opened")
    (place / "consolidated.safetensors").write_bytes(b"never opened")
    assert load_model(ModelSettings(device="cpu", name=str(place))).spec.num_layers == 2
    assert [file.name for file in weight_files(place)] == ["model.safetensors"]


def test_tied_embeddings_need_no_head(tmp_path: Path) -> None:
    place = copied(tmp_path, plain_model())
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    tensors = load_file(place / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    for present in (tensors, {name: value for name, value in tensors.items() if name != "lm_head.weight"}):
        save_file(present, place / "model.safetensors", metadata={"format": "pt"})
        module = load_model(ModelSettings(device="cpu", name=str(place)), pack=False).module
        assert module.lm_head.weight.equal(tensors["model.embed_tokens.weight"])


def test_a_window_of_0_that_is_switched_off_is_none(tmp_path: Path) -> None:
    """transformers makes it of the window that Qwen2-MoE's configurations name and do not use."""
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    place = copied(tmp_path, plain_model())
    fields = json.loads((place / "config.json").read_text())
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    config = Qwen2MoeConfig(
        **{name: fields[name] for name in sizes}, num_hidden_layers=2, use_sliding_window=False, sliding_window=4096,
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16,
    )  # fmt: skip
    (place / "model.safetensors").unlink()
    Qwen2MoeForCausalLM(config).save_pretrained(place)
    saved = json.loads((place / "config.json").read_text())
    for window in (0, 4096):
        (place / "config.json").write_text(json.dumps(saved | {"sliding_window": window}))
        assert load_model(ModelSettings(device="cpu", name=str(place))).spec.num_layers == 2


def test_links_within_the_hub_cache_are_followed(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "0123", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for file in plain_model().iterdir():
        (blobs / file.name).write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    assert load_model(ModelSettings(device="cpu", name=str(snapshot))).spec.num_layers == 2


def test_an_auto_map_of_classes_that_transformers_has_is_ignored(tmp_path: Path) -> None:
    place = copied(tmp_path, plain_model())
    config = json.loads((place / "config.json").read_text())
    old = {"AutoConfig": "configuration_qwen2.Qwen2Config", "AutoModelForCausalLM": "modeling_qwen2.Qwen2ForCausalLM"}
    (place / "config.json").write_text(json.dumps(config | {"auto_map": old}))
    (place / "modeling_qwen2.py").write_text("raise SystemExit('executed')")
    assert type(load_model(ModelSettings(device="cpu", name=str(place))).module).__module__.startswith("transformers.")


@each_family
@pytest.mark.parametrize("shard", ["50GB", "20KB"], ids=["whole", "shards"])
def test_every_family_that_is_served_passes_the_checks(family: Family, shard: str, tmp_path: Path) -> None:
    model_class, config = family.build()
    module = model_class(config)  # with the part that reads images, where there is one
    module.save_pretrained(tmp_path, max_shard_size=shard)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(plain_model() / name, tmp_path / name)
    loaded = load_model(ModelSettings(device="cpu", name=str(tmp_path)), pack=False)
    assert (len(weight_files(tmp_path)) > 1) == (shard == "20KB")
    expected = text_part(module).state_dict()
    state = loaded.module.state_dict()
    assert state.keys() == expected.keys()
    assert all(tensor.equal(expected[name]) for name, tensor in state.items())
