"""Take the pictures of the README from the real program: `python -m tests.tui.pictures.readme`.

It opens the UI on the sample documents with a new index, and writes assets/ui-answer.svg, ui-library.svg and
ui-first-steps.svg.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from pathlib import Path

from textual.pilot import Pilot

from desk_rag.config import IdleSettings, Settings
from desk_rag.tui.app import DeskRagApp
from desk_rag.tui.live_backend import LiveBackend
from desk_rag.tui.management.session import Session
from tests.tui.conftest import ask, screen_text, until

ROOT = Path(__file__).resolve().parents[3]
SIZE = (112, 30)
QUESTION = "What is the fine for camping in the Norrfell nature park?"
_MOST_SECONDS = 540.0


async def answer_and_library(folder: Path, home: Path) -> None:
    """Ask a question once everything is warm, then show the library."""
    settings = Settings(data_dir=home / "data", idle=IdleSettings(quiet_seconds=0, cpu_busy_percent=100))
    backend = LiveBackend(Session(settings, [folder], home / "config.toml"))
    app = DeskRagApp(backend, [folder])
    try:
        async with app.run_test(size=SIZE) as pilot:
            await until(pilot, lambda: "warm 100%" in screen_text(app), _MOST_SECONDS)
            await ask(pilot, QUESTION)
            await until(pilot, lambda: "made from" in screen_text(app) and "first word" in screen_text(app), 120)
            await pilot.pause(1.0)
            take(pilot, "answer")
            await pilot.press("f3")
            await until(pilot, lambda: "travel/" in screen_text(app), 60)
            await pilot.press("down", "enter")  # into home/
            await until(pilot, lambda: "repairs.md" in screen_text(app), 60)
            await pilot.pause(1.0)
            take(pilot, "library")
    finally:
        backend.stop()


async def first_steps(home: Path) -> None:
    """Choose a folder and look at what would be read."""
    session = Session(Settings(data_dir=home / "new"), (), home / "config.toml")
    app = DeskRagApp(LiveBackend(session), ())
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "Which folder" in screen_text(app))
        await pilot.press(*"~/Documents", "enter")
        await until(pilot, lambda: "noted in" in screen_text(app), 60)
        await pilot.pause(0.5)
        take(pilot, "first-steps")


def take(pilot: Pilot[int], name: str) -> None:
    """Write what the screen shows as SVG, without fonts from elsewhere."""
    picture = pilot.app.export_screenshot(title="desk-rag")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    (ROOT / "assets" / f"ui-{name}.svg").write_text(picture.replace("Fira Code", "monospace"), encoding="utf-8")


def main() -> None:
    """Take all three."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        os.environ["HOME"] = place
        (home / "Documents").symlink_to(ROOT / "assets" / "sample_docs")
        asyncio.run(first_steps(home))
        asyncio.run(answer_and_library(home / "Documents", home))


if __name__ == "__main__":
    main()
