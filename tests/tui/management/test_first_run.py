"""The first run: a folder is chosen, looked at without reading it, and started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from desk_rag import config
from desk_rag.config import Settings
from desk_rag.tui.app import DeskRagApp
from desk_rag.tui.management.models import ModelChoice
from desk_rag.tui.management.session import Session
from desk_rag.tui.panels.first_run import FirstRunScreen
from desk_rag.tui.screens.chat import ChatScreen
from tests.tui.conftest import screen_text, text_of, until
from tests.tui.management.conftest import FILES, RULES
from tests.tui.scripted import ScriptedBackend


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeskRagApp:
    """The app without a folder, in a home with some."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, text in FILES.items():
        (tmp_path / "Documents" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "Documents" / name).write_text(text)
    (tmp_path / "Documents" / "photo.png").write_bytes(bytes(100))
    (tmp_path / "Documents" / ".env").write_text("KEY=1")
    (tmp_path / "Downloads").mkdir()
    (tmp_path / "config.toml").write_text(RULES)
    settings = config.load(tmp_path / "config.toml").model_copy(update={"data_dir": tmp_path / "data"})
    return DeskRagApp(ScriptedBackend(session=Session(settings, (), tmp_path / "config.toml")), ())


async def test_from_nothing_to_a_started_folder(fresh: DeskRagApp, tmp_path: Path) -> None:
    async with fresh.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: isinstance(fresh.screen, FirstRunScreen) and "Downloads" in screen_text(fresh))
        assert "Nothing leaves this computer" in screen_text(fresh)
        assert fresh.backend.listen is None, "nothing is started before the choice"
        await pilot.press("enter")
        await until(pilot, lambda: "will read" in screen_text(fresh))
        shown = screen_text(fresh)
        assert "4 files" in shown and "md 2" in shown and "eml 1" in shown
        assert all(one in shown for one in ("1 image", "1 by your rules", "1 that may hold secrets"))
        assert "needs no download" in shown and "⏎ Start" in shown
        assert not (tmp_path / "data").exists(), "looking writes nothing"
        assert (tmp_path / "config.toml").read_text() == RULES
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(fresh.screen, ChatScreen) and fresh.backend.listen is not None)
        assert "Documents" in screen_text(fresh)
        assert fresh.backend.session.folders == (tmp_path / "Documents",)
        assert config.load(tmp_path / "config.toml").folders == (tmp_path / "Documents",)
        assert "# backups" in (tmp_path / "config.toml").read_text()


async def test_a_key_leaves_the_file_with_most_of_the_text_out(fresh: DeskRagApp, tmp_path: Path) -> None:
    log = tmp_path / "Documents" / "weather.log"
    log.write_text("It rained.\n" * 150_000)
    async with fresh.run_test(size=(110, 34)) as pilot:
        await until(pilot, lambda: "Downloads" in screen_text(fresh))
        await pilot.press("enter")
        await until(pilot, lambda: "Ctrl+T leaves weather.log out" in screen_text(fresh))
        await pilot.press("ctrl+t")
        await until(pilot, lambda: "by your choice; Ctrl+T reads it after all" in screen_text(fresh))
        assert "4 files" in screen_text(fresh) and "2 by your rules" in screen_text(fresh)
        await pilot.press("ctrl+t")
        await until(pilot, lambda: "Ctrl+T leaves weather.log out" in screen_text(fresh))
        assert "exclude" not in (tmp_path / "config.toml").read_text().replace(RULES, ""), "nothing is written yet"
        await pilot.press("ctrl+t")
        await until(pilot, lambda: "by your choice" in screen_text(fresh))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(fresh.screen, ChatScreen))
        assert config.load(tmp_path / "config.toml").index.exclude == ("*.bak", "~/Documents/weather.log")
        assert fresh.backend.session.settings.index.exclude == ("*.bak", "~/Documents/weather.log")


async def test_a_folder_is_left_out_before_anything_is_read(fresh: DeskRagApp, tmp_path: Path) -> None:
    async with fresh.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "Downloads" in screen_text(fresh))
        await pilot.press(*"~/Documents", "enter")
        await until(pilot, lambda: "4 files" in screen_text(fresh) and "~/Documents/mail" in screen_text(fresh))
        await pilot.press("down", "down", "ctrl+t")
        await until(pilot, lambda: "~/Documents/mail  left out" in screen_text(fresh))
        await until(pilot, lambda: "3 files" in screen_text(fresh) and "without" in screen_text(fresh))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(fresh.screen, ChatScreen))
        assert config.load(tmp_path / "config.toml").index.exclude == ("*.bak", "~/Documents/mail/")


