"""Pictures of every screen at three sizes, dark, light and without colour, compared with those that are kept.

One file a screen, compressed, with nine SVG pictures. After a wanted change: `DESK_RAG_PICTURES=keep pytest …`, then
look at them: `python -m tests.tui.pictures DIRECTORY [NAME]` writes them as SVG files.
"""

from __future__ import annotations

import difflib
import html
import json
import lzma
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from textual.filter import Monochrome
from textual.pilot import Pilot

from desk_rag.tui.app import DeskRagApp
from desk_rag.tui.themes import DARK, LIGHT

HERE = Path(__file__).resolve().parent
SIZES = ((80, 24), (100, 30), (160, 48))
ALL_LOOKS = ("dark", "light", "no colour")
LOOKS = pytest.mark.parametrize(
    "looks", [ALL_LOOKS[:1], pytest.param(ALL_LOOKS[1:], marks=pytest.mark.slow)], ids=["dark", "others"]
)
"""The dark pictures by themselves, and the six others among the slow tests."""
_TEXTUAL = "8.2.8"
Scene = Callable[[Pilot[int]], Awaitable[None]]


async def compare(name: str, app: DeskRagApp, scene: Scene, looks: Sequence[str] = ("dark",)) -> None:
    """Play `scene` in `app` and compare its pictures with those that are kept under `name`."""
    keep = os.environ.get("DESK_RAG_PICTURES") == "keep"
    taken = await _taken(app, scene, ALL_LOOKS if keep else looks)
    file = HERE / f"{name}.json.xz"
    if keep:
        file.write_bytes(lzma.compress(json.dumps(taken).encode(), preset=9 | lzma.PRESET_EXTREME))
        return
    assert version("textual") == _TEXTUAL, f"the pictures are of Textual {_TEXTUAL}"
    kept = pictures(file)
    for key, picture in taken.items():
        if picture != kept.get(key):
            before, now = (text_of(each) for each in (kept.get(key, ""), picture))
            changes = "\n".join(difflib.unified_diff(before, now, "kept", "now", lineterm="", n=0))
            raise AssertionError(f"{name}, {key}:\n{changes or 'only colours or styles differ'}")


def pictures(file: Path) -> dict[str, str]:
    """Return the SVG pictures of a file by size and look."""
    kept: dict[str, str] = json.loads(lzma.decompress(file.read_bytes()))
    return kept


def text_of(picture: str) -> list[str]:
    """Return the text of a picture, a line for each line that it draws."""
    lines: dict[float, str] = {}
    for place, text in re.findall(r'<text[^>]* y="([\d.]+)"[^>]*>(.*?)</text>', picture):
        lines[float(place)] = lines.get(float(place), "") + html.unescape(text).replace("\xa0", " ")
    return [lines[place].rstrip() for place in sorted(lines)]


async def _taken(app: DeskRagApp, scene: Scene, looks: Sequence[str]) -> dict[str, str]:
    taken: dict[str, str] = {}
    async with app.run_test(size=SIZES[1], notifications=True) as pilot:
        await scene(pilot)
        for look in looks:
            if look == "no colour":
                app._filters.append(Monochrome())
            app.theme = LIGHT.name if look == "light" else DARK.name
            for size in SIZES:
                await pilot.resize_terminal(*size)
                await _settled(pilot)
                taken[f"{size[0]}x{size[1]} {look}"] = app.export_screenshot(title="desk-rag")
    return taken


async def _settled(pilot: Pilot[Any]) -> None:
    """Draw everything anew, and wait until nothing changes any more."""
    await pilot.wait_for_animation()
    await pilot.pause()
    for widget in (pilot.app.screen, *pilot.app.screen.walk_children()):
        widget._styles_cache.clear()
        widget.refresh(repaint=True)
    before: object = None
    for _ in range(50):
        await pilot.pause(0.02)
        now = [list(strip) for strip in pilot.app.screen._compositor.render_strips()]
        if now == before:
            return
        before = now
