from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from desk_rag.kv.serving import ServingModel
    from desk_rag.model.language_model import LanguageModel

from desk_rag.config import IdleSettings, IndexSettings, ModelSettings, Settings, StoreSettings
from tests.loaded_once import loaded_once


@pytest.fixture(scope="package", autouse=True)
def _models_loaded_once() -> Iterator[None]:
    with loaded_once():
        yield


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Poll until `condition` holds; fails the test when it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.03)


@pytest.fixture(scope="session")
def prepared_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory in which only the model was made ready, so that not every test does it anew."""
    return tmp_path_factory.mktemp("prepared")


@pytest.fixture(scope="session")
def prepared(reader: LanguageModel, prepared_dir: Path) -> ServingModel:
    """The embedded reader with its prefix and the verdict on its coding."""
    from desk_rag.answering.serving_model import prepare_model

    with loaded_once():
        return prepare_model(reader, prepared_dir)


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "letter.md").write_text("# Roof\n\nThe roofer comes on 14 May and asks for 1,200 euros.\n")
    (folder / "note.txt").write_text("The spare key lies under the third flower pot.\n")
    for file in folder.iterdir():  # written long ago: the first look need not wait until they stand still
        os.utime(file, (1_700_000_000, 1_700_000_000))
    return folder


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Quick to settle, always idle."""
    return Settings(
        data_dir=tmp_path / "data",
        model=ModelSettings(device="cpu", threads=1),
        store=StoreSettings(budget_gib=1, reserve_gib=0),
        index=IndexSettings(settle_seconds=0.2, sweep_seconds=600),
        idle=IdleSettings(quiet_seconds=0, cpu_busy_percent=100, gpu_busy_percent=100, gpu_free_mib=0, on_battery=True),
    )
