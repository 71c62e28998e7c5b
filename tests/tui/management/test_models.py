"""The Models screen: what fits, a choice that costs is asked about, and a start that failed begins again."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind

from desk_rag import config
from desk_rag.errors import ModelError, ModelNotFound
from desk_rag.model.library import machine
from desk_rag.model.library.fit import Machine
from desk_rag.store.store import Store
from desk_rag.tui.app import DeskRagApp
from desk_rag.tui.management.models import ModelChoice, ModelsView
from desk_rag.tui.panels.models import ModelsScreen
from desk_rag.tui.screens.chat import ChatScreen
from tests.model.gguf.families import TINY, write_tiny
from tests.model.library.test_other_programs import put
from tests.store.made import key, kv_for
from tests.tui.conftest import screen_text, text_of, until
from tests.tui.management.conftest import World
from tests.tui.scripted import ScriptedBackend


@pytest.fixture(autouse=True)
def small(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU, the same everywhere."""
    monkeypatch.setattr(machine, "measure", lambda _settings, text: Machine(0, 0, 12 << 30, 1 << 30, text))


def test_the_embedded_reader_stands_first_and_a_missing_model_says_why(world: World) -> None:
    session = world.session()
    missing = session.settings.model.model_copy(update={"name": "/models/nothing"})
    session.settings = session.settings.model_copy(update={"model": missing})
    early, report = ModelsView(session).reports()
    session.detach()
    assert not early.is_final and report.is_final
    assert [row.name for row in early.rows] == [row.name for row in report.rows]
    assert [row.name for row in report.rows][:1] == ["embedded"] and report.rows[0].suits
    assert report.rows[0].verdict == "fits; needs no download and no GPU"
    assert "of disk for this text" in report.rows[0].facts
    (wrong,) = [row for row in report.rows if row.name == "/models/nothing"]
    assert wrong.in_use and not wrong.suits and "neither a model directory" in wrong.facts
    assert "no NVIDIA GPU" in report.machine


def test_what_of_ollamas_is_not_used_and_cannot_be_used_is_said(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tiny.gguf"
    write_tiny(file, TINY["qwen2"], Kind.Q8_0)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    put(tmp_path / "ollama", "registry.ollama.ai/library/broken/latest", file)
    for manifest in (tmp_path / "ollama" / "manifests").rglob("latest"):
        manifest.write_text(manifest.read_text().replace(".image.model", ".image.adapter"))
    manifest = put(tmp_path / "ollama", "registry.ollama.ai/library/mine/latest", file)
    manifest.write_text(manifest.read_text().replace(".image.license", ".image.system"))
    session = world.session()
    early, _ = ModelsView(session).reports()
    session.detach()
    facts = {row.name: row.facts for row in early.rows}
    assert "Not used from Ollama: its SYSTEM text" in facts["mine:latest"]
    assert "a model with an adapter" in facts["broken:latest"]


def test_a_model_that_is_not_here_is_refused(world: World) -> None:
    with pytest.raises(ModelError):
        ModelsView(world.session()).check("/models/nothing")
    assert ModelsView(world.session()).check(" ") == ModelChoice("embedded")


async def test_a_choice_that_leaves_caches_behind_is_asked_about(world: World, reader_dir: Path) -> None:
    with Store.open(world.settings.data_dir, world.settings.store, writer=True) as store:
        passage = store.passages_of(world.folder / "notes.md")[0]
        assert store.put_kv(key("notes"), kv_for(key("notes")), [passage.chunk.chunk_id], 0.1)
    app = world.app()
    async with app.run_test(size=(118, 32), notifications=True) as pilot:
        await until(pilot, lambda: "watching" in screen_text(app))
        await pilot.press("alt+l")
        await until(pilot, lambda: "ships with desk-rag" in screen_text(app), 60)
        await pilot.press(*str(reader_dir), "enter")
        await until(pilot, lambda: "1 chunk cache would not be used" in " ".join(screen_text(app).split()), 60)
        await pilot.press("n")
        await until(pilot, lambda: isinstance(app.screen, ModelsScreen))
        assert config.load(world.config).model.name == "embedded"
        await pilot.press("enter")
        await until(pilot, lambda: "would not be used" in screen_text(app), 60)
        await pilot.press("y")
        await until(pilot, lambda: isinstance(app.screen, ChatScreen), 60)
        assert config.load(world.config).model.name == str(reader_dir)
        assert "# backups" in world.config.read_text(), "comments stay"
    app.backend.session.detach()


async def test_a_start_that_failed_begins_again_with_the_model_that_is_chosen(world: World) -> None:
    error = ModelNotFound("No weights in /models/nothing.", remedy="Name a directory with weights.")
    backend = ScriptedBackend(session=world.session(), start_error=error)
    app = DeskRagApp(backend, [world.folder])
    async with app.run_test(size=(118, 32), notifications=True) as pilot:
        await until(pilot, lambda: "could not start" in text_of(app, "#welcome"))
        assert "Alt+L shows the models" in " ".join(text_of(app, "#welcome").split())
        backend.start_error = None
        await pilot.press("alt+l")
        await until(pilot, lambda: "ships with desk-rag" in screen_text(app), 60)
        await pilot.press("enter")
        await until(pilot, lambda: "embedded reader" in text_of(app, "#model"), 60)
        assert app.failure is None and "could not start" not in screen_text(app)
    backend.session.detach()
