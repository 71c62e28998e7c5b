"""The library over a real index: what it lists, why, and what it changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from desk_rag import config
from desk_rag.documents.discovery import FoundFile, LeftOut, examine
from desk_rag.documents.status import FileState
from desk_rag.errors import Cancelled, ConfigError
from desk_rag.store.catalog import checksums
from desk_rag.store.catalog.rows import upsert
from desk_rag.store.store import Store
from desk_rag.store.types import FileStamp
from desk_rag.tui.management.library import Entry, Library, Listed, Shown
from desk_rag.tui.management.library_changes import LibraryChanges
from desk_rag.tui.management.session import Session
from desk_rag.tui.management.settings_list import SettingsList
from desk_rag.tui.panels import library as panel
from desk_rag.tui.panels.choice import ChoiceScreen
from desk_rag.tui.panels.library import LibraryScreen
from desk_rag.tui.widgets.entry_list import PAGE, EntryList
from tests.tui.conftest import screen_text, until
from tests.tui.management.conftest import RULES, Open, World


async def open_library(pilot: Pilot[int], sign: str = "notes.md") -> None:
    await pilot.press("f3")
    await until(pilot, lambda: sign in screen_text(pilot.app))


async def go_to(pilot: Pilot[int], name: str) -> None:
    """Filter down to one file; the pane below then says why."""
    await pilot.press(*name)
    await until(pilot, lambda: pilot.app.screen.query_one(EntryList).total == 1 and f"/{name}" in pane(pilot))


def pane(pilot: Pilot[int]) -> str:
    return str(pilot.app.screen.query_one("#entry-detail").visual)  # type: ignore[attr-defined]


def line_of(pilot: Pilot[int], name: str) -> str:
    return next(line for line in screen_text(pilot.app).splitlines() if f" {name} " in line)


async def choose(pilot: Pilot[int], key: str) -> None:
    await until(pilot, lambda: isinstance(pilot.app.screen, ChoiceScreen))
    await pilot.press(key)


async def test_what_can_be_done_is_offered_when_the_rows_come_late(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, rows_may_come = Library.entries, threading.Event()

    def late(library: Library, listed: Listed, first: int, number: int) -> list[Entry]:
        rows_may_come.wait(30)
        return read(library, listed, first, number)

    monkeypatch.setattr(Library, "entries", late)
    async with opened() as pilot:
        await pilot.press("f3")
        await until(pilot, lambda: "4 files read" in screen_text(pilot.app))
        await pilot.pause(0.2)
        assert "notes.md" not in screen_text(pilot.app)
        await pilot.press("ctrl+o")
        await pilot.pause(0.1)
        rows_may_come.set()
        await until(pilot, lambda: isinstance(pilot.app.screen, ChoiceScreen), 3)
        assert "Pin: caches deleted last" in screen_text(pilot.app)
        assert "Read the files that failed again" not in screen_text(pilot.app), "none in this folder did"


async def test_every_file_has_its_state_and_reason(opened: Open, world: World) -> None:
    (world.folder / "notes.md").write_text("# Notes\n\nThe spare key was moved.\n")
    (world.folder / "house" / "roof.txt").unlink()
    (world.folder / "new.md").write_text("# New\n\nNot read yet.\n")
    (world.folder / "attic").mkdir()
    async with opened() as pilot:
        await open_library(pilot)
        assert "4 files read · 1 failed · 2 files left out: 1 by your rules, 1 image" in screen_text(pilot.app)
        assert "▸ house/" in screen_text(pilot.app) and "2 read" in line_of(pilot, "house/")
        assert "nothing read from it yet" in line_of(pilot, "attic/")
        assert line_of(pilot, "notes.md").startswith(" ◐") and "changed" in line_of(pilot, "notes.md")
        assert line_of(pilot, "new.md").startswith(" ·") and "waits to be read" in line_of(pilot, "new.md")
        assert line_of(pilot, "broken.pdf").startswith(" !") and "damaged" in line_of(pilot, "broken.pdf")
        assert line_of(pilot, "old.bak").startswith(" ○") and "excluded by you: *.bak" in line_of(pilot, "old.bak")
        assert line_of(pilot, "photo.png").startswith(" ○")
        await pilot.press("down", "enter")
        await until(pilot, lambda: "its file is gone" in screen_text(pilot.app))
        assert line_of(pilot, "roof.txt").startswith(" ◌")
        await pilot.press("backspace")
        await until(pilot, lambda: "attic/" in screen_text(pilot.app))
        await until(pilot, lambda: pane(pilot).startswith("~/docs/house"))


async def test_typing_filters_at_any_depth_and_below_stands_why(opened: Open) -> None:
    async with opened() as pilot:
        await open_library(pilot)
        await go_to(pilot, "roof.txt")
        await until(pilot, lambda: "indexed: 1 chunk, read 20" in pane(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: "photo.png" in screen_text(pilot.app))
        await pilot.press(*"HOUSE md")
        await until(pilot, lambda: "house/doors.md" in screen_text(pilot.app) and "roof.txt" not in pane(pilot))
        await pilot.press("escape")
        await pilot.press("ctrl+t", "ctrl+t")
        await until(pilot, lambda: pilot.app.screen.query_one(EntryList).total == 1)
        assert "broken.pdf" in screen_text(pilot.app)
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, LibraryScreen))


async def test_a_folder_is_found_by_its_name_and_excluded(opened: Open, world: World) -> None:
    async with opened() as pilot:
        await open_library(pilot)
        await pilot.press(*"hous")
        await until(pilot, lambda: "▸ house/" in screen_text(pilot.app) and "house/doors.md" in screen_text(pilot.app))
        assert "notes.md" not in screen_text(pilot.app)
        await pilot.press("ctrl+o")
        await choose(pilot, "x")
        await until(pilot, lambda: "Exclude house?" in screen_text(pilot.app))
        assert "F9 undoes it until you quit" in " ".join(screen_text(pilot.app).split())
        await pilot.press("y")
        await until(pilot, lambda: '"/house/"' in world.config.read_text() or "house/" in world.config.read_text())


async def test_a_file_whose_permissions_changed_has_not_changed(opened: Open, world: World) -> None:
    (world.folder / "notes.md").chmod(0o600)
    (world.folder / "notes.md").chmod(0o644)
    async with opened() as pilot:
        await open_library(pilot)
        await until(pilot, lambda: "1 chunk, 0% warm" in line_of(pilot, "notes.md"))


async def test_a_file_is_excluded_after_a_question_and_back_with_undo(opened: Open, world: World) -> None:
    async with opened() as pilot:
        await open_library(pilot)
        await go_to(pilot, "doors.md")
        await pilot.press("ctrl+o")
        await choose(pilot, "x")
        await until(pilot, lambda: "Exclude doors.md?" in screen_text(pilot.app))
        await pilot.press("n")
        await until(pilot, lambda: isinstance(pilot.app.screen, LibraryScreen))
        assert world.config.read_text() == RULES, "nothing is written before the answer"
        await pilot.press("ctrl+o")
        await choose(pilot, "x")
        await until(pilot, lambda: "Exclude doors.md?" in screen_text(pilot.app))
        await pilot.press("y")
        await until(pilot, lambda: "is excluded" in screen_text(pilot.app))
        assert config.load(world.config).index.exclude == ("*.bak", "~/docs/house/doors.md")
        kept = world.config.read_text()
        assert "# what we keep" in kept and "# not these" in kept and "# backups" in kept
        assert pilot.app.backend.session.settings.index.exclude == ("*.bak", "~/docs/house/doors.md")
        await pilot.press("f9")
        await until(pilot, lambda: "no longer excluded" in screen_text(pilot.app))
        assert config.load(world.config).index.exclude == ("*.bak",)


async def test_pin_and_read_again(opened: Open, world: World) -> None:
    async with opened() as pilot:
        await open_library(pilot)
        await pilot.press("ctrl+o")
        await choose(pilot, "p")
        await until(pilot, lambda: "pinned" in line_of(pilot, "house/"))
        with Store.open(world.settings.data_dir, world.settings.store, writer=False) as store:
            assert store.pins() == [world.folder / "house"]
        await go_to(pilot, "notes.md")
        await pilot.press("ctrl+o")
        await choose(pilot, "r")
        await until(pilot, lambda: "read again at the next look" in screen_text(pilot.app))
        with Store.open(world.settings.data_dir, world.settings.store, writer=False) as store:
            row = store.document(world.folder / "notes.md")
            assert row is not None and row.stamp.mtime_ns == 0, "the next look takes it for changed"


async def test_enter_opens_the_text_that_was_read_or_says_why_there_is_none(opened: Open) -> None:
    async with opened() as pilot:
        await open_library(pilot)
        await go_to(pilot, "roofer.eml")
        await pilot.press("enter")
        await until(pilot, lambda: "Hello, the roof." in screen_text(pilot.app))
        await pilot.press("alt+c")
        await until(pilot, lambda: "Hello, the roof." in pilot.app.clipboard)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, LibraryScreen))
        await pilot.press("ctrl+o")
        await choose(pilot, "t")
        await until(pilot, lambda: "Hello, the roof." in screen_text(pilot.app))
        await pilot.press("escape")
        for name, why in (("old.bak", "exclude: *.bak"), ("broken.pdf", "failed: ")):
            await until(pilot, lambda: isinstance(pilot.app.screen, LibraryScreen))
            await pilot.press("ctrl+u")
            await go_to(pilot, name)
            await pilot.press("enter")
            await until(pilot, lambda: "There is no text of this file in the index." in screen_text(pilot.app))
            assert why in screen_text(pilot.app)
            await pilot.press("escape")


async def test_a_word_typed_in_one_go_is_searched_for_once(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    browse, searches = Library.browse, list[str]()

    def counted(library: Library, folder: Path | None, words: str, *more: object) -> Listed:
        searches.append(words)
        return browse(library, folder, words, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(panel, "_FILTER_SECONDS", 3600.0)
    monkeypatch.setattr(Library, "browse", counted)
    async with opened() as pilot:
        await open_library(pilot)
        await pilot.press(*"notes")
        await pilot.pause(0.2)
        assert searches == [""]
        await pilot.press("enter")  # does not wait for another letter
        await until(pilot, lambda: "third flower pot" in screen_text(pilot.app))
        assert searches == ["", "notes"]


async def test_a_search_that_the_next_letter_outdates_is_given_up(
    opened: Open, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    browse, given_up, begun = Library.browse, threading.Event(), threading.Event()

    def slow(library: Library, folder: Path | None, words: str, shown: Shown, stop: Callable[[], bool]) -> Listed:
        if words != "d":
            return browse(library, folder, words, shown, stop)
        begun.set()
        while not stop():
            pass
        try:
            return browse(library, folder, words, shown, stop)
        except Cancelled:
            given_up.set()
            raise

    with Store.open(world.settings.data_dir, world.settings.store, writer=True) as store:
        fill(store, world.folder / "many", 3_000)
    monkeypatch.setattr(Library, "browse", slow)
    async with opened() as pilot:
        await open_library(pilot)
        await pilot.press("d")
        await until(pilot, begun.is_set)
        await pilot.press(*"oors")
        await until(pilot, lambda: "house/doors.md" in screen_text(pilot.app))
        assert given_up.is_set()


async def test_a_folder_is_forgotten_and_remembered(opened: Open, world: World) -> None:
    async with opened() as pilot:
        await open_library(pilot)
        await pilot.press("ctrl+o")
        await choose(pilot, "f")
        await until(pilot, lambda: "Forget house?" in screen_text(pilot.app))
        await pilot.press("k")
        await until(pilot, lambda: "Forgot 2 documents of house" in screen_text(pilot.app))
        assert config.load(world.config).index.exclude == ("*.bak", "~/docs/house/")
        with Store.open(world.settings.data_dir, world.settings.store, writer=False) as store:
            assert store.documents(world.folder / "house") == []
            assert store.document(world.folder / "notes.md") is not None
        assert (world.folder / "house" / "doors.md").exists()
        await pilot.press("f9")
        await until(pilot, lambda: "is read again" in screen_text(pilot.app))
        assert config.load(world.config).index.exclude == ("*.bak",)


async def test_a_cancelled_change_and_an_undo_without_one_say_so(opened: Open, world: World) -> None:
    async with opened() as pilot:
        await open_library(pilot)
        await go_to(pilot, "notes.md")
        for action in ("x", "f"):
            await pilot.press("ctrl+o")
            await choose(pilot, action)
            await until(pilot, lambda: "Cancel" in screen_text(pilot.app))
            await pilot.press("enter")
            await until(pilot, lambda: "Cancelled; nothing was changed." in screen_text(pilot.app))
            pilot.app.clear_notifications()
        await pilot.press("f9")
        await until(pilot, lambda: "There is nothing to undo" in screen_text(pilot.app))
        assert "exclude" not in world.config.read_text().replace(RULES, "")


async def test_forgetting_for_good_has_no_undo(opened: Open, world: World) -> None:
    async with opened() as pilot:
        await open_library(pilot)
        await go_to(pilot, "notes.md")
        await pilot.press("ctrl+o")
        await choose(pilot, "f")
        await until(pilot, lambda: "cannot be undone" in screen_text(pilot.app))
        await pilot.press("a")
        await until(pilot, lambda: "with all caches" in screen_text(pilot.app))
        assert "F9" not in screen_text(pilot.app)
        for file in world.settings.data_dir.rglob("*"):
            assert not file.is_file() or b"third flower pot" not in file.read_bytes()


def test_what_somebody_wrote_into_the_settings_file_meanwhile_stays(world: World) -> None:
    session = world.session()
    changes = LibraryChanges(session)
    doors, house = world.folder / "house" / "doors.md", world.folder / "house"
    world.config.write_text(world.config.read_text().replace('["*.bak"]', '["*.bak", "drafts/"]'))
    excluded = changes.exclude(changes.exclusion(doors, world.folder))
    assert config.load(world.config).index.exclude == ("*.bak", "drafts/", "~/docs/house/doors.md")
    forgotten = changes.forget(world.folder / "notes.md", keep_caches=False)
    assert "with all caches" in forgotten.sentence
    assert excluded.undo is not None
    excluded.undo()
    left = ("*.bak", "drafts/", "~/docs/notes.md")
    assert config.load(world.config).index.exclude == left, "what was forgotten for good is not read again"
    kept = changes.forget(house, keep_caches=True)
    world.config.write_text(world.config.read_text().replace('"drafts/"', '"drafts/", "*.log"'))
    assert kept.undo is not None
    kept.undo()
    assert config.load(world.config).index.exclude == ("*.bak", "drafts/", "*.log", "~/docs/notes.md")
    assert session.settings.index.exclude == ("*.bak", "drafts/", "*.log", "~/docs/notes.md")
    session.detach()


def test_what_was_excluded_in_another_run_is_read_again_and_nothing_else(world: World) -> None:
    doors, bak = world.folder / "house" / "doors.md", world.folder / "old.bak"
    (world.folder / "new.bak").write_text("Another old copy.\n")
    first = world.session()
    LibraryChanges(first).exclude(LibraryChanges(first).exclusion(doors, world.folder))
    first.detach()
    session = world.session()  # the next run
    changes, index = LibraryChanges(session), session.settings.index
    assert isinstance(examine(world.folder, doors, index), LeftOut)
    allowed = changes.allow(doors)
    assert config.load(world.config).index.exclude == ("*.bak",) and "doors.md is read" in allowed.sentence
    assert isinstance(examine(world.folder, doors, session.settings.index), FoundFile)
    assert allowed.undo is not None and "left out again" in allowed.undo()
    assert config.load(world.config).index.exclude == ("*.bak", "~/docs/house/doors.md")
    changes.allow(bak)
    index = session.settings.index
    assert isinstance(examine(world.folder, bak, index), FoundFile)
    assert isinstance(examine(world.folder, world.folder / "new.bak", index), LeftOut), "the rule stays for others"
    said = changes.read_again(world.folder / "photo.png").sentence
    assert "is left out" in said and "was not read" in said
    world.config.write_text('[index]\nexclude = ["house/"]\n')
    with pytest.raises(ConfigError, match="leaves out the folder"):
        changes.allow(doors)
    session.detach()


async def test_a_purged_folder_stays_in_the_list_and_can_be_taken_back(opened: Open, world: World) -> None:
    first = world.session()
    LibraryChanges(first).forget(world.folder / "house", keep_caches=False)
    first.detach()
    async with opened() as pilot:
        await open_library(pilot)
        await until(pilot, lambda: "excluded by you" in line_of(pilot, "house/"))
        rows = pilot.app.screen.query_one(EntryList)
        await pilot.press(*["down"] * (rows.total - 1))
        await until(pilot, lambda: pane(pilot).startswith("~/docs/house") and "excluded by you" in pane(pilot))
        await pilot.press("ctrl+o")
        await choose(pilot, "r")
        await until(pilot, lambda: "~/docs/house is read from now on" in screen_text(pilot.app))
        assert "~/docs/house/" not in config.load(world.config).index.exclude


async def test_the_menu_of_an_excluded_file_offers_to_read_it(opened: Open, world: World) -> None:
    async with opened() as pilot:
        await open_library(pilot)
        await go_to(pilot, "old.bak")
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "Read it from now on" in screen_text(pilot.app))
        assert "Read it again" not in screen_text(pilot.app) and "Exclude it" not in screen_text(pilot.app)
        await choose(pilot, "r")
        await until(pilot, lambda: "old.bak is" in screen_text(pilot.app))
        assert "!~/docs/old.bak" in config.load(world.config).index.exclude


async def test_what_was_taken_for_a_secret_is_read_once_the_user_says_so(opened: Open, world: World) -> None:
    codes = world.folder / "passwords.txt"
    codes.write_text("The password of the boat shed is heron.\n")
    world.sync()
    rules = config.load(world.config).index.exclude
    async with opened() as pilot:
        await open_library(pilot)
        await go_to(pilot, "passwords.txt")
        await until(pilot, lambda: "left out: may hold secrets: passwords" in pane(pilot))
        assert pane(pilot).count("secret") == 1, "the reason is said once, without what to write into a file"
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "Read it all the same" in screen_text(pilot.app))
        await choose(pilot, "r")
        await until(pilot, lambda: "!~/docs/passwords.txt" in screen_text(pilot.app))
        await choose(pilot, "n")
        await until(pilot, lambda: "nothing was changed" in screen_text(pilot.app))
        assert config.load(world.config).index.exclude == rules
        await pilot.press("ctrl+o")
        await choose(pilot, "r")
        await choose(pilot, "y")
        await until(pilot, lambda: "passwords.txt is" in screen_text(pilot.app))
    settings = config.load(world.config)
    assert settings.index.exclude == (*rules, "!~/docs/passwords.txt")
    assert isinstance(examine(world.folder, codes, settings.index), FoundFile)


def test_reading_what_may_be_a_secret_is_undone(world: World) -> None:
    codes = world.folder / "passwords.txt"
    codes.write_text("The password of the boat shed is heron.\n")
    rules, session = config.load(world.config).index.exclude, world.session()
    allowed = LibraryChanges(session).read_secret(codes)
    assert allowed.undo is not None and "passwords.txt is left out again" in allowed.undo()
    assert config.load(world.config).index.exclude == rules
    session.detach()


def test_the_settings_list_says_what_a_rule_that_goes_brings_back(world: World) -> None:
    settings = SettingsList(world.session())
    row = next(row for row in settings.rows() if row.name == "index.exclude")
    assert "“drafts/” names leave the index" in settings.prepare(row, '["*.bak", "drafts/"]').cost
    lifted = settings.prepare(row, "[]").cost
    assert "“*.bak” left out are read" in lifted and "leave the index" not in lifted


def test_undoing_a_forgotten_folder_brings_back_that_folder_alone(world: World) -> None:
    world.config.write_text(f'folders = ["~/other", "{world.folder}"]\n' + RULES)
    session = world.session()
    forgotten = LibraryChanges(session).forget(world.folder, keep_caches=True)
    assert config.load(world.config).folders == (Path("~/other"),) and session.folders == ()
    world.config.write_text(world.config.read_text().replace("~/other", "~/another"))
    assert forgotten.undo is not None
    forgotten.undo()
    assert config.load(world.config).folders == (Path("~/another"), world.folder)
    assert session.folders == (world.folder,)
    session.detach()


def test_a_rule_leaves_a_folder_of_that_name_in_another_folder(world: World) -> None:
    other = world.folder.parent / "copy"
    (other / "house").mkdir(parents=True)
    (other / "house" / "doors.md").write_text("# Doors\n\nThe cellar door is brown.\n")
    World(other, world.settings, world.config).sync()
    session = Session(world.settings, [world.folder, other], world.config)
    LibraryChanges(session).forget(world.folder / "house", keep_caches=True)
    assert isinstance(examine(other, other / "house" / "doors.md", session.settings.index), FoundFile)
    assert isinstance(examine(world.folder, world.folder / "house" / "doors.md", session.settings.index), LeftOut)
    session.detach()


async def test_a_settings_file_that_cannot_be_changed_changes_nothing(opened: Open, world: World) -> None:
    world.config.write_text("[index\n")
    async with opened() as pilot:
        await open_library(pilot)
        await pilot.press("ctrl+o")
        await choose(pilot, "f")
        await until(pilot, lambda: "Forget house?" in screen_text(pilot.app))
        await pilot.press("a")
        said = f"{world.config} is not valid TOML"  # broken on the screen where the path is long
        await until(pilot, lambda: any(said in note.message for note in pilot.app._notifications))
        with Store.open(world.settings.data_dir, world.settings.store, writer=False) as store:
            assert len(store.documents(world.folder / "house")) == 2


async def test_before_anything_is_indexed(opened: Open, tmp_path: Path) -> None:
    from tests.tui.management.conftest import World

    folder = tmp_path / "fresh"
    folder.mkdir()
    (folder / "a.md").write_text("# A\n")
    settings = config.Settings(data_dir=tmp_path / "no-data")
    async with opened(of=World(folder, settings, tmp_path / "c.toml")) as pilot:
        await open_library(pilot, "waits to be read")
        assert "a.md" in screen_text(pilot.app)
    assert not (tmp_path / "no-data").exists(), "looking creates nothing"


def fill(store: Store, folder: Path, number: int) -> None:
    """Record so many empty files, which need not exist."""
    with store._database.write() as connection:
        for n in range(number):
            path = folder / f"file {n:06}.md"
            row, _ = upsert(connection, path, "", "", FileStamp(1, 2, 3, "p"), FileState.SKIPPED, "empty")
            checksums.seal(connection, row, count=True)


async def test_a_hundred_thousand_files_cost_the_rows_in_view(opened: Open, world: World) -> None:
    """The work of a frame is counted in rows: those drawn, and those asked for."""
    big = world.folder / "big"
    place = world.settings.data_dir
    with Store.open(place, world.settings.store, writer=True) as store:
        fill(store, big, 100_000)
    requested: list[int] = []
    async with opened() as pilot:
        await open_library(pilot, "big/")
        assert isinstance(pilot.app.screen, LibraryScreen)
        rows = pilot.app.screen.query_one(EntryList)
        look = pilot.app.screen._library.entries

        def counted(listed, first, number):  # type: ignore[no-untyped-def]
            requested.append(number)
            return look(listed, first, number)

        pilot.app.screen._library.entries = counted  # type: ignore[method-assign]
        await pilot.press("enter")
        await until(pilot, lambda: rows.total == 100_000 and "file 000000.md" in screen_text(pilot.app))
        for keys, sign in (
            (["ctrl+end"], "file 099999.md"),
            (["pageup"] * 3, "file 0999"),
            (["ctrl+home"], "000000.md"),
        ):
            before, requests = rows.drawn, len(requested)
            await pilot.press(*keys)
            await until(pilot, lambda: sign in screen_text(pilot.app))  # noqa: B023
            assert rows.drawn - before <= 12 * len(keys) * rows.size.height + 40 * rows.size.height
            assert len(requested) - requests <= 4 * len(keys) + 4
        await pilot.press(*"099 777")
        await until(pilot, lambda: "file 099777.md" in screen_text(pilot.app) and rows.total == 1, 20)
        assert all(number <= PAGE for number in requested)
        assert len(rows._rows) <= 41 * PAGE


async def test_words_that_no_file_of_the_chosen_state_holds_name_the_state(opened: Open) -> None:
    async with opened() as pilot:
        await open_library(pilot)
        while not line_has(pilot, "failed "):
            await pilot.press("ctrl+t")
            await pilot.pause(0.1)
        await pilot.press(*"notes")
        await until(pilot, lambda: "No path in the list “failed” holds these words" in screen_text(pilot.app))


def line_has(pilot: Pilot[int], words: str) -> bool:
    return words in str(pilot.app.screen.query_one("#library-shown").visual)  # type: ignore[attr-defined]


async def test_a_letter_that_chooses_nothing_is_answered(opened: Open) -> None:
    async with opened() as pilot:
        await open_library(pilot)
        await go_to(pilot, "roof.txt")
        await pilot.press("ctrl+o", "f")
        await until(pilot, lambda: "keep the caches" in screen_text(pilot.app))
        await pilot.press("y")
        await until(pilot, lambda: "One of n, k, a chooses" in screen_text(pilot.app))
        assert isinstance(pilot.app.screen, ChoiceScreen)
