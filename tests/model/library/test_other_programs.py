"""Ollama's store and LM Studio's folders are read as they are, and what is wrong with them is said."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind

from desk_rag.cli import doctor
from desk_rag.config import ModelSettings, Settings
from desk_rag.errors import ModelError, ModelNotFound, UnsupportedModel
from desk_rag.model import weights
from desk_rag.model.library import installed, lm_studio, ollama
from desk_rag.model.loading import load_model
from tests.model.gguf.families import TINY, write_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_tiny(file, TINY["qwen2"], Kind.Q8_0)
    return file


@pytest.fixture
def store(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of Ollama's with two models."""
    place = tmp_path / "ollama"
    monkeypatch.setenv("OLLAMA_MODELS", str(place))
    put(place, "registry.ollama.ai/library/tiny/3b", model)
    put(place, "registry.ollama.ai/somebody/other/latest", model)
    return place


def put(place: Path, name: str, model: Path) -> Path:
    """Store `model` as Ollama does; returns the manifest."""
    (place / "blobs").mkdir(parents=True, exist_ok=True)
    layers = []
    for kind, content in (("model", model.read_bytes()), ("license", b"\n  Apache License\nmore"), ("params", b"{}")):
        digest = hashlib.sha256(content).hexdigest()
        (place / "blobs" / f"sha256-{digest}").write_bytes(content)
        layers.append({"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}",
                       "size": len(content)})  # fmt: skip
    manifest = place / "manifests" / name
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return manifest


def test_what_a_modelfile_adds_is_named_and_not_used(store: Path, model: Path) -> None:
    """A SYSTEM text and a context length that somebody set in Ollama hold there alone."""
    assert ollama.find("tiny:3b").unused == ""
    manifest = put(store, "registry.ollama.ai/library/mine/latest", model)
    fields = json.loads(manifest.read_text())
    fields["layers"] = [layer for layer in fields["layers"] if not layer["mediaType"].endswith(".params")]
    for kind, content in (("system", b"You are a pirate."), ("params", b'{"num_ctx": 4096, "temperature": 0.7}')):
        digest = hashlib.sha256(content).hexdigest()
        (store / "blobs" / f"sha256-{digest}").write_bytes(content)
        layer = {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}"}
        fields["layers"].append({**layer, "size": len(content)})
    manifest.write_text(json.dumps(fields))
    unused = ollama.find("mine").unused
    assert "SYSTEM" in unused and "num_ctx 4,096" in unused and "temperature" not in unused
    (entry,) = [each for each in installed.everything() if each.name == "mine:latest"]
    assert entry.remark == unused and not entry.refusal
    for name, remark in (("mine", unused.removesuffix(".")), ("tiny:3b", "")):
        settings = Settings(data_dir=store / "data", model=ModelSettings(device="cpu", name=f"ollama:{name}"))
        (finding,) = [each for each in doctor.examine(settings) if each.name == "model"]
        assert finding.detail.partition("Not used")[1:] == remark.partition("Not used")[1:]


@pytest.mark.parametrize("name", ["tiny:3b", "ollama:tiny:3b", "ollama:somebody/other", "somebody/other:latest"])
def test_a_name_leads_to_its_weights(name: str, store: Path, model: Path) -> None:
    file = weights.resolve(name, allow_download=False)
    assert file.read_bytes() == model.read_bytes() and file.parent == store / "blobs"
    loaded = load_model(ModelSettings(device="cpu", name=name))
    assert loaded.spec.num_layers == 3 and loaded.spec.name == name


def test_the_list_has_names_sizes_and_licences(store: Path, model: Path) -> None:
    listed = list(ollama.models())
    assert [each.name for each in listed] == ["tiny:3b", "somebody/other:latest"]
    assert {each.size for each in listed} == {model.stat().st_size}
    assert {each.license for each in listed} == {"Apache License"}


