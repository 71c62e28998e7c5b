"""Commands that run in this process share the models."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.loaded_once import loaded_once


@pytest.fixture(scope="package", autouse=True)
def _models_loaded_once() -> Iterator[None]:
    with loaded_once():
        yield


@pytest.fixture(autouse=True)
def _kernels_come_back() -> Iterator[None]:
    """Put back what `purge --all` deletes of the compiled kernels, which the next process would compile anew."""
    place = Path(os.environ["DESK_RAG_KERNELS"])
    compiled = {file: file.read_bytes() for file in place.glob("*.so")}
    yield
    for file, content in compiled.items():
        if not file.exists():
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.write_bytes(content)
