"""Activity, cache and doctor over a real store."""

from __future__ import annotations

import math
import os
import time

import pytest

from desk_rag.cli.checks.finding import Finding, Verdict
from desk_rag.cli.doctor import examine
from desk_rag.documents.status import FileState, IndexStage
from desk_rag.indexer.resident.facts import IndexingState
from desk_rag.kv.types import Namespace
from desk_rag.store.store import Store
from desk_rag.store.types import Activity
from desk_rag.tui.app import DeskRagApp
from desk_rag.tui.backend import Freshness, Status
from desk_rag.tui.index_state import status_of
from desk_rag.tui.management.session import Session
from desk_rag.tui.widgets.index_status import MOST_DETAIL, line
from tests.store.made import NS, key, kv_files, kv_for
from tests.tui.conftest import screen_text, until
from tests.tui.management.conftest import Open, World
from tests.tui.scripted import WARMING, ScriptedBackend


def published(world: World, **changes: object) -> None:
    fields: dict[str, object] = {
        "pid": os.getpid(), "at": time.time(), "stage": IndexStage.VECTORS, "done": 3, "total": 12, "unit": "chunks",
        "rate": 2.5, "eta_seconds": 240.0, "waiting": "", "current": "roof\x1b]52;c;Zm9v\x07\u202e.txt",
    }  # fmt: skip
    with Store.open(world.settings.data_dir, world.settings.store, writer=False) as store:
        store.publish_activity(Activity(**{**fields, **changes}))  # type: ignore[arg-type]


async def test_activity_says_how_far_and_why_it_waits(opened: Open, world: World) -> None:
    published(world)
    with Store.open(world.settings.data_dir, world.settings.store, writer=True) as store:
        for name in ("notes.md", "house/roof.txt"):
            path = world.folder / name
            store.record_outcome(path, FileState.FAILED, f"{path} could not be read: I/O error.", None)
    async with opened() as pilot:
        await pilot.press("f4")
        await until(pilot, lambda: "everything is up to date" in screen_text(pilot.app))
        assert "2.5 chunks a second" not in screen_text(pilot.app), "the status bar says that nothing is to be done"
        published(world)  # activity that is a minute old counts no more
        pilot.app.backend.now = WARMING
        await until(pilot, lambda: "2.5 chunks a second · 4 min left" in screen_text(pilot.app))
        await until(pilot, lambda: "everything is up to date" not in screen_text(pilot.app))
        await until(pilot, lambda: f"indexed by process {os.getpid()}" in screen_text(pilot.app))
        assert "roof⟨U+202E⟩.txt" in screen_text(pilot.app)
        assert "1  is not a PDF that can be opened" in screen_text(pilot.app), "failures by reason, without paths"
        assert "2  could not be read: I/O error" in screen_text(pilot.app)
        published(world, waiting="on battery")
        await until(pilot, lambda: "waiting: on battery" in screen_text(pilot.app))


