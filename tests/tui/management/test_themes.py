"""Themes of the user: a file each, beside the settings file; what cannot be used is said."""

from __future__ import annotations

import re
from pathlib import Path

from desk_rag import config
from desk_rag.tui.themes import DARK, LIGHT, own_themes
from tests.tui.conftest import screen_text, until
from tests.tui.management.conftest import World


def test_a_file_names_some_colours_and_the_others_are_those_of_desk_rag(tmp_path: Path) -> None:
    (tmp_path / "paper.toml").write_text('dark = false\nbackground = "#fff8e7"\naccent = "maroon"\n')
    (tmp_path / "night.toml").write_text("")
    themes, faults = own_themes(tmp_path)
    night, paper = themes
    assert not faults
    assert (paper.name, paper.background, paper.accent, paper.dark) == ("paper", "#fff8e7", "maroon", False)
    assert paper.foreground == LIGHT.foreground
    assert (night.name, night.background) == ("night", DARK.background)


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path) -> None:
    for name, text in {
        "a": 'backgroud = "#fff"', "b": 'accent = "nocolour"', "c": "accent = 3", "d": "dark = 1", "e": "= nothing",
        "f": 'border = "red"', "nord": "", "two words": "", "\x1b[2Jesc": "",
    }.items():  # fmt: skip
        (tmp_path / f"{name}.toml").write_text(text)
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "readme.txt").write_text("no theme")
    themes, faults = own_themes(tmp_path)
    said = "\n".join(faults)
    assert not themes and len(faults) == 10 and "\x1b" not in said
    for reason in (
        "backgroud is no colour of a theme; did you mean background?", "accent is no colour; colours are such as",
        "dark is true or false", "border is no colour of a theme; there are foreground,",
        "a theme that comes with desk-rag has this name", "other signs than letters",
        "folder.toml cannot be used: Is a",
    ):  # fmt: skip
        assert reason in said


async def test_a_theme_of_a_file_is_chosen_kept_and_read_again_when_it_changes(world: World) -> None:
    folder = world.config.parent / "themes"
    folder.mkdir()
    (folder / "paper.toml").write_text('dark = false\nbackground = "#fff8e7"\n')
    app = world.app()
    app.remembers = True  # type: ignore[misc]
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "watching" in screen_text(app))
        await choose(pilot, "paper")
        await until(pilot, lambda: "paper" in world.config.read_text())
        assert app.screen.background_colors[1].hex.lower() == "#fff8e7"
        (folder / "paper.toml").write_text('dark = false\nbackground = "#e7f8ff"\n')
        await choose(pilot, "paper")
        await until(pilot, lambda: app.screen.background_colors[1].hex.lower() == "#e7f8ff")
    assert config.load(world.config).ui.theme == "paper"


async def choose(pilot, name: str) -> None:  # type: ignore[no-untyped-def]
    """Choose a theme as a user does: from the palette, which lists them."""
    await pilot.press("ctrl+p", *"change the theme")
    await until(pilot, lambda: "Colours; your own are files in" in screen_text(pilot.app))
    await pilot.press("enter")
    await until(pilot, lambda: "Search for themes" in screen_text(pilot.app))
    await pilot.press(*name)
    await until(pilot, lambda: re.search(rf"^\W*{name}\W*$", screen_text(pilot.app), re.MULTILINE) is not None)
    await pilot.press("enter")


async def test_a_theme_that_is_nowhere_and_a_file_that_cannot_be_used_are_said_at_the_start(world: World) -> None:
    folder = world.config.parent / "themes"
    folder.mkdir()
    (folder / "broken.toml").write_text("dark = maybe\n")
    world.config.write_text('[ui]\ntheme = "gone"\n')
    settings = config.load(world.config).model_copy(update={"data_dir": world.settings.data_dir})
    app = World(world.folder, settings, world.config).app()
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await until(pilot, lambda: "There is no theme 'gone'" in screen_text(app))
        assert any("broken.toml cannot be used: " in notice.message for notice in app._notifications)
        assert app.theme == DARK.name
