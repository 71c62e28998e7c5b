"""Caches of a new folder are made for some time before its question is answered, and the rest is named."""

from __future__ import annotations

from pathlib import Path

from desk_rag.indexer.once import fill_before_question
from desk_rag.ingest import pipeline
from tests.answer_world import an_engine, make_world
from tests.models import FAMILIES, build_model


def test_a_question_does_not_wait_for_all_caches(tmp_path: Path) -> None:
    world = make_world(tmp_path, "cpu", build_model(FAMILIES[0]))
    with an_engine(world, tmp_path / "data") as engine:
        (tmp_path / "docs" / "new.md").write_text(
            "".join(f"# Part {n}\n\nThe code of door {n} is {n * 37}.\n\n" for n in range(40))
        )
        prompt, store, settings = engine.model.prompt, engine.store, engine.settings
        for _ in pipeline.sync_folder(
            store, tmp_path / "docs", prompt, prompt.chunk_size, settings.index, lambda: False
        ):
            pass
        cold = store.counts(engine.namespace)
        events = list(fill_before_question(store, engine.serving, engine.turn, lambda: False, seconds=0.02))
        part = store.counts(engine.namespace)
        assert cold.warm <= part.warm < part.chunks
        assert not events or "the question comes first" in events[-1].waiting
        rest = list(fill_before_question(store, engine.serving, engine.turn, lambda: False))
        assert rest and not rest[-1].waiting
        whole = store.counts(engine.namespace)
        assert whole.warm == whole.chunks
