"""A small invented data set, a tokenizer trained on it, and a decoder of two layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from desk_rag.model.trained_frame import CHUNK_CLOSE, CHUNK_OPEN, QUESTION_OPEN, TAIL
from desk_rag.training.reader.architecture import Decoder, Shape
from desk_rag.training.reader.data.corpus import texts
from desk_rag.training.reader.data.frame import train_tokenizer
from desk_rag.training.reader.training import Group
from tests.training.reader import invented

VOCAB = 400


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data set's folder."""
    return invented.write(tmp_path_factory.mktemp("invented"), documents=6, sentences=60, written=24)


@pytest.fixture(scope="session")
def tokenizer_path(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_tokenizer((text for _, text in texts(data)), VOCAB, path)
    return path


@pytest.fixture(scope="session")
def tokenizer(tokenizer_path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_path))


@pytest.fixture
def alone() -> Group:
    """One process on the CPU."""
    return Group(0, 1, torch.device("cpu"))


def chunk_text(text: str) -> str:
    """A chunk in its frame, as text; only for texts without marks."""
    return f"{CHUNK_OPEN}{text}{CHUNK_CLOSE}"


def question_text(question: str) -> str:
    """A question in its frame, as text."""
    return f"{QUESTION_OPEN}{question}{TAIL}"


def decoder(seed: int = 0, **sizes: int) -> Decoder:
    """A small random decoder, ready to be asked."""
    torch.manual_seed(seed)
    small = {"vocab": VOCAB, "width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "inner": 48}
    return Decoder(Shape(**{**small, **sizes}, positions=2048)).eval()
