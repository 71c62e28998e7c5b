"""The comparison with llama.cpp: the file it reads, its worker where it is installed, and the word where it is not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import gguf
import numpy as np
import pytest

from desk_rag.bench.llama_cpp import gguf_file
from desk_rag.bench.llama_cpp.__main__ import LlamaCpp, main
from desk_rag.errors import ConfigError
from desk_rag.model.language_model import LanguageModel
from tests.model.gguf.writing import reader_state

INSTALLED = importlib.util.find_spec("llama_cpp") is not None


@pytest.mark.parametrize(("form", "most"), [("f16", 0.002), ("q8_0", 0.02)])
def test_gguf_holds_the_readers_weights(tmp_path: Path, form: str, most: float) -> None:
    gguf_file.write_reader(tmp_path / "reader.gguf", form)
    written = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "reader.gguf").tensors}
    state = reader_state()
    assert len(written) == len(state)
    tensor, weight = written["blk.0.attn_q.weight"], state["model.layers.0.self_attn.q_proj.weight"].numpy()
    values = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(weight.shape)
    assert 0 < np.abs(values - weight).max() / np.abs(weight).max() < most


@pytest.mark.skipif(INSTALLED, reason="llama.cpp is installed")
def test_missing_llama_cpp_is_named() -> None:
    with pytest.raises(ConfigError, match=r"llama\.cpp is not installed"):
        main([])


@pytest.mark.skipif(not INSTALLED, reason="needs llama-cpp-python")
def test_joined_states_and_prefill_say_what_the_reader_says(tmp_path: Path, reader: LanguageModel) -> None:
    gguf_file.write_reader(tmp_path / "reader.gguf", "f16")
    prompt = reader.prompt
    prefix, passage = prompt.prefix_ids, prompt.chunk_ids("The rent of 940 crowns is due on the third of the month.")
    question = prompt.question_ids("When is the rent due?")
    llama = LlamaCpp(tmp_path / "reader.gguf", 1)
    try:
        whole = llama.ask("flash", "prefill", ids=[*prefix, *passage, *question])
        llama.ask("plain", "save", prefix=prefix, chunk=passage, file=str(tmp_path / "passage.state"))
        llama.ask("plain", "hold", prefix=prefix)
        files = [str(tmp_path / "passage.state")]
        joined = llama.ask("plain", "join", prefix=len(prefix), files=files, question=question)
    finally:
        llama.close()
    assert joined["token"] == whole["token"] and 0 < joined["load"] < joined["ms"]
