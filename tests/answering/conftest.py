"""Engines share the models, and a small world that is read once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.answer_world import World, make_world
from tests.loaded_once import loaded_once


@pytest.fixture(scope="package", autouse=True)
def _models_loaded_once() -> Iterator[None]:
    with loaded_once():
        yield


@pytest.fixture(scope="package")
def world(_models_loaded_once: None, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Three small documents, all warm; its data directory is only read."""
    return make_world(tmp_path_factory.mktemp("world"), "cpu")


@pytest.fixture
def data(world: World, tmp_path: Path) -> Path:
    """A copy of the data directory, to be changed."""
    return shutil.copytree(world.data, tmp_path / "data")