async def test_caches_of_the_auxiliary_model_are_work_that_is_shown(opened: Open, world: World) -> None:
    auxiliary, session = Namespace("a1" * (len(NS) // 2)), world.session()
    with Store.open(world.settings.data_dir, world.settings.store, writer=True) as store:
        store.register_model([NS], auxiliary)
        passages = [passage.chunk for row in store.documents() for passage in store.passages_of(row.path)]

        def fill(namespace: Namespace, number: int) -> None:
            for chunk in passages[:number]:
                name = key(chunk.text, namespace)
                assert store.put_kv(name, kv_for(name), [chunk.chunk_id], 0.1)

        def status() -> Status:
            state = IndexingState(pid=os.getpid())
            return status_of(store, store.counts(NS, None, [world.folder]), session, state, is_young=False)

        fill(NS, len(passages))
        fill(auxiliary, 1)
        published(world, stage=IndexStage.WARM, done=5, total=8)
        filling = status()
        assert (filling.warm, filling.auxiliary_warm, filling.chunks) == (4, 1, 4)
        assert "auxiliary model's caches 1 of 4, 4 min left" in line(filling, "", MOST_DETAIL).plain
        async with opened() as pilot:
            pilot.app.backend.now = filling
            await pilot.press("f4")
            await until(pilot, lambda: "▸ warm: auxiliary" in screen_text(pilot.app))
            assert "25%  1 of 4 chunks" in screen_text(pilot.app) and "at work" in screen_text(pilot.app)
        fill(auxiliary, len(passages))
        assert status().freshness is Freshness.WATCHING, "answers have made what the writer still counts"


async def test_pause_has_choices_and_work_now_reaches_the_writer(opened: Open, world: World) -> None:
    published(world)
    async with opened() as pilot:
        backend = pilot.app.backend
        await pilot.press("f4")
        await until(pilot, lambda: "⏎ Pause" in screen_text(pilot.app))
        await pilot.press("enter")
        await until(pilot, lambda: "For eight hours" in screen_text(pilot.app))
        await pilot.press("r")
        await until(pilot, lambda: backend.pauses == [math.inf])
        with Store.open(world.settings.data_dir, world.settings.store, writer=False) as store:
            store.request_pause(math.inf)
            await until(pilot, lambda: "paused: until desk-rag is started again" in screen_text(pilot.app))
            await until(pilot, lambda: "⏎ Go on" in screen_text(pilot.app))
            await pilot.press("enter")
            await until(pilot, lambda: backend.pauses == [math.inf, None])
            store.request_pause(None)
            await pilot.press("ctrl+o")
            await until(pilot, lambda: "works although the computer is busy" in screen_text(pilot.app))
            until_when = store.full_speed_requested()
            assert until_when is not None and 3500 < until_when - time.time() <= 3600
            await until(pilot, lambda: "^o Only when idle" in screen_text(pilot.app))
            await pilot.press("ctrl+o")
            await until(pilot, lambda: store.full_speed_requested() is None)


async def test_cache_shows_room_and_what_goes_next_and_verifies(opened: Open, world: World) -> None:
    with Store.open(world.settings.data_dir, world.settings.store, writer=True) as store:
        passage = store.passages_of(world.folder / "notes.md")[0]
        name = key(passage.chunk.text)
        assert store.put_kv(name, kv_for(name), [passage.chunk.chunk_id], 0.1)
        (file,) = kv_files(world.settings.data_dir)
        auxiliary = Namespace("a1" * (len(NS) // 2))
        store.register_model([NS], auxiliary)
        small = key(passage.chunk.text, auxiliary)
        assert store.put_kv(small, kv_for(small), [passage.chunk.chunk_id], 0.1)
    async with opened() as pilot:
        await pilot.press("f5")
        await until(pilot, lambda: "Deleted next" in screen_text(pilot.app))
        shown = screen_text(pilot.app)
        assert "1 of 4 chunks (25%)" in shown and "MB of text" in shown and "notes.md  lines 1-3" in shown
        assert "1 of 4 chunks, " in shown and "of the above" in shown, "the share of the auxiliary model"
        await pilot.press("enter")
        await until(pilot, lambda: "nothing is wrong" in screen_text(pilot.app))
        damaged = bytearray(file.read_bytes())
        damaged[-1] ^= 1
        file.write_bytes(damaged)
        await pilot.press("enter")
        await until(
            pilot, lambda: "1 problem" in screen_text(pilot.app) and "verify --repair" in screen_text(pilot.app)
        )


async def test_cache_says_which_part_of_a_file_goes_next(opened: Open, world: World) -> None:
    mails = (f"From: {name}@x.org\nSubject: Key of {name}\n\nIt lies below pot {name}.\n" for name in ("ana", "ben"))
    (world.folder / "keys.mbox").write_text("\n".join(f"From sender@example\n{mail}" for mail in mails))
    world.sync()
    with Store.open(world.settings.data_dir, world.settings.store, writer=True) as store:
        for passage in store.passages_of(world.folder / "keys.mbox"):
            name = key(passage.chunk.text)
            assert store.put_kv(name, kv_for(name), [passage.chunk.chunk_id], 0.1)
    async with opened() as pilot:
        await pilot.press("f5")
        await until(pilot, lambda: "Deleted next" in screen_text(pilot.app))
        for name in ("ana", "ben"):
            assert f"keys.mbox  {name}@x.org: Key of {name}" in screen_text(pilot.app)


@pytest.mark.parametrize("columns", [60, 80, 81, 97, 100])
async def test_doctor_breaks_lines_only_where_they_go_on_below_the_text(world: World, columns: int) -> None:
    detail = "a check of many words, each of another length, that goes on for several lines of the screen " * 4
    findings = [Finding("a name", Verdict.OK, detail) for _ in range(6)]
    session = Session(world.settings, [world.folder], world.config, lambda _: iter(findings))
    app = DeskRagApp(ScriptedBackend(session=session), [world.folder])
    async with app.run_test(size=(columns, 24)) as pilot:
        await pilot.press("f8")
        await until(pilot, lambda: "6 checks" in screen_text(app))
        rows = screen_text(app).splitlines()[3:-1]
        assert all(row.startswith((" ● a name", " " * 17)) for row in rows), "\n".join(rows)


async def test_doctor_runs_the_checks_with_remedies(world: World) -> None:
    broken = world.settings.model_copy(
        update={"model": world.settings.model.model_copy(update={"name": "/nothing/here"})}
    )
    session = Session(broken, [world.folder], world.config, examine)
    app = DeskRagApp(ScriptedBackend(session=session), [world.folder])
    async with app.run_test(size=(118, 60)) as pilot:
        await pilot.press("f8")
        await until(pilot, lambda: "checks: " in screen_text(app), 60)
        shown = screen_text(app)
        assert "● python" in shown and "✗ model" in shown and "failed" in shown
        assert "! files" in shown and "1 file could not be read" in shown
        before = app.screen._findings  # type: ignore[attr-defined]
        await pilot.press("enter")
        await until(pilot, lambda: app.screen._findings is not before and "checks: " in screen_text(app), 60)  # type: ignore[attr-defined]


async def test_panels_replace_each_other_and_close_with_their_key(opened: Open) -> None:
    async with opened() as pilot:
        depth = len(pilot.app.screen_stack)
        for key, name in (("f3", "Library"), ("f4", "Activity"), ("f5", "Cache"), ("f8", "Doctor")):
            await pilot.press(key)
            await until(pilot, lambda: f"desk-rag  {name}" in screen_text(pilot.app))  # noqa: B023
            assert len(pilot.app.screen_stack) == depth + 1
        await pilot.press("f8")
        await until(pilot, lambda: "Ask about your files" in screen_text(pilot.app))
        assert len(pilot.app.screen_stack) == depth


async def test_f1_begins_with_what_has_the_focus(opened: Open) -> None:
    async with opened(size=(100, 40)) as pilot:
        await pilot.press("f1")
        await until(pilot, lambda: "The prompt" in screen_text(pilot.app))
        await pilot.press("escape")
        await pilot.press("f3")
        await until(pilot, lambda: "photo.png" in screen_text(pilot.app))
        await pilot.press("f1")
        await until(pilot, lambda: "filter by parts of the path" in screen_text(pilot.app))
        await pilot.press("f1")
        await until(
            pilot, lambda: "photo.png" in screen_text(pilot.app) and "filter by parts" not in screen_text(pilot.app)
        )


async def test_the_palette_names_every_screen_with_its_key(opened: Open) -> None:
    async with opened() as pilot:
        commands = {command.title: command.help for command in pilot.app.get_system_commands(pilot.app.screen)}
        for title, key in (
            ("Library", "F3"),
            ("Activity", "F4"),
            ("Cache", "F5"),
            ("Settings", "F2"),
            ("Doctor", "F8"),
        ):
            assert f"({key})" in commands[title]
