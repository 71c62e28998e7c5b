"""A tiny model directory in the trained frame, and a toy data set it can learn by heart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from desk_rag.finetune.data import QA, Sample
from tests.models import VOCABULARY, byte_tokenizer

SHED, TEA = "The red key opens the shed.", "Tea is served at four."
TOY = (
    Sample((SHED,), (QA("Which key opens the shed?", "red", (SHED,)),)),
    Sample((TEA,), (QA("When is tea served?", "at four", (TEA,)),)),
)


def write_tiny(directory: Path, positions: int) -> Path:
    """Write a random two-layer Qwen2 with byte tokens."""
    torch.manual_seed(3)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=96, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=positions, eos_token_id=2, pad_token_id=0, bos_token_id=None,
        tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():  # embeddings that a head tied to them can be sure with, though they stand still
        model.model.embed_tokens.weight.mul_(12.0)
    model.save_pretrained(directory)
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}), encoding="utf-8")
    return directory


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Qwen2 with byte tokens, as a directory on disk."""
    return write_tiny(tmp_path_factory.mktemp("tiny"), 1024)
