"""A model directory with room for the built-in questions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def long_dir(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with 2,048 positions."""
    directory = tmp_path_factory.mktemp("long") / "model"
    shutil.copytree(tiny_dir, directory)
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    (directory / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}), encoding="utf-8")
    return directory
