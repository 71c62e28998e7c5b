"""Take the pictures of the README from the real program: `python -m tests.tui.pictures.readme`.

It opens the UI on the sample documents with a new index, and writes answer.svg, source.svg and library.svg in
assets/pictures.
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
from desk_rag.tui.screens.document_text import DocumentTextScreen
from tests.tui.conftest import ask, screen_text, until

ROOT = Path(__file__).resolve().parents[3]
PICTURES = ROOT / "assets" / "pictures"
SIZE = (112, 30)
QUESTION = "What is the fine for camping in the Norrfell nature park?"
_MOST_SECONDS = 540.0


async def take_all(folder: Path, home: Path) -> None:
    """Ask a question once everything is warm, read its source at the quote, then show the library."""
    settings = Settings(data_dir=home / "data", idle=IdleSettings(quiet_seconds=0, cpu_busy_percent=100))
    backend = LiveBackend(Session(settings, [folder], home / "config.toml"))
    app = DeskRagApp(backend, [folder])
    try:
        async with app.run_test(size=SIZE) as pilot:
            await until(pilot, lambda: "read ahead 100%" in screen_text(app), _MOST_SECONDS)
            await ask(pilot, "Who repaired the dishwasher?")  # the model's first answer takes longer
            await until(pilot, lambda: "passages from" in screen_text(app), 120)
            await pilot.press("ctrl+n")
            await ask(pilot, QUESTION)
            await until(pilot, lambda: "passages from" in screen_text(app) and "first word" in screen_text(app), 120)
            await pilot.pause(1.0)
            take(pilot, "answer")
            await pilot.press("alt+v")
            await until(pilot, lambda: isinstance(app.screen, DocumentTextScreen), 60)
            await pilot.pause(1.0)
            take(pilot, "source")
            await pilot.press("escape")
            await pilot.press("f3")
            await until(pilot, lambda: "travel/" in screen_text(app), 60)
            await pilot.press("down", "enter")  # into home/
            await until(pilot, lambda: "repairs.md" in screen_text(app), 60)
            await pilot.pause(1.0)
            take(pilot, "library")
    finally:
        backend.stop()


def take(pilot: Pilot[int], name: str) -> None:
    """Write what the screen shows as SVG, without fonts from elsewhere."""
    picture = pilot.app.export_screenshot(title="desk-rag")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / f"{name}.svg").write_text(picture.replace("Fira Code", "monospace"), encoding="utf-8")


def main() -> None:
    """Take all three."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        os.environ["HOME"] = place
        (home / "Documents").symlink_to(ROOT / "assets" / "sample_docs")
        asyncio.run(take_all(home / "Documents", home))


if __name__ == "__main__":
    main()