def test_an_unknown_tag_is_told_which_there_are(store: Path) -> None:
    with pytest.raises(ModelNotFound, match="It has tiny:3b") as refusal:
        weights.resolve("ollama:tiny", allow_download=False)
    assert "ollama pull tiny" in refusal.value.remedy


def test_a_name_without_its_tag_is_told_what_is_like_it(store: Path) -> None:
    with pytest.raises(ModelNotFound) as refusal:
        weights.resolve("Tiny", allow_download=False)
    assert refusal.value.remedy == "On this machine there is tiny:3b."


def test_a_damaged_blob_is_found_by_its_digest(store: Path) -> None:
    file = weights.resolve("tiny:3b", allow_download=False)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(ModelError, match="sha256 is not the one in its name"):
        load_model(ModelSettings(device="cpu", name="tiny:3b"))


def test_a_blob_that_is_cut_short_or_gone_is_named(store: Path) -> None:
    file = weights.resolve("tiny:3b", allow_download=False)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ModelError, match="cut short"):
        weights.resolve("tiny:3b", allow_download=False)
    file.unlink()
    with pytest.raises(ModelNotFound, match="its weights are not in"):
        weights.resolve("tiny:3b", allow_download=False)
    listed = next(each for each in installed.everything() if each.name == "tiny:3b")
    assert "its weights are not in" in listed.refusal and listed.path is None and listed.shape is None


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"layers": []}, "no weights"),
        ({"layers": [{"mediaType": "application/vnd.ollama.image.adapter"}]}, "adapter"),
        ({"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../x"}]}, "no digest"),
        ({"layers": "none"}, "no weights"),
    ],
)
def test_an_odd_manifest_is_refused(change: dict[str, object], match: str, store: Path) -> None:
    (store / "manifests/registry.ollama.ai/library/tiny/3b").write_text(json.dumps(change))
    with pytest.raises(ModelError, match=match):
        weights.resolve("tiny:3b", allow_download=False)


@pytest.mark.parametrize("name", ["ollama:../../etc:passwd", "ollama:a/b/c/d:e", "ollama:..", "ollama:"])
def test_a_name_does_not_lead_out_of_the_store(name: str, store: Path) -> None:
    with pytest.raises(ModelNotFound):
        weights.resolve(name, allow_download=False)


def test_the_usual_place_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert ollama.store() == tmp_path / ".ollama" / "models"


# LM Studio ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def studio(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    place = tmp_path / ".lmstudio" / "models"
    for folder, names in {"pub/one": ["one-Q8_0.gguf", "mmproj-one-f16.gguf"], "pub/two": ["a.gguf", "b.gguf"]}.items():
        (place / folder).mkdir(parents=True)
        for name in names:
            shutil.copy(model, place / folder / name)
    return place


@pytest.mark.parametrize("name", ["lmstudio:pub/one", "lmstudio:pub/two/b.gguf"])
def test_lm_studios_names_lead_to_files(name: str, studio: Path) -> None:
    file = weights.resolve(name, allow_download=False)
    assert file.name in ("one-Q8_0.gguf", "b.gguf")
    assert load_model(ModelSettings(device="cpu", name=str(file))).spec.num_layers == 3


def test_a_folder_stands_for_the_only_model_in_it(studio: Path) -> None:
    assert weights.resolve(str(studio / "pub/one"), allow_download=False).name == "one-Q8_0.gguf"
    with pytest.raises(UnsupportedModel, match=r"2 GGUF models .* a\.gguf, b\.gguf"):
        weights.resolve(str(studio / "pub/two"), allow_download=False)
    with pytest.raises(ModelNotFound, match="LM Studio has no"):
        weights.resolve("lmstudio:pub/three", allow_download=False)
    assert dict(lm_studio.models()) == {
        "lmstudio:pub/one": studio / "pub/one/one-Q8_0.gguf",
        "lmstudio:pub/two/a.gguf": studio / "pub/two/a.gguf",
        "lmstudio:pub/two/b.gguf": studio / "pub/two/b.gguf",
    }
