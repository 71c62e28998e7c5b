"""Pictures of the screens beside the chat, over a real index; see tests/tui/pictures for how to renew them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest
from textual.pilot import Pilot

from desk_rag.config import Settings
from desk_rag.documents.status import IndexStage
from desk_rag.model.library import machine
from desk_rag.model.library.fit import Machine
from desk_rag.store.store import Store
from desk_rag.store.types import Activity
from desk_rag.tui.app import DeskRagApp
from desk_rag.tui.management import aside
from desk_rag.tui.management.session import Session
from tests.store.made import key, kv_for
from tests.tui.conftest import screen_text, until
from tests.tui.management.conftest import World
from tests.tui.pictures import LOOKS, compare
from tests.tui.scripted import ScriptedBackend

pytestmark = LOOKS


class Verdict(Enum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Found:
    name: str
    verdict: Enum
    detail: str
    remedy: str = ""


def checks(_settings: Settings) -> Iterator[Found]:
    yield Found("model", Verdict.OK, "the embedded reader, 58 MiB")
    yield Found("disk", Verdict.WARN, "2.1 GiB free", "Delete something, or lower budget_gib.")
    yield Found("index", Verdict.FAIL, "the data directory cannot be written", "Correct its permissions.")


def app_of(pilot: Pilot[int]) -> DeskRagApp:
    assert isinstance(pilot.app, DeskRagApp)
    return pilot.app


@pytest.fixture
def busy(world: World) -> World:
    """The world with a chunk KV, and another process that fills more."""
    with Store.open(world.settings.data_dir, world.settings.store, writer=True) as store:
        passage = store.passages_of(world.folder / "notes.md")[0]
        name = key("notes")
        assert store.put_kv(name, kv_for(name), [passage.chunk.chunk_id], 0.1)
        store.publish_activity(Activity(1, time.time(), IndexStage.WARM, 1, 4, "chunks", 0.5, 200.0, "", "notes.md"))
    return world


@pytest.mark.parametrize(
    ("name", "pressed", "signs"),
    [
        ("library", "f3", ("photo.png", "4 files read", "~/docs/house")),
        ("activity", "f4", ("Could not be read",)),
        ("cache", "f5", ("notes.md",)),
        ("settings", "f2", ("model.name",)),
        ("doctor", "f8", ("3 checks: 1 failed",)),
        ("models", "alt+l", ("ships with desk-rag",)),
    ],
)
async def test_panel(
    busy: World, monkeypatch: pytest.MonkeyPatch, name: str, pressed: str, signs: tuple[str, ...], looks: Sequence[str]
) -> None:
    monkeypatch.setattr(machine, "measure", lambda _settings, text: Machine(0, 0, 12 << 30, 1 << 30, text))
    monkeypatch.setattr(machine, "with_rates", lambda measured, _settings: measured)
    monkeypatch.setattr(aside, "one", lambda function, *arguments: function(*arguments))
    session = Session(busy.settings, [busy.folder], busy.config, checks)
    app = DeskRagApp(ScriptedBackend(session=session), [busy.folder])

    async def act(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "watching" in screen_text(app))
        await pilot.press(pressed)
        await until(pilot, lambda: all(sign in screen_text(app) for sign in signs), 60)

    await compare(name, app, act, looks)


async def test_first_run(world: World, tmp_path: Path, looks: Sequence[str]) -> None:
    fresh = world.settings.model_copy(update={"data_dir": tmp_path / "new"})
    app = DeskRagApp(ScriptedBackend(session=Session(fresh, (), world.config)), ())

    async def act(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "Which folder" in screen_text(app))
        await pilot.press(*"~/docs", "enter")
        await until(pilot, lambda: "will read" in screen_text(app))
        screen = app.screen
        screen._first_run.room = lambda: (300 << 30, 20 << 30)  # type: ignore[attr-defined]
        screen._preview_came(screen._preview)  # type: ignore[attr-defined]

    await compare("first-run", app, act, looks)