async def test_names_are_completed_and_a_wrong_one_is_told(fresh: DeskRagApp, tmp_path: Path) -> None:
    async with fresh.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "Downloads" in screen_text(fresh))
        await pilot.press(*"~/doc")
        await until(pilot, lambda: "Downloads" not in screen_text(fresh))
        await pilot.press("tab")
        await until(pilot, lambda: "~/Documents/house" in screen_text(fresh))
        await pilot.press(*"nothing", "enter")
        await until(pilot, lambda: "There is no folder" in screen_text(fresh))
        await pilot.press(*["backspace"] * 7, *"mail", "enter")
        await until(pilot, lambda: "will read" in screen_text(fresh) and "1 file," in screen_text(fresh))
        await pilot.press("escape")
        await until(pilot, lambda: "will read" not in screen_text(fresh))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(fresh.screen, ChatScreen))
        assert "No folder is chosen yet" in screen_text(fresh)


async def test_without_a_folder_nothing_is_waited_for_and_enter_chooses_one(fresh: DeskRagApp) -> None:
    async with fresh.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "Downloads" in screen_text(fresh))
        assert "f6 Pause" not in screen_text(fresh), "there is nothing to pause"
        await pilot.press("escape")
        await until(pilot, lambda: "no folder" in text_of(fresh, "#status"))
        assert fresh.backend.listen is None, "no model is loaded for nothing"
        await pilot.press(*"why", "enter")
        await until(pilot, lambda: "No folder is chosen yet.\nEnter chooses one" in text_of(fresh, ".note"))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(fresh.screen, FirstRunScreen) and "Downloads" in screen_text(fresh))
        await pilot.press("enter")
        await until(pilot, lambda: "will read" in screen_text(fresh))
        await pilot.press("enter")
        await until(pilot, lambda: fresh.backend.listen is not None and "watching" in text_of(fresh, "#status"))
        assert "f6 Pause" in screen_text(fresh)


async def test_a_name_that_is_not_complete_is_offered(fresh: DeskRagApp) -> None:
    async with fresh.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "Downloads" in screen_text(fresh))
        await pilot.press(*"~/docu")
        await until(pilot, lambda: "Downloads" not in screen_text(fresh))
        await pilot.press("enter")
        await until(pilot, lambda: "Tab completes the name: ~/Documents" in " ".join(screen_text(fresh).split()))
        await pilot.press("tab", "enter")
        await until(pilot, lambda: "will read" in screen_text(fresh))
        assert "~/Documents/" in screen_text(fresh)


async def test_a_folder_without_a_readable_file_cannot_be_started(fresh: DeskRagApp, tmp_path: Path) -> None:
    async with fresh.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "Downloads" in screen_text(fresh))
        await pilot.press(*"~/Downloads", "enter")
        await until(pilot, lambda: "no file in it can be read" in screen_text(fresh))
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(fresh.screen, FirstRunScreen)


def test_hostile_settings_are_not_needed(tmp_path: Path) -> None:
    """A first run needs no settings file at all."""
    session = Session(Settings(data_dir=tmp_path / "data"), (), tmp_path / "new" / "config.toml")
    from desk_rag.tui.management.first_run import FirstRun

    (tmp_path / "docs").mkdir()
    assert FirstRun(session).is_due()
    assert FirstRun(session).choose(tmp_path / "docs", ModelChoice("embedded")) == ""
    assert config.load(tmp_path / "new" / "config.toml").folders == (tmp_path / "docs",)
    assert not FirstRun(session).is_due()


async def test_a_folder_that_is_new_is_told_of_while_one_may_ask(tmp_path: Path) -> None:
    """With a folder on the command line nothing is asked; a notice says what will be read."""
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "a.md").write_text("# A\n")
    (folder / "b.jpg").write_bytes(b"x")
    session = Session(Settings(data_dir=tmp_path / "data"), [folder], tmp_path / "config.toml")
    app = DeskRagApp(ScriptedBackend(session=session), [folder])
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await until(pilot, lambda: "1 file to read (md 1)" in screen_text(app) and "1 image" in screen_text(app))
        assert isinstance(app.screen, ChatScreen)
    assert not (tmp_path / "config.toml").exists()


async def test_another_model_is_checked_before_it_is_taken(
    fresh: DeskRagApp, here: None, tmp_path: Path, reader_dir: Path
) -> None:
    async with fresh.run_test(size=(100, 30), notifications=True) as pilot:
        await until(pilot, lambda: "Downloads" in screen_text(fresh))
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "needs no download" in screen_text(fresh), 60)
        await until(pilot, lambda: "embedded [ships with desk-rag]" in screen_text(fresh))
        await pilot.press(*"/nothing/here", "enter")
        await until(pilot, lambda: "is neither a model directory" in " ".join(screen_text(fresh).split()), 90)
        await pilot.press("ctrl+u", *str(reader_dir), "enter")
        await until(pilot, lambda: isinstance(fresh.screen, FirstRunScreen), 30)
        await pilot.press("down", "up", "enter")
        await until(pilot, lambda: "will read" in screen_text(fresh))
        await until(pilot, lambda: str(reader_dir) in screen_text(fresh))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(fresh.screen, ChatScreen))
        assert config.load(tmp_path / "config.toml").model.name == str(reader_dir)
        assert fresh.backend.session.settings.model.name == str(reader_dir)
