"""Settings: listed with meaning and origin, changed in the file after a question about the cost, comments kept."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from desk_rag import config
from desk_rag.config import Settings
from desk_rag.errors import ConfigError, DeskRagError
from desk_rag.settings_file import SettingsFile
from desk_rag.tui.management import settings_list
from desk_rag.tui.management.session import Session
from desk_rag.tui.management.settings_list import SettingsList
from desk_rag.tui.panels.choice import ChoiceScreen
from desk_rag.tui.panels.settings import SettingsScreen
from desk_rag.tui.panels.value_input import ValueScreen
from tests.tui.conftest import screen_text, until
from tests.tui.management.conftest import RULES, Open, World


async def test_a_free_setting_is_written_at_once_and_a_costly_one_asks(opened: Open, world: World) -> None:
    async with opened() as pilot:
        await pilot.press("f2")
        await until(pilot, lambda: "model.name" in screen_text(pilot.app))
        await pilot.press(*"sweep_sec")
        await until(pilot, lambda: "How often `watch` and the UI look" in screen_text(pilot.app))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ValueScreen))
        await pilot.press(*["backspace"] * 5, *"60", "enter")
        await until(pilot, lambda: "index.sweep_seconds is 60 now" in screen_text(pilot.app))
        assert pilot.app.backend.session.settings.index.sweep_seconds == 60
        await pilot.press("escape", *"max_text_mib")
        await until(pilot, lambda: "Text of one file that is indexed" in screen_text(pilot.app))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ValueScreen))
        await pilot.press(*["backspace"] * 5, *"900", "enter")
        await until(pilot, lambda: "must be at most 64" in " ".join(screen_text(pilot.app).split()))
        await pilot.press(*["backspace"] * 3, *"9", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ChoiceScreen))
        assert "All files are read again: 4 files" in screen_text(pilot.app)
        assert config.load(world.config).index.max_text_mib == 5, "nothing before the answer"
        await pilot.press("y")
        await until(pilot, lambda: "index.max_text_mib is 9 now" in screen_text(pilot.app))
    after = world.config.read_text()
    assert config.load(world.config).index.max_text_mib == 9
    for kept in RULES.splitlines():
        assert kept in after


async def test_choices_and_origin(opened: Open, world: World) -> None:
    async with opened() as pilot:
        await pilot.press("f2")
        await until(pilot, lambda: "model.name" in screen_text(pilot.app))
        await pilot.press(*"index.exclude")
        await until(pilot, lambda: '["*.bak"]' in screen_text(pilot.app) and " file" in screen_text(pilot.app))
        await pilot.press("escape", *"on_battery")
        await until(pilot, lambda: "Fill caches on battery" in screen_text(pilot.app))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ChoiceScreen))
        await pilot.press("1")
        await until(pilot, lambda: "idle.on_battery is true now" in screen_text(pilot.app))
        await pilot.press("escape")
        await until(pilot, lambda: "model.name" in screen_text(pilot.app))
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, SettingsScreen))
    assert config.load(world.config).idle.on_battery


def test_every_setting_has_a_meaning_and_origin(world: World) -> None:
    over = world.settings.model_copy(update={"model": world.settings.model.model_copy(update={"threads": 3})})
    rows = {row.name: row for row in SettingsList(Session(over, [world.folder], world.config)).rows()}
    assert len(rows) > 35 and all(row.meaning for row in rows.values())
    assert rows["index.exclude"].origin == "file"
    assert rows["model.threads"].origin == "command line" and rows["model.threads"].in_use == 3
    assert rows["answer.top_k"].origin == "default"


def test_the_value_in_force_is_shown_with_its_origin(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESK_RAG_DATA_DIR", str(world.settings.data_dir))
    rows = {row.name: row for row in SettingsList(Session(world.settings, [world.folder], world.config)).rows()}
    assert (rows["data_dir"].origin, rows["data_dir"].in_use) == ("environment", world.settings.data_dir)
    assert (rows["folders"].origin, rows["folders"].in_use) == ("command line", (world.folder,))
    monkeypatch.delenv("DESK_RAG_DATA_DIR")
    session = Session(world.settings, [world.folder], world.config)
    rows = {row.name: row for row in SettingsList(session).rows()}
    assert rows["data_dir"].origin == "command line"
    session.file.write({("data_dir",): str(world.settings.data_dir), ("folders",): [str(world.folder)]})
    settings = SettingsList(session)
    rows = {row.name: row for row in settings.rows()}
    assert rows["data_dir"].origin == rows["folders"].origin == "file"
    settings.make(settings.prepare(rows["model.threads"], "3"))
    row = next(row for row in settings.rows() if row.name == "model.threads")
    assert (row.origin, row.value, row.in_use) == ("next start", 3, 0)


def test_the_thread_that_lists_the_settings_parses_no_python(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython's `ast` raises SystemError in two threads at once, and Textual uses it for its actions."""
    settings_list._fields.cache_clear()
    settings_list._classes.cache_clear()
    settings = SettingsList(world.session())

    def fails(*_: object) -> None:
        raise SystemError("AST constructor recursion depth mismatch")

    with monkeypatch.context() as patched:
        patched.setattr(ast, "parse", fails)
        rows = settings.rows()
    assert all(row.meaning for row in rows)


