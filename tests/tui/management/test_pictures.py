"""Pictures of the screens beside the chat, over a real index; see tests/tui/test_snapshots.py for how to renew them."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from textual.pilot import Pilot

from desk_rag.documents.status import IndexStage
from desk_rag.store.store import Store
from desk_rag.store.types import Activity
from desk_rag.tui.app import DeskRagApp
from desk_rag.tui.management.session import Session
from desk_rag.tui.themes import LIGHT
from tests.store.made import key, kv_for
from tests.tui.conftest import screen_text, until
from tests.tui.management.conftest import World
from tests.tui.scripted import ScriptedBackend

pytestmark = pytest.mark.skipif(version("textual") != "8.2.8", reason="the pictures are of Textual 8.2.8")

SIZES = [(80, 24), (120, 35)]
Snap = Callable[..., bool]


@pytest.fixture
def busy(world: World) -> World:
    """The world with a chunk KV, and another process that fills more."""
    with Store.open(world.settings.data_dir, world.settings.store, writer=True) as store:
        passage = store.passages_of(world.folder / "notes.md")[0]
        name = key("notes")
        assert store.put_kv(name, kv_for(name), [passage.chunk.chunk_id], 0.1)
        store.publish_activity(Activity(1, time.time(), IndexStage.WARM, 1, 4, "chunks", 0.5, 200.0, "", "notes.md"))
    return world


def before(key: str, sign: str, *, light: bool = False) -> Callable[[Pilot[int]], object]:
    async def run(pilot: Pilot[int]) -> None:
        if light:
            pilot.app.theme = LIGHT.name
        await until(pilot, lambda: "watching" in screen_text(pilot.app))  # type: ignore[arg-type]
        await pilot.press(key)
        await until(pilot, lambda: sign in screen_text(pilot.app))  # type: ignore[arg-type]
        if key == "f3":
            await until(
                pilot, lambda: "4 files read" in screen_text(pilot.app) and "~/docs/house" in screen_text(pilot.app)
            )  # type: ignore[arg-type]
        await pilot.wait_for_animation()

    return run


@pytest.mark.parametrize("size", SIZES)
def test_library(snap_compare: Snap, busy: World, size: tuple[int, int]) -> None:
    assert snap_compare(busy.app(), terminal_size=size, run_before=before("f3", "photo.png"))


def test_library_light(snap_compare: Snap, busy: World) -> None:
    assert snap_compare(busy.app(), terminal_size=SIZES[1], run_before=before("f3", "photo.png", light=True))


@pytest.mark.parametrize("size", SIZES)
def test_activity(snap_compare: Snap, busy: World, size: tuple[int, int]) -> None:
    assert snap_compare(busy.app(), terminal_size=size, run_before=before("f4", "could not be read".capitalize()))


@pytest.mark.parametrize("size", SIZES)
def test_cache(snap_compare: Snap, busy: World, size: tuple[int, int]) -> None:
    assert snap_compare(busy.app(), terminal_size=size, run_before=before("f5", "notes.md"))


def test_cache_without_colour(snap_compare: Snap, busy: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(busy.app(), terminal_size=SIZES[0], run_before=before("f5", "notes.md"))


@pytest.mark.parametrize("size", SIZES)
def test_settings(snap_compare: Snap, busy: World, size: tuple[int, int]) -> None:
    assert snap_compare(busy.app(), terminal_size=size, run_before=before("f2", "model.name"))


@pytest.mark.parametrize("size", SIZES)
def test_first_run(snap_compare: Snap, world: World, tmp_path: Path, size: tuple[int, int]) -> None:
    async def look(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "Which folder" in screen_text(pilot.app))  # type: ignore[arg-type]
        await pilot.press(*"~/docs", "enter")
        await until(pilot, lambda: "will read" in screen_text(pilot.app))  # type: ignore[arg-type]
        screen = pilot.app.screen
        screen._first_run.room = lambda: (300 << 30, 20 << 30)  # type: ignore[attr-defined]
        screen._preview_came(screen._preview)  # type: ignore[attr-defined]
        await pilot.pause()

    fresh = world.settings.model_copy(update={"data_dir": tmp_path / "new"})
    session = Session(fresh, (), world.config)
    assert snap_compare(DeskRagApp(ScriptedBackend(session=session), ()), terminal_size=size, run_before=look)
