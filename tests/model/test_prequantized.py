"""Checkpoints that came quantised are served where their package is installed, and refused by its name where not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from desk_rag.cli.main import main
from desk_rag.config import ModelSettings
from desk_rag.errors import ConfigError, UnsupportedModel
from desk_rag.kv.cache import SlabCache
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.library.installed import describe
from desk_rag.model.loading import load_model
from tests.kv.oracle import masked_forward
from tests.kv.test_exactness import QUESTION, TEXTS, question_logits
from tests.model.prequantized import WRITERS, by_gptqmodel, write_experts, write_plain

SERVED = {
    "nf4": ("bitsandbytes", 0.3),
    "int8": ("bitsandbytes", 0.05),
    "fp8": ("accelerate", 0.1),
    "compressed-tensors": ("compressed_tensors", 0.05),
    "mxfp4": ("accelerate", 0.3),
}
"""Package, and the largest error of the logits that the quantisation may cost."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    write_plain(place / "plain")
    write_experts(place / "experts")
    return place


def plain_of(root: Path, name: str) -> Path:
    return root / ("experts" if name == "mxfp4" else "plain")


def written(root: Path, name: str) -> Path:
    if not (root / name).exists():
        WRITERS[name](plain_of(root, name), root / name)
    return root / name


def loaded(path: Path) -> LanguageModel:
    return load_model(ModelSettings(name=str(path), device="cpu"))


@pytest.mark.parametrize("name", SERVED)
def test_quantised_weights_are_served_exactly_and_mean_what_they_meant(name: str, root: Path) -> None:
    package, largest = SERVED[name]
    pytest.importorskip(package)
    check(loaded(written(root, name)), loaded(plain_of(root, name)), name, largest)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_what_gptqmodel_made_is_served_exactly(method: str, root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gptqmodel")
    by_gptqmodel(root / "plain", root / f"real-{method}", method)
    capfd.readouterr()
    model = loaded(root / f"real-{method}")
    assert "GPT-QModel" not in capfd.readouterr().out, "standard output is for answers"
    check(model, loaded(root / "plain"), method, 0.3)


def check(model: LanguageModel, plain: LanguageModel, name: str, largest: float) -> None:
    """The model means what the plain one does, within `largest`, and answers exactly from its own caches."""
    assert model.spec.weight_quantization in {"bitsandbytes", name}
    ids = torch.arange(10, 60)
    got, expected = (each.forward_all(ids, SlabCache(each, len(ids)), 0).float() for each in (model, plain))
    assert 0 < (got - expected).norm() < largest * expected.norm()

    stitched, plan = question_logits(model, TEXTS)
    chunks = [model.prompt.chunk_ids(text) for text in TEXTS]
    starts = [placement.position for placement in plan.placements]
    oracle = masked_forward(model, chunks, model.prompt.question_ids(QUESTION), starts, plan.next_position)
    bound = 0.05 if name == "int8" else 1e-4  # LLM.int8 codes each batch of activations anew
    assert (stitched - oracle).norm() < bound * oracle.norm()


def test_the_form_is_listed_with_the_memory_it_will_take(root: Path) -> None:
    pytest.importorskip("bitsandbytes")
    plain, nf4, fp8 = (describe(name, "folder", written(root, name)) for name in ("plain", "nf4", "fp8"))
    assert plain.shape is not None and nf4.shape is not None and fp8.shape is not None
    assert nf4.form == "safetensors, bitsandbytes" and nf4.shape.stored_bytes == nf4.size < plain.size
    assert fp8.shape.stored_bytes == 0, "it is widened when it is loaded"
    assert abs(fp8.shape.parameters / plain.shape.parameters - 1) < 0.01
    experts, blocks = describe("a", "folder", root / "experts"), describe("b", "folder", written(root, "mxfp4"))
    assert experts.shape is not None and blocks.shape is not None and not blocks.shape.dense
    assert blocks.shape.parameters == experts.shape.parameters and blocks.shape.stored_bytes == 0
    packed = describe("packed", "folder", written(root, "compressed-tensors"))
    assert packed.shape is not None and abs(packed.shape.parameters / plain.shape.parameters - 1) < 0.01


@pytest.mark.parametrize(("name", "packages"), [("gptq", "optimum gptqmodel"), ("awq", "gptqmodel")])
def test_a_missing_package_is_named_with_the_command(
    name: str, packages: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        import gptqmodel  # type: ignore[import-not-found]  # noqa: F401

        pytest.skip("gptqmodel is installed")
    except ImportError:
        pass
    path = written(root, name)
    with pytest.raises(UnsupportedModel, match=f"quantised by {name}") as refusal:
        loaded(path)
    assert f"pip install {packages}" in refusal.value.remedy
    assert "needs the package" in describe(name, "folder", path).refusal
    assert main(["models", "use", str(path)]) == 5
    assert f"pip install {packages}" in capsys.readouterr().err


def test_quantising_what_is_quantised_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("bitsandbytes")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    settings = ModelSettings(name=str(written(root, "nf4")), quantization="nf4")
    with pytest.raises(ConfigError, match="quantised already") as refusal:
        load_model(settings)
    assert "Leave --quantization out" in refusal.value.remedy
