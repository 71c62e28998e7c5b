"""A long chat: turns far from the view give up their widgets and come back when they are looked at."""

from __future__ import annotations

import gc

from textual.containers import Vertical
from textual.widgets import Static

from desk_rag.answering.events import Answer
from desk_rag.tui.app import DeskRagApp
from desk_rag.tui.keys.footer import KeyFooter
from desk_rag.tui.widgets.answer_view import AnswerView, Quote
from desk_rag.tui.widgets.transcript import Transcript
from tests.tui.conftest import Run, ask, screen_text, until
from tests.tui.scripted import QUOTE, ScriptedBackend, answer, play

TURNS = 40


def answers(turns: int) -> list[Answer]:
    return [answer(f"question {number}?", f"The answer is {number}.", citations=(QUOTE,)) for number in range(turns)]


def living(app: DeskRagApp) -> int:
    """Count the parts of turns that take memory, removed ones included."""
    gc.collect()
    return sum(isinstance(one, Static | Vertical) for one in gc.get_objects())


async def test_a_long_chat_takes_little_more_memory_than_a_short_one(running: Run) -> None:
    async with running(ScriptedBackend(), size=(100, 20)) as pilot:
        app = pilot.app
        assert isinstance(app, DeskRagApp)
        chat, transcript, counts = app._chat, app._chat.query_one(Transcript), []

        async def fill(first: int, last: int) -> None:
            for final in answers(TURNS)[first:last]:
                (await chat._add_turn(final.question)).replay(final)

        for first, last in ((0, 20), (20, 40)):
            chat.call_later(fill, first, last)
            await until(pilot, lambda n=last: len(chat._views) == n and chat._views[-1].over)  # type: ignore[misc]
            await until(pilot, lambda n=last: sum(view.folded for view in chat._views) >= n - 15)  # type: ignore[misc]
            counts.append(living(app))
        assert counts[1] - counts[0] < 2 * 20, f"{counts}: one widget for each folded turn, not a dozen"

        height, view = transcript.virtual_size.height, chat._views[0]
        assert view.folded and not view.query(Quote)
        transcript.release_anchor()
        transcript.scroll_home(animate=False)
        await until(pilot, lambda: "› question 0?" in screen_text(app) and "The answer is 0." in screen_text(app))
        assert transcript.virtual_size.height == height, "nothing moved"
        assert view.query(Quote)

        transcript.scroll_end(animate=False)
        await until(pilot, lambda: view.folded)
        await pilot.press("ctrl+f", *"is 1.", "enter")
        await until(pilot, lambda: "› question 1?" in screen_text(app) and "The answer is 1." in screen_text(app))
        assert chat._selected is not None and chat._selected.question == "question 1?"


async def test_a_folded_turn_can_be_asked_again(running: Run) -> None:
    backend = ScriptedBackend({final.question: play(final) for final in answers(2)})
    async with running(backend) as pilot:
        app = pilot.app
        assert isinstance(app, DeskRagApp)
        for number in range(2):
            await ask(pilot, f"question {number}?")
            await until(pilot, lambda n=number: f"is {n}." in screen_text(app))  # type: ignore[misc]
        first = app._chat.query(AnswerView).first()
        await until(pilot, lambda: first.over)
        await first.fold(True)
        await until(pilot, lambda: "question 0?" not in screen_text(app))
        first.offer("all files are read now")
        await first.queue_again()
        await until(pilot, lambda: "question 0?" in screen_text(app))
        assert "is 0." not in screen_text(app) and "all files are read" not in screen_text(app)


async def test_keys_that_the_footer_drew_before_are_let_go(running: Run) -> None:
    async with running(ScriptedBackend()) as pilot:
        footer = pilot.app.screen.query_one(KeyFooter)
        name = type(footer.children[0]).__name__
        for _ in range(12):
            footer.refresh(recompose=True)
            await pilot.pause(0.02)
        gc.collect()
        keys = sum(1 for one in gc.get_objects() if type(one).__name__ == name)
        assert keys <= 2 * len(footer.children), f"{keys} keys for {len(footer.children)} in the footer"
