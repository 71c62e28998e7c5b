"""Letters and digits that somebody is to read differ enough from what is behind them, in both themes."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.color import Color
from textual.geometry import Region

from desk_rag.tui.app import DeskRagApp
from desk_rag.tui.backend import Freshness
from desk_rag.tui.themes import DARK, LIGHT
from tests.tui.conftest import Run, ask, screen_text, until
from tests.tui.management.conftest import World
from tests.tui.scripted import ScriptedBackend
from tests.tui.test_pictures import Kept

LEAST = 4.5
"""Contrast for text of the Web Content Accessibility Guidelines, level AA."""
THEMES = pytest.mark.parametrize("theme", [DARK, LIGHT], ids=["dark", "light"])


def hard_to_read(app: DeskRagApp, of: str = "") -> list[tuple[float, str]]:
    """Return contrast and text of what is less than LEAST; of one widget only, where the rest is dimmed behind it."""
    where = app.screen.query_one(of).region if of else Region(0, 0, *app.size)
    too_low = []
    for y, strip in enumerate(app.screen._compositor.render_strips()):
        x = 0
        for segment in strip:
            style, begin, x = segment.style, x, x + segment.cell_length
            if style is None or style.color is None or style.bgcolor is None or not where.contains(begin, y):
                continue
            if any(sign.isalnum() or sign in "●◐○◌!" for sign in segment.text):
                front, behind = (Color.from_rich_color(each).rgb for each in (style.color, style.bgcolor))
                ratio = contrast(front, behind)
                if ratio < LEAST:
                    too_low.append((round(ratio, 1), segment.text.strip()))
    return too_low


def contrast(front: tuple[int, int, int], behind: tuple[int, int, int]) -> float:
    darker, lighter = sorted((luminance(front), luminance(behind)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(rgb: tuple[int, int, int]) -> float:
    parts = [value / 255 for value in rgb]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_measure_itself() -> None:
    assert contrast((0, 0, 0), (255, 255, 255)) == 21 and contrast((119, 119, 119), (255, 255, 255)) < LEAST


@THEMES
async def test_chat_with_sources_and_the_saved_chats(running: Run, theme: object) -> None:
    backend = ScriptedBackend(keeper=Kept(Path("/nonexistent"), save=True))
    backend.keeper.save = lambda turn, answer: None  # type: ignore[method-assign]
    async with running(backend, (160, 48)) as pilot:
        app = pilot.app
        assert isinstance(app, DeskRagApp)
        app.theme = (LIGHT if theme is LIGHT else DARK).name
        await until(pilot, lambda: "Ask about your files" in screen_text(app))
        assert hard_to_read(app) == []
        await ask(pilot, "when does the boiler warranty end?")
        await until(pilot, lambda: "5 Payment" in screen_text(app) and "first word" in screen_text(app))
        assert hard_to_read(app) == []
        await pilot.press("tab")
        await until(pilot, lambda: app._chat.focused is not None)
        assert hard_to_read(app) == []
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "Who repaired the dishwasher?" in screen_text(app))
        assert hard_to_read(app, "#chats") == []


@THEMES
@pytest.mark.usefixtures("here")
async def test_screens_beside_the_chat(world: World, theme: object) -> None:
    app = world.app()
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        app.theme = (LIGHT if theme is LIGHT else DARK).name
        await until(pilot, lambda: Freshness.WATCHING.value in screen_text(app))
        for key, sign, steps in (
            ("f3", "▸ house/", 4), ("f2", "model.name", 3), ("f4", "found by words", 0), ("f5", "of 1.0 GiB", 0),
            ("alt+l", "ships with desk-rag", 0),
        ):  # fmt: skip
            await pilot.press(key)
            await until(pilot, lambda: sign in screen_text(app))  # noqa: B023 - awaited before the next round
            for _ in range(steps + 1):
                assert hard_to_read(app) == [], key
                await pilot.press("down")
            await pilot.press(key)
            await until(pilot, lambda: "Ask about your files" in screen_text(app))
    app.backend.session.detach()
