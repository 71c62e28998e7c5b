"""Fixtures of the store's tests: real directories, real SQLite, one torch thread."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from desk_rag.store.store import Store
from tests.store import made


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    with Store.open(root, made.settings(), writer=True) as opened:
        yield opened


@pytest.fixture
def fast_directory(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: what a killed process wrote, the kernel keeps; a disk adds only time."""
    memory = Path("/dev/shm")
    if not (memory.is_dir() and os.access(memory, os.W_OK)):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as place:
        yield Path(place)
