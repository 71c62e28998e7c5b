"""Benchmarks share the models, and what is checked once per model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.loaded_once import loaded_once


@pytest.fixture(scope="package", autouse=True)
def _models_loaded_once() -> Iterator[None]:
    with loaded_once():
        yield
