"""A GGUF file on a GPU: de-quantised, or quantised again in the GPU's own form, it still finds its facts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from desk_rag.config import ModelSettings
from desk_rag.model.loading import load_model
from tests.gpu.test_model import answer
from tests.model.gguf.writing import write_reader

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded reader as Q8_0."""
    path = tmp_path_factory.mktemp("gguf") / "reader.gguf"
    write_reader(path, Kind.Q8_0)
    return path


@pytest.mark.parametrize(
    ("quantization", "kind"), [("none", "Linear"), ("nf4", "Linear4bit"), ("int8", "Linear8bitLt")]
)
def test_a_gguf_file_is_served_in_the_form_that_was_asked_for(quantization: str, kind: str, file: Path) -> None:
    if quantization != "none":
        pytest.importorskip("bitsandbytes")
    settings = ModelSettings.model_validate({"name": str(file), "device": "cuda", "quantization": quantization})
    model = load_model(settings)
    layer = model.decoder_layers[0]
    assert type(layer.mlp.down_proj).__name__ == kind  # type: ignore[union-attr]
    assert model.spec.dtype is torch.bfloat16 and next(model.module.parameters()).device.type == "cuda"
    assert "WTU-4471-B" in answer(model, "What is the frame number of the blue bicycle?")
