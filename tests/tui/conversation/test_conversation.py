"""Follow-ups, saved chats, export, names and searching in the UI, on a real database."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import OptionList, Static

from desk_rag.answering.conversation.saved import Change
from desk_rag.answering.conversation.scope import Names
from desk_rag.answering.events import AskedAs, Finished
from desk_rag.store.layout import Layout
from desk_rag.tui.conversation import names
from desk_rag.tui.conversation.chats_screen import ChatsScreen
from desk_rag.tui.conversation.export_screen import ExportScreen
from desk_rag.tui.conversation.exporting import chat_of, write
from desk_rag.tui.conversation.keeper import Keeper
from desk_rag.tui.conversation.name_picker import NamePicker
from desk_rag.tui.conversation.replay import answer_of
from desk_rag.tui.panels.library import LibraryScreen
from desk_rag.tui.screens import turn_screen
from desk_rag.tui.screens.document_text import DocumentTextScreen
from desk_rag.tui.screens.help import HelpScreen
from desk_rag.tui.turns.afterword import afterword
from desk_rag.tui.widgets.answer_view import AnswerView
from desk_rag.tui.widgets.question_input import QuestionInput
from tests.tui.conftest import Run, ask, screen_text, text_of, until
from tests.tui.scripted import FOLDERS, QUOTE, ScriptedBackend, answer, play

FIRST, SECOND = "When does the warranty end?", "And who inspects it?"
COMPLETED = "Who inspects the warranty?"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    Layout(tmp_path / "data").create()
    return tmp_path / "data"


def backend_on(data: Path, *, save: bool = True) -> ScriptedBackend:
    """A backend that answers two questions and saves them below `data`."""
    first = answer(FIRST, "on 14 March 2028", citations=(QUOTE,))
    second = replace(answer(SECOND, "a certified engineer"), asked_as=COMPLETED)
    events = [AskedAs(COMPLETED), *play(second)]
    return ScriptedBackend({FIRST: play(first), SECOND: events}, keeper=Keeper(data, save=save))


def finished(pilot: Pilot[int], number: int) -> bool:
    """Whether so many turns are over."""
    views = pilot.app._chat.query(AnswerView)  # type: ignore[attr-defined]
    return len(views) == number and all(view.over for view in views)


async def ask_both(pilot: Pilot[int]) -> None:
    await ask(pilot, FIRST)
    await until(pilot, lambda: finished(pilot, 1))
    await ask(pilot, SECOND)
    await until(pilot, lambda: finished(pilot, 2))


async def test_follow_up_gets_the_turns_above_and_shows_as_what_it_was_asked(running: Run, data: Path) -> None:
    backend = backend_on(data)
    async with running(backend) as pilot:
        await ask_both(pilot)
        assert backend.earlier[0] == ()
        (before,) = backend.earlier[1]
        assert (before.asked, before.answer, before.quotes) == (FIRST, "on 14 March 2028", (QUOTE.quote,))
        assert f"↳ asked as: {COMPLETED}" in text_of(pilot.app, ".asked-as")  # type: ignore[arg-type]
        await pilot.press("alt+w")
        assert pilot.app._chat.query_one(QuestionInput).text == COMPLETED  # type: ignore[attr-defined]


async def test_what_was_searched_can_be_edited_for_every_turn(running: Run, data: Path) -> None:
    limited = replace(answer(SECOND, "a certified engineer"), asked_as=COMPLETED, limited_to=(FOLDERS[0] / "my notes",))
    backend = ScriptedBackend({SECOND: play(limited)}, keeper=Keeper(data, save=False))
    async with running(backend) as pilot:
        await ask(pilot, FIRST)
        await until(pilot, lambda: finished(pilot, 1))
        prompt = pilot.app._chat.query_one(QuestionInput)  # type: ignore[attr-defined]
        await pilot.press("alt+w")
        assert prompt.text == FIRST
        await pilot.press("alt+w")
        await until(pilot, lambda: "The prompt holds other text" in screen_text(pilot.app))  # type: ignore[arg-type]
        prompt.clear()
        await ask(pilot, SECOND)
        await until(pilot, lambda: finished(pilot, 2))
        await pilot.press("alt+down", "alt+w")
        assert prompt.text == f'@"my notes" {COMPLETED}'


def test_what_stands_below_an_answer_is_exported_also_from_a_reopened_chat(data: Path) -> None:
    warning = "lease 2026.md says something else, see [2]; name the one that is meant"
    keeper = Keeper(data, save=True)
    keeper.save(1, replace(answer(FIRST, "30 June 2027"), notices=(warning,)))
    (row,) = keeper.rows()
    reopened = answer_of(keeper.chat(row.chat_id).turns[0], lambda source: Change.NONE)
    keeper.close()
    assert warning in str(afterword(reopened, FOLDERS, ""))
    place = write(chat_of([reopened]), data / "chat.json", lambda source: Change.NONE)
    assert json.loads(place.read_text())["turns"][0]["notices"] == [warning]


async def test_chat_survives_quitting_and_is_found_opened_and_continued(running: Run, data: Path) -> None:
    async with running(backend_on(data)) as pilot:
        await ask_both(pilot)
    later = backend_on(data)
    async with running(later) as pilot:
        prompt = pilot.app._chat.query_one(QuestionInput)  # type: ignore[attr-defined]
        await until(pilot, lambda: bool(prompt._history))
        await pilot.press("up", "up")
        assert prompt.text == FIRST, "questions of saved chats come back"
        prompt.clear()
        await pilot.press("ctrl+r")
        await until(pilot, lambda: isinstance(pilot.app.screen, ChatsScreen))
        await pilot.press(*"engineer")
        rows = pilot.app.screen.query_one(OptionList)
        await until(pilot, lambda: rows.option_count == 1)
        assert FIRST in screen_text(pilot.app) and "2 turns" in screen_text(pilot.app)  # type: ignore[arg-type]
        await pilot.press("enter")
        await until(pilot, lambda: finished(pilot, 2))
        assert QUOTE.quote in text_of(pilot.app, ".quote")  # type: ignore[arg-type]
        await ask(pilot, "And when?")
        await until(pilot, lambda: finished(pilot, 3))
        assert [turn.asked for turn in later.earlier[-1]] == [FIRST, COMPLETED]
        assert [row.num_turns for row in later.keeper.rows()] == [3]


async def test_the_document_of_a_source_is_read_in_a_chat_that_was_opened_again(running: Run, data: Path) -> None:
    async with running(backend_on(data)) as pilot:
        await ask_both(pilot)
    async with running(backend_on(data)) as pilot:
        await pilot.press("ctrl+r")
        await until(pilot, lambda: isinstance(pilot.app.screen, ChatsScreen))
        await until(pilot, lambda: pilot.app.screen.query_one(OptionList).option_count == 1)
        await pilot.press("enter")
        await until(pilot, lambda: finished(pilot, 2))
        await pilot.press("alt+up", "alt+v")
        await until(pilot, lambda: isinstance(pilot.app.screen, DocumentTextScreen))
        await until(pilot, lambda: "4.3 Claims" in screen_text(pilot.app))  # type: ignore[arg-type]
        await pilot.press("alt+c")
        await until(pilot, lambda: pilot.app.clipboard == QUOTE.quote)


async def test_deleted_turns_and_chats_leave_the_database(running: Run, data: Path) -> None:
    backend = backend_on(data)
    async with running(backend) as pilot:
        await ask_both(pilot)
        await pilot.app._chat.run_action("delete")  # type: ignore[attr-defined]
        await until(pilot, lambda: [row.num_turns for row in backend.keeper.rows()] == [1])
        await pilot.press("ctrl+r")
        await until(pilot, lambda: isinstance(pilot.app.screen, ChatsScreen))
        await until(pilot, lambda: pilot.app.screen.query_one(OptionList).option_count == 1)
        await pilot.press("delete")
        assert len(backend.keeper.rows()) == 1, "once is not enough"
        await pilot.press("delete")
        await until(pilot, lambda: backend.keeper.rows() == [])
        assert b"14 March" not in (data / "chats.sqlite").read_bytes()


async def test_private_chat_saves_nothing(running: Run, data: Path) -> None:
    backend = backend_on(data)
    async with running(backend) as pilot:
        await pilot.app._chat.run_action("new_chat(True)")  # type: ignore[attr-defined]
        await ask_both(pilot)
        assert not (data / "chats.sqlite").exists()
        assert "private, nothing is saved" in screen_text(pilot.app), "for as long as it is so"
        await pilot.press("ctrl+n")
        await until(pilot, lambda: not pilot.app._chat.query(AnswerView))  # type: ignore[attr-defined]
        assert "private, nothing" not in screen_text(pilot.app)
        await ask(pilot, FIRST)
        await until(pilot, lambda: finished(pilot, 1) and len(backend.keeper.rows()) == 1)
    async with running(backend_on(data / "..", save=False)) as pilot:
        await ask(pilot, FIRST)
        await until(pilot, lambda: finished(pilot, 1))
    assert not (data / ".." / "chats.sqlite").exists()


def export_hint(pilot: Pilot[int]) -> str:
    return str(pilot.app.screen.query_one("#export-hint", Static).visual)


@pytest.mark.parametrize("ending", ["md", "json"])
async def test_export_writes_a_new_file_and_never_an_old_one(
    running: Run, data: Path, tmp_path: Path, ending: str
) -> None:
    place = tmp_path / f"chat.{ending}"
    async with running(backend_on(data)) as pilot:
        await ask_both(pilot)
        await pilot.press("alt+s")
        await until(pilot, lambda: isinstance(pilot.app.screen, ExportScreen))
        await pilot.press("ctrl+u", *str(place), "enter")
        await until(pilot, lambda: not isinstance(pilot.app.screen, ExportScreen))
        assert place.exists()
        await pilot.press("alt+s")
        await until(pilot, lambda: isinstance(pilot.app.screen, ExportScreen))
        elsewhere = tmp_path / "no" / "folder.md"
        refusals = {place: "exists already. Choose another", elsewhere: "cannot be written: No such"}
        for name, reason in refusals.items():
            await pilot.press("ctrl+u", *str(name), "enter")
            await until(pilot, lambda reason=reason: reason in export_hint(pilot))  # type: ignore[misc]
        await pilot.press("backspace")
        await until(pilot, lambda: "Enter writes" in export_hint(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, ExportScreen))
    text = place.read_text(encoding="utf-8")
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    if ending == "json":
        turns = json.loads(text)["turns"]
        assert turns[0]["sources"][0]["quote"] == QUOTE.quote and turns[1]["asked_as"] == COMPLETED
    else:
        assert f"## {SECOND}\n\nAsked as: {COMPLETED}" in text and "(gone)" in text


async def test_names_are_completed_while_they_are_written(running: Run, data: Path) -> None:
    backend = backend_on(data)
    backend.files = [FOLDERS[0] / name for name in ("house/boiler.pdf", "letters/my lease.md", "letters/gas.md")]
    async with running(backend) as pilot:
        prompt = pilot.app._chat.query_one(QuestionInput)  # type: ignore[attr-defined]
        picker = pilot.app._chat.query_one(NamePicker)  # type: ignore[attr-defined]
        await pilot.press(*"in @lea")
        await until(pilot, lambda: picker.is_open)
        assert picker.current is not None and picker.current.token == '@"letters/my lease.md"'
        await pilot.press("tab")
        await until(pilot, lambda: not picker.is_open)
        assert prompt.text == 'in @"letters/my lease.md" '
        await pilot.press(*"@let")
        await until(pilot, lambda: picker.is_open)
        await pilot.press("down", "up", "enter")
        await until(pilot, lambda: prompt.text.endswith("@letters/ "))
        await pilot.press(*"@zzz")
        await pilot.pause()
        assert not picker.is_open and not prompt.picking
        await pilot.press("enter")
        await until(pilot, lambda: bool(backend.asked))
        assert backend.asked[-1][0] == 'in @"letters/my lease.md" @letters/ @zzz'


async def test_words_are_found_in_the_transcript(running: Run, data: Path) -> None:
    async with running(backend_on(data)) as pilot:
        await ask_both(pilot)
        chat = pilot.app._chat  # type: ignore[attr-defined]
        await pilot.press("ctrl+f", *"five years")
        await until(pilot, lambda: "1 of 1 turn" in text_of(pilot.app, "#found"))  # type: ignore[arg-type]
        assert chat._selected.question == FIRST
        await pilot.press("ctrl+u", *"xyz")
        await until(pilot, lambda: "not found" in text_of(pilot.app, "#found"))  # type: ignore[arg-type]
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(pilot.app.focused, QuestionInput))


async def test_damaged_chats_are_said_and_stop_no_answer(running: Run, data: Path) -> None:
    (data / "chats.sqlite").write_bytes(b"no database" * 900)
    async with running(backend_on(data)) as pilot:
        await ask(pilot, FIRST)
        await until(pilot, lambda: finished(pilot, 1))
        await until(pilot, lambda: "chats were damaged" in screen_text(pilot.app))  # type: ignore[arg-type]


async def test_search_results_are_no_turn_to_lean_on_and_are_not_saved(running: Run, data: Path) -> None:
    backend = backend_on(data)
    passages = replace(answer("/boiler", "2 passages with these words, the best first."), is_search=True)
    backend.script["/boiler"] = [Finished(passages)]
    async with running(backend) as pilot:
        await ask(pilot, "/boiler")
        await until(pilot, lambda: finished(pilot, 1))
        shown = text_of(pilot.app, ".hits")  # type: ignore[arg-type]
        assert "[1]" in shown and "boiler-contract.pdf" in shown
        assert " ".join(passages.sources[0].text.split())[:30] in " ".join(shown.split()), "the passage is shown, too"
        await ask(pilot, FIRST)
        await until(pilot, lambda: finished(pilot, 2))
        assert backend.earlier[-1] == () and [row.num_turns for row in backend.keeper.rows()] == [1]


def test_a_folder_that_is_named_in_full_stands_before_what_is_in_it() -> None:
    known = ScriptedBackend().names()
    for typed in ("house", "house/", "HOUSE/"):
        offered = [choice.token for choice in names.matching(typed, known, FOLDERS, 8)]
        assert offered[0] == "@house/" and "@house/boiler-contract.pdf" in offered


def test_what_has_the_typed_letters_together_is_offered_alone() -> None:
    files = ("lease/lease of the meadow.docx", "mail/sister about Christmas.eml", "hall/summer fete 2026.pptx")
    known = Names([FOLDERS[0] / name for name in files], FOLDERS)
    offered = [choice.path.name for choice in names.matching("lease", known, FOLDERS, 8)]
    assert offered == ["lease", "lease of the meadow.docx"]
    assert [choice.path.name for choice in names.matching("smfete", known, FOLDERS, 8)] == ["summer fete 2026.pptx"]


async def test_commands_of_other_programs_are_understood_in_the_prompt(running: Run, data: Path) -> None:
    backend = backend_on(data)
    async with running(backend) as pilot:
        await ask(pilot, "/help")
        await until(pilot, lambda: isinstance(pilot.app.screen, HelpScreen))
        assert "F1 does this" in notices(pilot) and "put a space before it: / help" in notices(pilot)
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, HelpScreen))
        assert backend.asked == []
        await ask(pilot, "/ help")
        await until(pilot, lambda: len(backend.asked) == 1)
        await ask(pilot, "/files")
        await until(pilot, lambda: isinstance(pilot.app.screen, LibraryScreen))
        await pilot.press("escape")
        await ask(pilot, "/quit")
        await until(pilot, lambda: pilot.app._exit)


def notices(pilot: Pilot[int]) -> str:
    return " ".join(notice.message for notice in pilot.app._notifications)


async def test_what_was_found_is_read_from_its_beginning_with_its_sources_beside_it(
    running: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pane of the sources was closed, so that it opens, and the lines above are wrapped anew."""
    lines = "\n".join(f"{number} of the lines that are long enough to be wrapped beside a pane" for number in range(12))
    script = {f"q{number}": play(answer(f"q{number}", lines, sources=(), found=False)) for number in range(5)}
    monkeypatch.setattr(turn_screen, "compared", lambda sources, folders: sources)  # or the list is drawn once more
    async with running(ScriptedBackend(script), (120, 36)) as pilot:
        app = pilot.app
        for count, question in enumerate(("q0", "which boiler?", "q1", "q2", "q3", "q4"), 1):
            await ask(pilot, question)
            await until(pilot, lambda: finished(pilot, count))  # noqa: B023 - awaited before the next one
        assert not app._chat.has_class("-with-sources") and "which boiler?" not in screen_text(app)
        await pilot.press("ctrl+f", *"boiler?")
        await until(pilot, lambda: any("which boiler?" in row for row in screen_text(app).splitlines()[:4]))
        assert "house/boiler-contract.pdf    " in screen_text(app), "the list of sources is as wide as its pane"
