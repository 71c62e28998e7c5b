"""llama.cpp itself computes over each of these files what desk-rag does; needs `pip install llama-cpp-python`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from desk_rag.config import ModelSettings
from desk_rag.model.loading import load_model
from tests.model.gguf import llama_cpp_logits
from tests.model.gguf.families import TINY, write_tiny
from tests.model.gguf.test_families import IDS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed"),
]
NOT_COMPARED = {"qwen2vl", "qwen25vl"}
"""llama.cpp turns heads this small in three axes into no numbers; they are `qwen2` but for that."""
FP16_GELU = {"gemma2", "gemma3"}
"""ggml looks GELU up in a table of fp16, and norms after the MLP make much of that."""


@pytest.mark.parametrize("name", [name for name in TINY if name not in NOT_COMPARED])
def test_logits_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_tiny(file, TINY[name], Kind.F32)
    theirs = by_llama_cpp(file, 256 if name == "phi3-longrope" else 512)  # its longer context has other factors
    module = load_model(ModelSettings(device="cpu", name=str(file)), pack=False).module
    if name == "gpt-oss":
        module = as_llama_cpp_rounds(module)
    with torch.inference_mode():
        ours = module(IDS).logits[0].float().numpy()
    assert np.abs(ours - theirs).max() < (5e-3 if name in FP16_GELU else 5e-4) * ours.std()


def as_llama_cpp_rounds(module: torch.nn.Module) -> torch.nn.Module:
    """gpt-oss with the bounds of YaRN rounded, as its publisher does not have them."""
    config = module.config
    config.rope_parameters = {**config.rope_parameters, "truncate": True}
    rounded: torch.nn.Module = type(module)(config)
    rounded.load_state_dict(module.state_dict())
    return rounded.eval()


def by_llama_cpp(file: Path, context_length: int) -> np.ndarray:
    out = file.with_suffix(".npy")
    ids = ",".join(str(int(token)) for token in IDS[0])
    command = [sys.executable, str(llama_cpp_logits.__file__), str(file), ids, str(out), str(context_length)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    result: np.ndarray = np.load(out)
    return result
