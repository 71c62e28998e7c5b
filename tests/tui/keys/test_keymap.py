"""The user's own keys: what is refused and why, and that all of the UI follows them."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Footer

from desk_rag.config import Settings, UISettings
from desk_rag.errors import ConfigError
from desk_rag.tui.app import DeskRagApp
from desk_rag.tui.keys.actions import GROUPS, KEY_ACTIONS, Area
from desk_rag.tui.keys.keymap import KeyMap, checked, shown_key
from desk_rag.tui.management.session import Session
from desk_rag.tui.management.settings_list import SettingsList
from desk_rag.tui.screens.turn.menu import TurnMenu
from tests.tui.conftest import Run, ask, screen_text, text_of, until
from tests.tui.scripted import FOLDERS, NOWHERE, ScriptedBackend

Q = "when does the warranty end?"


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        ({"compair": "f10"}, "there is no action 'compair'. Did you mean 'compare'?"),
        ({"compare": "hyper+x"}, "is not the name of a key"),
        ({"compare": "f13"}, "is not the name of a key"),
        ({"compare": "ctrl+i"}, "terminals send it as Tab"),
        ({"compare": "alt+b"}, "a word to the left"),
        ({"compare": "x"}, "letters and digits go to the prompt"),
        ({"compare": "up"}, "it moves or edits"),
        ({"compare": "ctrl+p"}, "it lists every action"),
        ({"compare": "ctrl+o"}, "Ctrl+O cannot be both 'compare' and 'open_source'"),
        ({"compare": "f3"}, "F3 cannot be both 'compare' and 'library'"),
        ({"quit": "ctrl+t"}, "Ctrl+T cannot be both 'quit' and 'show'"),
    ],
)
def test_a_key_that_cannot_be_used_is_refused_with_the_reason(chosen: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError) as raised:
        checked(chosen)
    assert reason in raised.value.message
    assert "desk-rag help keys" in raised.value.remedy


def test_keys_of_different_screens_may_be_the_same_and_two_may_be_swapped() -> None:
    assert checked({"show": "ctrl+b"}).shown("show") == "Ctrl+B"
    swapped = checked({"open_source": "alt+v", "read_source": "ctrl+o"})
    assert (swapped.shown("open_source"), swapped.shown("read_source")) == ("Alt+V", "Ctrl+O")
    assert shown_key("alt+pageup") == "Alt+Page Up"


def test_defaults_meet_their_own_rules_and_the_help_names_each_once() -> None:
    for action in KEY_ACTIONS:
        checked({action.name: action.key})
    named = [name for names in GROUPS for name in names]
    assert sorted(named) == sorted(each.name for each in KEY_ACTIONS if each.area is Area.CHAT)
    assert KeyMap({"source_2": "f10"}).help_rows()[3][0].startswith("Alt+1, F10, Alt+3")


async def test_footer_help_menu_and_prompt_follow_the_keys(running: Run) -> None:
    keys = {"actions": "ctrl+k", "compare": "f10"}
    settings = NOWHERE.model_copy(update={"ui": UISettings(keys=keys)})
    backend = ScriptedBackend(session=Session(settings, FOLDERS, NOWHERE.data_dir / "config.toml"))
    async with running(backend, size=(118, 60)) as pilot:
        app = pilot.app
        assert isinstance(app, DeskRagApp)
        await ask(pilot, Q)
        await until(pilot, lambda: "^k Actions" in screen_text(app))
        await pilot.press("alt+m")
        assert not isinstance(app.screen, TurnMenu)
        await pilot.press(*"kept", "ctrl+k")  # the prompt would cut the line
        await until(pilot, lambda: isinstance(app.screen, TurnMenu) and "F10" in screen_text(app))
        await pilot.press("escape", "f1")
        await until(pilot, lambda: "Ctrl+K" in screen_text(app))
        await pilot.press("escape", "f10")
        await until(pilot, lambda: "time to the first word" in text_of(app, ".bars"))


def test_a_wrong_key_stops_the_start_and_a_change_in_the_settings_screen(tmp_path: Path) -> None:
    from desk_rag.tui.opening import run

    session = Session(Settings(data_dir=tmp_path, ui=UISettings(keys={"copy": "ctrl+m"})), (), tmp_path / "c.toml")
    with pytest.raises(ConfigError, match="terminals send it as Enter"):
        run(session)
    settings = SettingsList(Session(Settings(data_dir=tmp_path), (), tmp_path / "c.toml"))
    row = next(row for row in settings.rows() if row.name == "ui.keys")
    with pytest.raises(ConfigError, match="no action 'copi'"):
        settings.prepare(row, '{ copi = "f10" }')
    settings.make(settings.prepare(row, '{ copy = "f10" }'))
    assert '"f10"' in (tmp_path / "c.toml").read_text()


async def test_the_footer_is_drawn_anew_only_when_what_it_shows_has_changed(running: Run) -> None:
    async with running(ScriptedBackend()) as pilot:
        app, footer = pilot.app, pilot.app.screen.query_one(Footer)
        await until(pilot, lambda: bool(footer.children))
        await pilot.pause(0.3)  # for what the start still changes
        first, shown = list(footer.children), screen_text(app).splitlines()[-1]
        for _ in range(3):  # as after every status, and when the focus moves among widgets with the same keys
            app.refresh_bindings()
            await pilot.pause(0.1)
        assert list(footer.children) == first
        await ask(pilot, Q)
        await until(pilot, lambda: screen_text(app).splitlines()[-1] != shown)
        assert not set(first) & set(footer.children)
