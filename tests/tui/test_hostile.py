"""Hostile documents, file names and model output through every place where text reaches the screen."""

from __future__ import annotations

import re

from desk_rag.tui.app import DeskRagApp
from desk_rag.tui.backend import Started
from desk_rag.tui.messages import Problem
from desk_rag.tui.widgets.answer_view import AnswerView
from desk_rag.tui.widgets.index_status import IndexStatus
from desk_rag.tui.widgets.source_list import SourceList
from tests.tui.conftest import Run, ask, screen_text, until
from tests.tui.scripted import HOSTILE, ScriptedBackend, answer, hostile_backend, play

_FORBIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e]")


def everything(app: DeskRagApp) -> str:
    """The text of every widget's every line, scrolled out of view or not, and the rows on screen."""
    from textual.widgets import Static

    texts = [str(widget.visual) for widget in app._chat.query(Static)]
    sources = app._chat.query_one(SourceList)
    texts += [str(sources.get_option_at_index(i).prompt) for i in range(sources.option_count)]
    return "\n".join([*texts, screen_text(app)])


async def ended(pilot, turns: int = 1) -> None:  # type: ignore[no-untyped-def]
    await until(pilot, lambda: [view.over for view in pilot.app._chat.query(AnswerView)] == [True] * turns)


async def test_nothing_hostile_reaches_any_widget(running: Run) -> None:
    async with running(hostile_backend()) as pilot:
        app = pilot.app
        await ask(pilot, "hostile")
        await ended(pilot)
        shown = everything(app)
        assert not _FORBIDDEN.search(shown), repr(_FORBIDDEN.search(shown))
        assert "52;c" not in shown and "evil.example" not in shown and "owned" not in shown
        assert "⟨U+202E⟩" in shown and "⟨U+200B⟩" in shown, "hidden characters are made visible"
        for literal in ("[/x]", "[bold]not bold[/bold]", "[@click=app.quit]click[/]", "漢字かな交じり文"):
            assert literal in shown, literal


async def test_half_an_escape_sequence_is_never_shown(running: Run) -> None:
    """Pieces end in the middle of a sequence; what is shown meanwhile has no control character, in the end no trace."""
    import threading

    from desk_rag.answering.events import AnswerText, Finished, FirstToken, Retrieved

    final = answer("q", "a\x1b]52;c;Zm9v\x07b")
    for cut in ("a\x1b", "a\x1b]52", "a\x1b]52;c;Zm9v"):
        gate = threading.Event()
        steps = [
            Retrieved(final.sources),
            FirstToken(final.timings),
            AnswerText(cut),
            gate,
            AnswerText(final.text[len(cut) :]),
            Finished(final),
        ]
        async with running(ScriptedBackend({"q": steps})) as pilot:
            await ask(pilot, "q")
            words = pilot.app._chat.query_one
            await until(pilot, lambda: bool(pilot.app._chat.query(".words")) and bool(words(".words").display))  # noqa: B023
            partly = words(".words").text  # type: ignore[attr-defined]
            assert partly.startswith("a") and not _FORBIDDEN.search(partly)
            gate.set()
            await ended(pilot)
            assert words(".words").text == "ab"  # type: ignore[attr-defined]


async def test_hostile_errors_status_and_model_name(running: Run) -> None:
    from desk_rag.errors import StoreError

    backend = ScriptedBackend(
        {"bad": [StoreError(HOSTILE, remedy=HOSTILE)]}, started=Started(f"m · {HOSTILE}", HOSTILE)
    )
    async with running(backend) as pilot:
        app = pilot.app
        await ask(pilot, "bad")
        await ended(pilot)
        app._chat.query_one(IndexStatus).notice(HOSTILE)
        app.complain(ValueError(HOSTILE))
        await pilot.pause()
        assert not _FORBIDDEN.search(everything(app))
        assert "[/x]" in everything(app)
        app.get_system_commands(app.screen)


async def test_hostile_question_and_paste(running: Run) -> None:
    from textual import events

    from desk_rag.tui.widgets.question_input import QuestionInput

    backend = ScriptedBackend()
    async with running(backend) as pilot:
        app = pilot.app
        prompt = app.screen.query_one(QuestionInput)
        prompt.post_message(events.Paste(HOSTILE))
        await until(pilot, lambda: "before" in prompt.text)
        assert not _FORBIDDEN.search(prompt.text)
        await pilot.press("enter")
        await ended(pilot)
        assert not _FORBIDDEN.search(backend.asked[0][0])
        assert "[/x]" in everything(app)


async def test_clipboard_text_is_clean(running: Run) -> None:
    async with running(hostile_backend()) as pilot:
        await ask(pilot, "hostile")
        await ended(pilot)
        await pilot.press("alt+c")
        assert "before" in pilot.app.clipboard
        assert not _FORBIDDEN.search(pilot.app.clipboard)


async def test_megabyte_line_is_cut_not_wrapped(running: Run) -> None:
    from desk_rag.tui.wording import MOST_CHARS

    final = answer("long", "y" * 1_000_000)
    async with running(ScriptedBackend({"long": play(final, ["y" * 1_000_000])})) as pilot:
        await ask(pilot, "long")
        await ended(pilot)
        assert len(pilot.app._chat.query_one(".words").text) <= MOST_CHARS + 2


def test_an_unexpected_error_names_no_internals_but_its_kind() -> None:
    problem = Problem.of(KeyError("x"))
    assert "KeyError" in problem.message and "log" in problem.remedy
