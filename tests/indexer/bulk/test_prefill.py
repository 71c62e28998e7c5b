"""Bulk prefill on a Ray cluster of two workers gives the files of prefill in one process, though a worker is killed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from desk_rag.answering.auxiliary import prepare_all
from desk_rag.cli import work
from desk_rag.config import AnswerSettings, ModelSettings, Settings, StoreSettings
from desk_rag.device_lock import DeviceLock
from desk_rag.errors import ConfigError, DeskRagError, UnsupportedModel
from desk_rag.indexer.bulk import prefill as prefill_module
from desk_rag.indexer.bulk.prefill import LOCAL, RayPrefill, require_ray
from desk_rag.indexer.bulk.worker import Worker
from desk_rag.ingest.background_prefill import warm_pending
from desk_rag.ingest.pipeline import sync_folder
from desk_rag.kv.serving import ServingModel
from desk_rag.model.prompt import load_prompt
from desk_rag.store.store import Store
from tests.finetune.conftest import write_tiny

CHUNKS = 24
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster of this process, with room for two workers."""
    require_ray().init(
        num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False,
        object_store_memory=100 << 20,
    )  # fmt: skip
    yield
    ray.shutdown()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A folder of short notes, a model and another auxiliary model."""
    tiny_dir, other = (write_tiny(tmp_path / name, 4096) for name in ("tiny", "other"))
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"] *= 1.5
    save_file(weights, str(other / "model.safetensors"), metadata={"format": "pt"})
    docs = tmp_path / "docs"
    docs.mkdir()
    for number in range(CHUNKS):
        (docs / f"{number}.txt").write_text(f"Note {number}: the key number {number * 7} opens the shed.\n")
    answer = AnswerSettings(recompute=0.2, selector="aux", auxiliary=str(other))
    model = ModelSettings(name=str(tiny_dir), device="cpu", threads=1)
    return Settings(data_dir=tmp_path / "one", model=model, answer=answer, store=StoreSettings(reserve_gib=0))


def workers() -> list[psutil.Process]:
    """The worker processes of this process's cluster."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "ray::Worker" in " ".join(process.cmdline()):
                found.append(process)
    return found


@contextlib.contextmanager
def indexed(settings: Settings, name: str) -> Iterator[Store]:
    """A store in which the folder is findable by words."""
    directory = settings.data_dir.parent / name
    with Store.open(directory, settings.store, writer=True) as store:
        prompt = load_prompt(Path(settings.model.name))
        docs = settings.data_dir.parent / "docs"
        for _ in sync_folder(store, docs, prompt, prompt.chunk_size, settings.index, lambda: False):
            pass
        yield store


def payloads(store: Store) -> dict[str, dict[str, torch.Tensor]]:
    """Tensors of every KV file by its path."""
    root = store.root / "kv"
    return {str(path.relative_to(root)): load_file(path) for path in root.rglob("*.safetensors")}


def same(one: dict[str, dict[str, torch.Tensor]], other: dict[str, dict[str, torch.Tensor]]) -> bool:
    assert one.keys() == other.keys()
    return all(
        one[name].keys() == other[name].keys()
        and all(torch.equal(tensor, other[name][part]) for part, tensor in one[name].items())
        for name in one
    )


def test_two_workers_one_of_them_killed_give_the_files_of_one_process(cluster: None, settings: Settings) -> None:
    serving: ServingModel = prepare_all(settings)
    with indexed(settings, "one") as store:
        for _ in warm_pending(store, serving, DeviceLock(settings.data_dir), lambda: False):
            pass
        expected = payloads(store)
    assert len(expected) == 2 * CHUNKS, "of both models"
    killed: list[int] = []
    with indexed(settings, "two") as store:
        events, turn = [], DeviceLock(settings.data_dir)
        for event in RayPrefill(settings, LOCAL).warm_pending(store, serving, turn, lambda: False):
            events.append(event)
            alive = workers()
            if event.done == 5 and not killed and len(alive) == 2:
                killed.append(alive[0].pid)
                os.kill(alive[0].pid, 9)
        assert killed, "there were two workers to choose from"
        assert same(payloads(store), expected)
        assert (events[-1].done, events[-1].total, events[-1].waiting) == (2 * CHUNKS, 2 * CHUNKS, "")
        assert [event.upper for event in events if event.done] == sorted(event.upper for event in events if event.done)
    assert not workers()


def test_what_was_stopped_goes_on_and_the_command_uses_the_cluster(
    cluster: None, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings.model_copy(update={"answer": AnswerSettings()})
    serving = prepare_all(settings)
    seen: list[int] = []

    def stop() -> bool:
        return bool(seen) and seen[-1] >= 6

    with indexed(settings, "one") as store:
        for event in RayPrefill(settings, LOCAL).warm_pending(store, serving, DeviceLock(settings.data_dir), stop):
            seen.append(event.done)
        begun = len(payloads(store))
    assert 6 <= begun < CHUNKS
    docs = settings.data_dir.parent / "docs"
    assert work.index(settings, [docs], warm=True, dry_run=False, as_json=False, ray=LOCAL) == 0
    assert f"{CHUNKS - begun} chunks made warm" in capsys.readouterr().err
    with Store.open(settings.data_dir, settings.store, writer=False) as store:
        assert len(payloads(store)) == CHUNKS


def test_a_machine_with_another_model_and_workers_that_die_end_the_run(
    cluster: None, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = prepare_all(settings)
    wrong = settings.model_copy(update={"model": settings.model.model_copy(update={"name": settings.answer.auxiliary})})
    with indexed(settings, "one") as store:
        with pytest.raises(UnsupportedModel, match="other chunk KV"):
            list(RayPrefill(wrong, LOCAL).warm_pending(store, serving, DeviceLock(settings.data_dir), lambda: False))

        class Dying(Worker):
            def prefill(self, *_: Any) -> list[Any]:
                os._exit(1)

        monkeypatch.setattr(prefill_module, "Worker", Dying)
        monkeypatch.setattr(prefill_module, "_MOST_DEATHS", 1)
        with pytest.raises(DeskRagError, match="died one after the other"):
            list(RayPrefill(settings, LOCAL).warm_pending(store, serving, DeviceLock(settings.data_dir), lambda: False))
        assert payloads(store) == {}


def test_results_carry_no_memory_of_others() -> None:
    """A slice is sent as the whole tensor that it shares memory with, unless it is copied."""
    from desk_rag.kv.quant import to_host
    from desk_rag.kv.types import QuantizedKV, RawLayer

    large = torch.arange(4096.0).view(1, 64, 64)
    kv = QuantizedKV((RawLayer(large[:, :2], large[:, 2:4]),))
    copied = to_host(kv)
    for one in fields(RawLayer):
        tensor = getattr(copied.layers[0], one.name)
        assert torch.equal(tensor, getattr(kv.layers[0], one.name))
        assert tensor.untyped_storage().nbytes() == tensor.numel() * 4


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ConfigError) as caught:
        require_ray()
    assert "[ray]" in caught.value.remedy
