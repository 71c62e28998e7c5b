"""A version of transformers that cannot build a tokenizer from GGUF is named, with the one that can."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from gguf import GGMLQuantizationType as Kind

from desk_rag.config import ModelSettings
from desk_rag.errors import UnsupportedModel
from desk_rag.model.loading import load_model
from tests.model.gguf.families import TINY, write_tiny


def test_an_old_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As 5.17 has it: the module is there, and what is wanted of it is not."""
    name = "transformers.integrations.gguf.gguf_tokenizer_mapping"
    write_tiny(tmp_path / "a.gguf", TINY["qwen2"], Kind.F32)
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with pytest.raises(UnsupportedModel, match=r"GGUF files need transformers 5\.18 or newer"):
        load_model(ModelSettings(device="cpu", name=str(tmp_path / "a.gguf")))
