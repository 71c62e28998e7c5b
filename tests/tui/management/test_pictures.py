"""Pictures of the screens beside the chat, over a real index; see tests/tui/pictures for how to renew them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import pytest
from textual.pilot import Pilot

from desk_rag.config import Settings
from desk_rag.documents.status import IndexStage
from desk_rag.errors import ModelError
from desk_rag.model.library import machine
from desk_rag.model.library.fit import Machine
from desk_rag.store.store import Store
from desk_rag.store.types import Activity
from desk_rag.tui.app import DeskRagApp
from desk_rag.tui.management import aside
from desk_rag.tui.management.download import Described, ModelDownload
from desk_rag.tui.management.session import Session
from desk_rag.tui.panels import download
from desk_rag.tui.panels.download import DownloadScreen
from tests.store.made import key, kv_for
from tests.tui.conftest import screen_text, until
from tests.tui.management.conftest import World
from tests.tui.pictures import LOOKS, compare
from tests.tui.scripted import WARMING, WATCHING, ScriptedBackend

pytestmark = LOOKS


class Verdict(Enum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Found:
    name: str
    verdict: Enum
    detail: str
    remedy: str = ""


def checks(_settings: Settings) -> Iterator[Found]:
    yield Found("model", Verdict.OK, "the embedded reader, 58 MiB")
    yield Found("disk", Verdict.WARN, "2.1 GiB free", "Delete something, or lower budget_gib.")
    yield Found("index", Verdict.FAIL, "the data directory cannot be written", "Correct its permissions.")


def app_of(pilot: Pilot[int]) -> DeskRagApp:
    assert isinstance(pilot.app, DeskRagApp)
    return pilot.app


def at_work(rate: float, seconds_left: float | None, waiting: str) -> Activity:
    """What a process that fills caches says of itself; of this second for as long as the pictures take."""
    soon = time.time() + 60
    return Activity(1, soon, IndexStage.WARM, 1_310, 2_540, "chunks", rate, seconds_left, waiting, "mail/2025-06.mbox")


@pytest.fixture
def busy(world: World) -> World:
    """The world with a chunk KV, and another process that fills more."""
    with Store.open(world.settings.data_dir, world.settings.store, writer=True) as store:
        passage = store.passages_of(world.folder / "notes.md")[0]
        name = key("notes")
        assert store.put_kv(name, kv_for(name), [passage.chunk.chunk_id], 0.1)
        store.publish_activity(at_work(1.7, 720.0, ""))
    return world


@pytest.mark.parametrize(
    ("name", "pressed", "signs"),
    [
        ("library", "f3", ("photo.png", "4 files read", "~/docs/house")),
        ("activity", "f4", ("at work", "1.7 chunks a second · 12 min left", "broken.pdf")),
        ("activity-waiting", "f4", ("waiting: other programs use the CPU (74 %)", "broken.pdf")),
        ("cache", "f5", ("notes.md",)),
        ("settings", "f2", ("model.name",)),
        ("doctor", "f8", ("3 checks: 1 failed",)),
        ("models", "alt+l", ("ships with desk-rag",)),
    ],
)
async def test_panel(
    busy: World, monkeypatch: pytest.MonkeyPatch, name: str, pressed: str, signs: tuple[str, ...], looks: Sequence[str]
) -> None:
    monkeypatch.setattr(machine, "measure", lambda _settings, text: Machine(0, 0, 12 << 30, 1 << 30, text))
    monkeypatch.setattr(machine, "with_rates", lambda measured, _settings: measured)
    monkeypatch.setattr(aside, "each", lambda function, *arguments: function(*arguments))
    session = Session(busy.settings, [busy.folder], busy.config, checks)
    status = replace(WARMING, waiting="") if name.startswith("activity") else WATCHING
    app = DeskRagApp(ScriptedBackend(session=session, now=status), [busy.folder])
    if name == "activity-waiting":
        with Store.open(busy.settings.data_dir, busy.settings.store, writer=True) as store:
            store.publish_activity(at_work(0.0, None, "other programs use the CPU (74 %)"))

    async def act(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "12,431 files" in screen_text(app))
        await pilot.press(pressed)
        await until(pilot, lambda: all(sign in screen_text(app) for sign in signs), 60)

    await compare(name, app, act, looks)


@pytest.mark.parametrize(
    ("name", "pressed", "sign"),
    [
        ("library-actions", ("f3", "ctrl+o"), "Copy its path"),
        ("library-exclude", ("f3", "ctrl+o", "x"), "Exclude house?"),
        ("library-forget", ("f3", "ctrl+o", "f"), "Forget house?"),
        ("library-text", ("f3", *"notes", "ctrl+o", "t"), "third flower pot"),
        ("library-nothing", ("f3", *"nosuchfile"), "No path holds these words"),
        ("pause", ("f4", "enter"), "For eight hours"),
        ("setting", ("f2", *"max_text_mib", "enter"), "Enter takes it"),
        ("setting-cost", ("f2", *"max_text_mib", "enter", "backspace", "9", "enter"), "All files are read again"),
        ("library-help", ("f3", "f1"), "filter by parts of the path"),
    ],
)
async def test_what_a_panel_asks(
    world: World, name: str, pressed: tuple[str, ...], sign: str, looks: Sequence[str]
) -> None:
    app = DeskRagApp(ScriptedBackend(session=Session(world.settings, [world.folder], world.config)), [world.folder])

    async def act(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "watching" in screen_text(app))
        before = ""
        for pressed_key in pressed:
            await pilot.press(pressed_key)
            if len(pressed_key) > 1:  # what a key opens has to be there before the next one
                await until(pilot, lambda shown=before: screen_text(app) != shown)  # type: ignore[misc]
                await pilot.pause(0.2)
            before = screen_text(app)
        await until(pilot, lambda: sign in " ".join(screen_text(app).split()))

    await compare(name, app, act, looks)


@pytest.mark.parametrize(
    ("name", "folder", "sign"),
    [("first-run-absent", "~/nowhere", "Check the spelling"), ("first-run-nothing", "~/docs/empty", "no file in it")],
)
async def test_first_run_that_cannot_go_on(
    world: World, tmp_path: Path, name: str, folder: str, sign: str, looks: Sequence[str]
) -> None:
    (world.folder / "empty").mkdir()
    (world.folder / "empty" / "picture.png").write_bytes(b"nothing")
    fresh = world.settings.model_copy(update={"data_dir": tmp_path / "new"})
    app = DeskRagApp(ScriptedBackend(session=Session(fresh, (), world.config)), ())

    async def act(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "Which folder" in screen_text(app))
        await pilot.press(*folder, "enter")
        await until(pilot, lambda: sign in screen_text(app))

    await compare(name, app, act, looks)


async def test_first_run(world: World, tmp_path: Path, looks: Sequence[str]) -> None:
    fresh = world.settings.model_copy(update={"data_dir": tmp_path / "new"})
    app = DeskRagApp(ScriptedBackend(session=Session(fresh, (), world.config)), ())

    async def act(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "Which folder" in screen_text(app))
        await pilot.press(*"~/docs", "enter")
        await until(pilot, lambda: "will read" in screen_text(app))
        screen = app.screen
        screen._first_run.room = lambda: (300 << 30, 20 << 30)  # type: ignore[attr-defined]
        screen._preview_came(screen._preview)  # type: ignore[attr-defined]

    await compare("first-run", app, act, looks)


class Hub(ModelDownload):
    """Offers one model, and fetches it up to where it was told to stand still or fail."""

    access, problem, half_way = "", "", threading.Event()

    def ask(self) -> Described:
        facts = "3.1 GiB · licence: apache-2.0 · goes to ~/.cache/huggingface, where 212 GiB are free"
        return Described(facts, self.access, is_here=False)

    def fetch(self, report: Callable[[str, float], None], stop: Callable[[], bool]) -> None:
        report("1.4 of 3.1 GB · 38 MB/s · 45 s left", 0.45)
        if self.problem:
            raise ModelError(self.problem, remedy="Delete something there; what was fetched is kept.")
        self.half_way.wait(60)


GATE = (
    "Its publisher grants access: accept the licence at https://huggingface.co/acme/writer-3b, then run "
    "`hf auth login` once in a terminal."
)


@pytest.mark.parametrize(
    ("name", "presses", "sign", "access", "problem"),
    [
        ("download", 0, "only the name is sent", "", ""),
        ("download-offered", 1, "Its publisher grants access", GATE, ""),
        ("download-fetching", 2, "45 s left", "", ""),
        ("download-full", 2, "is full", "", "The drive of ~/.cache/huggingface is full."),
    ],
)
async def test_download(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str, presses: int, sign: str, access: str, problem: str,
    looks: Sequence[str],
) -> None:  # fmt: skip
    hub = type("OneHub", (Hub,), {"access": access, "problem": problem, "half_way": threading.Event()})
    monkeypatch.setattr(download, "ModelDownload", hub)
    session = Session(world.settings, [world.folder], world.config)
    app = DeskRagApp(ScriptedBackend(session=session), [world.folder])

    async def act(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "watching" in screen_text(app))
        await app.push_screen(DownloadScreen(session, "acme/writer-3b", lambda: None))
        for press in range(presses):
            await until(pilot, lambda n=press: ("Ask the hub", "Fetch it")[n] in screen_text(app))  # type: ignore[misc]
            await pilot.press("enter")
        await until(pilot, lambda: sign in " ".join(screen_text(app).split()))

    try:
        await compare(name, app, act, looks)
    finally:
        hub.half_way.set()