def test_costs_are_named_only_where_something_is_lost(world: World) -> None:
    settings = SettingsList(world.session())
    rows = {row.name: row for row in settings.rows()}
    assert "4 chunks" in settings.prepare(rows["model.embedder"], "/other").cost
    assert "no vectors" not in settings.prepare(rows["model.embedder"], "embedded").cost
    assert settings.prepare(rows["model.embedder"], "").cost == ""
    assert settings.prepare(rows["answer.top_k"], "7").cost == ""
    assert settings.prepare(rows["store.budget_gib"], "0").cost == "", "there are no caches to delete"
    with pytest.raises(ConfigError, match="whole number"):
        settings.prepare(rows["answer.top_k"], "many")


def test_the_file_keeps_its_form_and_its_link(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles" / "config.toml"
    real.parent.mkdir()
    real.write_text('# mine\n[model]\nname = "embedded" # small\n\n[idle]\non_battery = true\n')
    real.chmod(0o640)
    (tmp_path / "config.toml").symlink_to(real)
    file = SettingsFile(tmp_path / "config.toml")
    file.write({("folders",): ["~/Documents"], ("store", "budget_gib"): 3.5})
    text = real.read_text()
    assert (tmp_path / "config.toml").is_symlink() and real.stat().st_mode & 0o777 == 0o640
    assert "# mine" in text and "# small" in text
    after = config.load(tmp_path / "config.toml")
    assert after.folders == (Path("~/Documents"),) and after.store.budget_gib == 3.5 and after.idle.on_battery
    file.write({("store", "budget_gib"): None})
    assert config.load(real).store.budget_gib == Settings().store.budget_gib
    with pytest.raises(ConfigError, match="at least"):
        file.write({("store", "budget_gib"): -1})
    assert real.read_text().count("budget_gib") == 0 and not list(tmp_path.glob("**/.config*"))


def test_line_ends_stay_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(b'# mine\r\n[model]\r\nname = "embedded"\r\n')
    SettingsFile(file).write({("model", "name"): "other"})
    assert file.read_bytes() == b'# mine\r\n[model]\r\nname = "other"\r\n'


async def test_the_theme_is_remembered(world: World) -> None:
    app = world.app()
    app.remembers = True  # type: ignore[misc]
    async with app.run_test() as pilot:
        await until(pilot, lambda: "watching" in screen_text(app))
        app.theme = "nord"
        await until(pilot, lambda: "nord" in world.config.read_text())
    settings = config.load(world.config)
    assert settings.ui.theme == "nord" and "# backups" in world.config.read_text()
    again = World(world.folder, settings.model_copy(update={"data_dir": world.settings.data_dir}), world.config).app()
    async with again.run_test() as pilot:
        assert again.theme == "nord"


async def test_ascii_draws_nothing_else(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    (world.folder / "über 漢字.md").write_text("New\n")
    app = world.app()
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "watching" in screen_text(app))
        await pilot.press("f3")
        await until(pilot, lambda: "uber ????.md" in screen_text(app))
        shown = screen_text(app)
        assert shown.isascii() and "> house/" in shown and "* notes.md" in shown
        assert {len(line) for line in shown.splitlines()} == {100}


def test_a_model_that_is_not_there_is_refused_before_any_question(world: World) -> None:
    settings = SettingsList(world.session())
    row = next(row for row in settings.rows() if row.name == "model.name")
    with pytest.raises(DeskRagError, match="nonsense"):
        settings.prepare(row, "nonsense")
    assert settings.prepare(row, "embedded").value == "embedded"


def test_a_section_that_a_change_began_goes_with_it_and_one_with_a_comment_stays(tmp_path: Path) -> None:
    file = SettingsFile(tmp_path / "config.toml")
    file.write({("index", "exclude"): ["/a/"]})
    file.write({("index", "exclude"): None})
    assert "[index]" not in file.path.read_text()
    file.path.write_text("[index]\n# mine\nexclude = []\n")
    file.write({("index", "exclude"): None})
    assert "[index]\n# mine" in file.path.read_text()
