"""A folder of real files, an index of it, and the app over both, without a language model."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from textual.pilot import Pilot

from desk_rag.config import IndexSettings, Settings, StoreSettings
from desk_rag.ingest.pipeline import sync_folder
from desk_rag.model.prompt import load_prompt
from desk_rag.store.store import Store
from desk_rag.tui.app import DeskRagApp
from desk_rag.tui.management import aside
from desk_rag.tui.management.session import Session
from tests.tui.conftest import until
from tests.tui.scripted import ScriptedBackend

RULES = '# what we keep\n[index]\n# not these\nexclude = ["*.bak"]  # backups\n'
FILES = {
    "house/doors.md": "# Doors\n\nThe kitchen door is painted green.\n",
    "house/roof.txt": "The roof was repaired in May 2021.\n",
    "mail/roofer.eml": "From: a@b.example\nSubject: Roof\nDate: Mon, 1 Feb 2021 10:00:00 +0000\n\nHello, the roof.\n",
    "notes.md": "# Notes\n\nThe spare key lies under the third flower pot.\n",
    "old.bak": "An old copy.\n",
}


@dataclass(frozen=True)
class World:
    """What a test needs to change and look at."""

    folder: Path
    settings: Settings
    config: Path

    def session(self) -> Session:
        return Session(self.settings, [self.folder], self.config)

    def sync(self) -> None:
        """Bring the index up to date."""
        with Store.open(self.settings.data_dir, self.settings.store, writer=True) as store:
            prompt = load_prompt(READER)
            for _ in sync_folder(store, self.folder, prompt, prompt.chunk_size, self.settings.index, lambda: False):
                pass

    def app(self) -> DeskRagApp:
        return DeskRagApp(ScriptedBackend(session=self.session()), [self.folder])


READER = Path(__file__).resolve().parents[3] / "assets" / "reader"
Open = Callable[..., AbstractAsyncContextManager[Pilot[int]]]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Some files that were read, one that failed, two that were left out, and an index of them; '~' is above both."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "docs"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    (folder / "broken.pdf").write_bytes(b"%PDF-1.4\nnothing")
    for file in folder.rglob("*"):
        if file.is_file():
            os.utime(file, (1_700_000_000, 1_700_000_000))
    config = tmp_path / "config" / "config.toml"
    config.parent.mkdir()
    config.write_text(RULES)
    settings = Settings(
        data_dir=tmp_path / "data",
        folders=(),
        index=IndexSettings(exclude=("*.bak",), settle_seconds=0),
        store=StoreSettings(budget_gib=1, reserve_gib=0),
    )
    new = World(folder, settings, config)
    new.sync()
    return new


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the UI computes in a process beside it is computed in this one, without a look at the machine's speed."""
    from desk_rag.model.library import machine  # here, because programs in terminals import this file

    monkeypatch.setattr(machine, "with_rates", lambda measured, _settings: measured)
    monkeypatch.setattr(aside, "each", lambda function, *arguments: function(*arguments))


@pytest.fixture
def opened(world: World) -> Open:
    """Run the app on the world."""

    @asynccontextmanager
    async def run(size: tuple[int, int] = (118, 32), of: World | None = None) -> AsyncIterator[Pilot[int]]:
        app = (of or world).app()
        async with app.run_test(size=size, notifications=True) as pilot:
            await until(pilot, lambda: "watching" in str(app._chat.query_one("#status").visual))
            yield pilot
        app.backend.session.detach()

    return run
