"""What keys do, on narrow and wide terminals; played against a scripted backend."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from textual.widgets import Static

from desk_rag.tui.app import DeskRagApp
from desk_rag.tui.screens.help import HelpScreen
from desk_rag.tui.widgets.answer_view import AnswerView
from desk_rag.tui.widgets.question_input import QuestionInput
from desk_rag.tui.widgets.source_list import SourceList
from tests.tui.conftest import Run, ask, screen_text, text_of, until
from tests.tui.scripted import (
    SOURCES,
    ScriptedBackend,
    answer,
    play,
)

Q = "when does the boiler warranty end?"


def over(app: DeskRagApp, turns: int = 1) -> bool:
    views = list(app._chat.query(AnswerView))
    return len(views) == turns and all(view.over for view in views)


async def test_typing_letters_into_the_prompt_triggers_nothing(running: Run) -> None:
    backend = ScriptedBackend()
    async with running(backend) as pilot:
        await ask(pilot, Q)
        await until(pilot, lambda: over(pilot.app))
        await pilot.press(*"fynNto", "ctrl+j", "q")
        assert pilot.app.screen.query_one(QuestionInput).text == "fynNto\nq"
        assert len(backend.asked) == 1


async def test_history(running: Run) -> None:
    async with running(ScriptedBackend()) as pilot:
        prompt = pilot.app.screen.query_one(QuestionInput)
        for question in ("one", "two"):
            await ask(pilot, question)
        await pilot.press("up")
        assert prompt.text == "two"
        await pilot.press("up")
        assert prompt.text == "one"
        await pilot.press("down", "down")
        assert prompt.text == ""
        await pilot.press("enter")
        await until(pilot, lambda: over(pilot.app, 2))


async def test_transcript_selection_changes_the_sources(running: Run) -> None:
    other = answer("other", "Other.", sources=SOURCES[1:2])
    async with running(ScriptedBackend({"other": play(other)})) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: over(app))
        await ask(pilot, "other")
        await until(pilot, lambda: over(app, 2))
        assert app._chat.query_one(SourceList).option_count == 1
        app._chat.query_one("#transcript").focus()
        await pilot.press("up")
        await until(pilot, lambda: app._chat.query_one(SourceList).option_count == 4)
        await pilot.press("down")
        await until(pilot, lambda: app._chat.query_one(SourceList).option_count == 1)


async def test_timing_details(running: Run) -> None:
    async with running(ScriptedBackend()) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: over(app))
        await pilot.press("alt+t")
        stages = "first token 0.19 s = search 0.03 s + load caches 0.02 s + read the question 0.14 s"
        await until(pilot, lambda: stages in text_of(app, "TimingLine"))
        await pilot.press("alt+t")
        await until(pilot, lambda: "search" not in text_of(app, "TimingLine"))


async def test_narrow_terminal_has_sources_behind_a_tab(running: Run) -> None:
    async with running(ScriptedBackend(), size=(80, 24)) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: over(app))
        assert "14 March 2028" in screen_text(app) and "4.2 Term" not in screen_text(app)
        await pilot.press("ctrl+b")
        await until(pilot, lambda: "4.2 Term" in screen_text(app))
        assert "first word" not in screen_text(app)
        assert isinstance(app.focused, SourceList)
        await pilot.press("escape")
        await until(pilot, lambda: "first word" in screen_text(app))
        assert isinstance(app.focused, QuestionInput)
        assert "4.2 Term" not in screen_text(app)


async def test_wide_terminal_can_hide_the_sources(running: Run) -> None:
    async with running(ScriptedBackend()) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: "4.2 Term" in screen_text(app))
        await pilot.press("ctrl+b")
        await until(pilot, lambda: "4.2 Term" not in screen_text(app))
        await pilot.press("ctrl+b")
        await until(pilot, lambda: "4.2 Term" in screen_text(app))


async def test_resize_while_streaming(running: Run) -> None:
    gate = threading.Event()
    final = answer(Q, "word " * 200)
    steps = play(final)
    backend = ScriptedBackend({Q: [*steps[:60], gate, *steps[60:]]})
    async with running(backend) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: "word word" in text_of(app, ".words"))
        for size in ((80, 24), (160, 48), (40, 10), (100, 30)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
        gate.set()
        await until(pilot, lambda: over(app))
        assert text_of(app, ".words").count("word") == 200
        assert "first word" in screen_text(app)


async def test_ctrl_c_clears_then_quits_on_the_second_press(running: Run) -> None:
    backend = ScriptedBackend()
    async with running(backend) as pilot:
        app = pilot.app
        await pilot.press(*"abc", "ctrl+c")
        assert app.screen.query_one(QuestionInput).text == ""
        assert app.is_running
        await pilot.press("ctrl+c")
        assert app.return_value is None
        await pilot.press("ctrl+c")
        assert app.return_value == 0


async def test_help_and_palette_name_every_action(running: Run) -> None:
    async with running(ScriptedBackend()) as pilot:
        app = pilot.app
        await pilot.press("f1")
        assert isinstance(app.screen, HelpScreen)
        shown = "\n".join(str(row.visual) for row in app.screen.query(Static))
        assert "compare with full prefill" in shown and "keys and signs" in shown
        app.screen.query_one("#help").scroll_end(animate=False)
        await until(pilot, lambda: "keeps the index fresh" in screen_text(app))  # type: ignore[arg-type]
        assert "processit" not in screen_text(app), "a gap between key and meaning"  # type: ignore[arg-type]
        await pilot.press("escape")
        titles = {command.title for command in app.get_system_commands(app.screen)}
        assert {"Pause or resume indexing", "Change the theme", "Help", "Quit"} <= titles
        await ask(pilot, Q)
        await until(pilot, lambda: over(app))
        titles = {command.title for command in app.get_system_commands(app.screen)}
        assert {"Compare with full prefill", "Open the source", "Source 1", "Source 4", "Copy the quotes"} <= titles
        assert "Source 5" not in titles and "Withdraw the question" not in titles
        await pilot.press("ctrl+p")
        await until(pilot, lambda: "Copy the answer" in screen_text(app))


def test_forbidden_keys_are_not_bound() -> None:
    """Terminals cannot tell these from Tab, Enter, Esc, Backspace, or stop the output on them."""
    from desk_rag.tui.screens.chat import ChatScreen
    from desk_rag.tui.screens.turn.menu import TurnMenu
    from desk_rag.tui.screens.turn_screen import TurnScreen
    from desk_rag.tui.widgets.transcript import Transcript

    bound = set()
    for owner in (DeskRagApp, ChatScreen, TurnScreen, TurnMenu, HelpScreen, Transcript, QuestionInput):
        for binding in owner.__dict__["BINDINGS"]:
            bound |= set(binding.key.split(","))
    assert len(bound) > 20
    letters = {key for key in bound if len(key) == 1} - {"q"}
    assert not letters, "letters go to the prompt; only the help page closes with one"
    assert not bound & {"ctrl+i", "ctrl+m", "ctrl+left_square_bracket", "ctrl+h", "ctrl+s"}


async def test_open_source_uses_an_argument_list(running: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    file = tmp_path / "$(touch owned); -rf.md"
    file.write_text("text")
    final = answer(Q, "Yes.", sources=(replace(SOURCES[2], path=file),))
    started: list[tuple[str, ...]] = []
    monkeypatch.setenv("VISUAL", "code --wait")
    monkeypatch.setattr("desk_rag.tui.source_opening.subprocess.Popen", lambda argv, **kwargs: started.append(argv))
    async with running(ScriptedBackend({Q: play(final)})) as pilot:
        await ask(pilot, Q)
        await until(pilot, lambda: over(pilot.app))
        await pilot.press("ctrl+o")
        await until(pilot, lambda: started == [("code", "--wait", "--goto", f"{file}:88")])


async def test_open_of_a_vanished_file_is_said(running: Run) -> None:
    async with running(ScriptedBackend()) as pilot:
        await ask(pilot, Q)
        await until(pilot, lambda: over(pilot.app))
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "there any more" in " ".join(screen_text(pilot.app).split()))
