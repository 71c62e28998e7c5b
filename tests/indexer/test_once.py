"""One run in the foreground: what is counted, what is loaded and what is only looked up, and what a full drive does."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from desk_rag.cli.output import Progress, index_summary
from desk_rag.config import AnswerSettings, ModelSettings, Settings, StoreSettings
from desk_rag.errors import StoreFull
from desk_rag.indexer.names import EVERYTHING, MissingWork, keep_namespaces, missing_work
from desk_rag.indexer.once import Run
from desk_rag.indexer.parts import lazy_parts
from desk_rag.ingest.events import IndexFinished
from desk_rag.kv.prefix_variants.variants import build_prefix_variants
from desk_rag.kv.serving import ServingModel
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.retrieval.embedding import Embedder, load_embedder
from desk_rag.store import ownership
from desk_rag.store.store import Store


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return load_embedder(ModelSettings(device="cpu"))


@pytest.fixture
def settings(settings: Settings, prepared: ServingModel, prepared_dir: Path) -> Settings:
    shutil.copytree(prepared_dir / "models", settings.data_dir / "models")
    return settings


Loaded = TypeVar("Loaded")


class World:
    """Runs over one folder, each in a store of its own; what was loaded and said by the last of them."""

    def __init__(self, settings: Settings, docs: Path, embedder: Embedder, prepared: ServingModel) -> None:
        self.settings, self.docs, self.loaded, self.said = settings, docs, list[str](), ""
        self._embedder, self._prepared = embedder, prepared

    def run(self, settings: Settings | None = None, **options: bool) -> IndexFinished:
        chosen = settings or self.settings
        self.loaded, out = [], io.StringIO()
        with Store.open(chosen.data_dir, chosen.store, writer=True) as store:
            parts = replace(
                lazy_parts(store, chosen),
                load_embedder=self._load("embedder", lambda: self._embedder),
                load_model=self._load("model", lambda: self._serving(chosen)),
            )
            done = Run(parts, chosen, lambda: False, Progress(out)).run([self.docs], **options)
        self.said = out.getvalue()
        return done

    def _load(self, what: str, made: Callable[[], Loaded]) -> Callable[[], Loaded]:
        def load() -> Loaded:
            self.loaded.append(what)
            return made()

        return load

    def _serving(self, settings: Settings) -> ServingModel:
        ready, counts = self._prepared, settings.model.rungs
        variants = build_prefix_variants(
            ready.model, ready.prefix, counts, ready.scheme, drift_epoch=ready.drift_epoch
        )
        return replace(ready, prefix_variants=variants)


@pytest.fixture
def world(settings: Settings, docs: Path, embedder: Embedder, prepared: ServingModel) -> World:
    return World(settings, docs, embedder, prepared)


def with_rungs(settings: Settings, *rungs: int) -> Settings:
    return settings.model_copy(update={"model": settings.model.model_copy(update={"rungs": rungs})})


def test_where_nothing_is_lacking_nothing_is_loaded(world: World) -> None:
    first = world.run()
    assert world.loaded == ["embedder", "model"]
    assert (first.indexed, first.vectors, first.warm, first.chunk_kvs) == (2, 2, 2, 2)
    again = world.run()
    assert world.loaded == []
    assert (again.unchanged, again.vectors, again.chunk_kvs) == (2, 0, 0)
    assert index_summary(again).startswith("Nothing to do: 2 files unchanged")
    (world.docs / "new.txt").write_text("The heron stands in the shallow water.\n")
    assert world.run(warm=False).vectors == 1
    assert world.loaded == ["embedder"]
    assert world.run().warm == 1
    assert world.loaded == ["model"], "vectors were there by then"


def test_what_could_give_other_names_ends_the_memory_of_them(world: World, tmp_path: Path) -> None:
    world.run()
    settings = world.settings

    def lacks(chosen: Settings) -> MissingWork:
        with Store.open(chosen.data_dir, chosen.store, writer=False) as store:
            return missing_work(store, chosen)

    assert lacks(settings) == MissingWork(vectors=False, kv=False)
    assert lacks(with_rungs(settings, 0, 1)) == MissingWork(vectors=False, kv=True)
    other = settings.model_copy(update={"model": settings.model.model_copy(update={"embedder": str(tmp_path)})})
    assert lacks(other) == MissingWork(vectors=True, kv=False, token_vectors=True)
    record = next((settings.data_dir / "models").glob("*.safetensors"))
    record.write_bytes(record.read_bytes())  # as after a drift
    assert lacks(settings) == MissingWork(vectors=False, kv=True)
    names = settings.data_dir / "models" / "names.json"
    for damaged in ("", "[]", '{"model": 3}', '{"model": {"x": 1}, "embedder": {"y": null}}'):
        names.write_text(damaged)
        assert lacks(settings) == MissingWork(vectors=False, kv=True), "the embedder that ships has a known name"
        assert lacks(other) == EVERYTHING
    names.unlink()
    assert lacks(settings) == MissingWork(vectors=False, kv=True)
    world.run()
    assert world.loaded == ["model"] and lacks(settings) == MissingWork(vectors=False, kv=False)


def test_an_auxiliary_model_is_work_once_and_is_remembered(world: World) -> None:
    world.run()
    with_auxiliary = world.settings.model_copy(update={"answer": AnswerSettings(recompute=0.2, selector="aux")})

    def lacks(chosen: Settings) -> MissingWork:
        with Store.open(chosen.data_dir, chosen.store, writer=True) as store:
            return missing_work(store, chosen)

    assert lacks(with_auxiliary).kv, "its names are not known yet"
    world.run(with_auxiliary)
    assert lacks(with_auxiliary) == lacks(world.settings) == MissingWork(vectors=False, kv=False)
    models = json.loads((world.settings.data_dir / "models" / "names.json").read_text())["model"]
    assert len(set(map(tuple, models.values()))) == 1
    keep_namespaces(with_auxiliary, next(iter(models.values())), "0" * 32)
    assert lacks(with_auxiliary).kv, "nothing lies under that name"
    assert not lacks(world.settings).kv
    names = world.settings.data_dir / "models" / "names.json"
    entry = OwnedDirectory(world.settings.data_dir).entry(names)
    assert entry is not None and ownership.content_proves("models/names.json")(entry)


def test_only_so_many_names_are_kept(world: World) -> None:
    for rung in range(1, 7):
        for lower in (False, True):
            keep_namespaces(with_rungs(world.settings, 0, *([rung] if lower else range(1, rung + 1))), [str(rung)])
    names = json.loads((world.settings.data_dir / "models" / "names.json").read_text())
    assert list(names["model"].values())[-1] == ["6"] and len(names["model"]) == 8


def test_further_rungs_are_work_that_is_told(world: World) -> None:
    world.run()
    ladder = with_rungs(world.settings, 0, 1, 2)
    done = world.run(ladder)
    assert (done.warm, done.chunk_kvs) == (0, 4)
    assert index_summary(done).startswith("2 unchanged; 4 caches made; ")
    assert index_summary(world.run(ladder)).startswith("Nothing to do") and world.loaded == []
    (world.docs / "new.txt").write_text("The heron stands in the shallow water.\n")
    done = world.run(ladder)
    assert (done.warm, done.chunk_kvs) == (1, 3)
    assert "1 chunk made warm, 3 caches made" in index_summary(done)


def test_a_text_in_two_files_is_told_to_be_one_chunk(world: World) -> None:
    shutil.copy(world.docs / "note.txt", world.docs / "copy of note.txt")
    done = world.run(warm=False)
    assert (done.chunks, done.different_chunks) == (3, 2)
    assert "3 files read (3 chunks, 2 different)" in index_summary(done)
    assert "different" not in index_summary(replace(done, chunks=2)), "said only where the figures disagree"


def test_a_new_embedder_is_work_that_is_told() -> None:
    done = IndexFinished(0, 2, 0, 0, 0, 0, 0, 1.0, vectors=7)
    assert index_summary(done) == "2 unchanged; 7 vectors made; 1.00 s."


def test_a_full_drive_is_told_and_the_rest_is_done(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bool:
        raise StoreFull("The disk of /data is full.")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put_kv", refuse)
        done = world.run()
    assert done.disk_full and (done.indexed, done.vectors, done.warm) == (2, 2, 0)
    assert "Caches: The disk of /data is full." in world.said
    assert not world.run().disk_full


@pytest.mark.parametrize(("limits", "full"), [
    (StoreSettings(budget_gib=1, reserve_gib=1e6), True),
    (StoreSettings(budget_gib=0, reserve_gib=0), False),
])  # fmt: skip
def test_a_drive_without_room_is_told_from_a_small_budget(world: World, limits: StoreSettings, full: bool) -> None:
    small = world.settings.model_copy(update={"store": limits})
    for loaded in (["embedder", "model"], []):
        done = world.run(small)
        assert world.loaded == loaded and done.disk_full is full and done.warm == 0
        assert ("reserve_gib" if full else "budget_gib") in world.said
