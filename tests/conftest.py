"""Fixtures shared by all tests: the embedded reader, small random models, and the rule that nothing goes to the
network."""

from __future__ import annotations

import gc
import itertools
import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if "PYTEST_XDIST_WORKER" in os.environ:  # workers side by side share the cores; torch reads this at its first import
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# Triton decides at its first import whether it interprets, and bitsandbytes imports it in passing.
if not any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg")):
    os.environ.setdefault("TRITON_INTERPRET", "1")
# Triton would keep what it compiles in the home directory.
os.environ.setdefault("TRITON_HOME", str(Path(__file__).resolve().parent.parent / ".pytest_cache" / "triton"))

# So would the embedded models' kernels; a folder for each worker, because tests of `purge --all` empty it.
_KERNELS = f"kernels-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
os.environ["DESK_RAG_KERNELS"] = str(Path(__file__).resolve().parent.parent / ".pytest_cache" / _KERNELS)

# What the tests start would compile every module of desk-rag anew; the folders with the bytecode are ignored by git.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

_SERIAL = itertools.count()
ROOT = Path(__file__).resolve().parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped where torch sees no GPU."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


def pytest_collection_finish() -> None:
    """Collect garbage seldom, and never among the modules: looking through them took a fifth of all the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def pytest_sessionfinish() -> None:
    """Spare what is left: pytest collects garbage five times at its end, for up to a second each."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_settings_of_the_user(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests away from the settings file of the person who runs them."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / f"config{next(_SERIAL)}"))


@pytest.fixture(scope="session")
def reader_dir() -> Path:
    """The embedded reader's files."""
    return ROOT / "assets" / "reader"


@pytest.fixture(scope="session")
def sample_docs() -> Path:
    return ROOT / "assets" / "sample_docs"


@pytest.fixture(scope="session")
def reader():  # type: ignore[no-untyped-def]
    """The embedded reader on the CPU, loaded once for the whole run."""
    from desk_rag.config import ModelSettings
    from tests.loaded_once import shared_model

    return shared_model(ModelSettings(device="cpu"))
