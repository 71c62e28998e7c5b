"""Answers in a model's own words: drafts, marks, the label, and reasoning that stays folded."""

from __future__ import annotations

import threading
from dataclasses import replace

from textual.widgets import Collapsible

from desk_rag.answering.events import (
    AnswerDraft,
    AnswerEvent,
    AnswerText,
    CheckedSentence,
    Finished,
    FirstToken,
    ReasoningText,
    Retrieved,
    SentenceChecked,
    Support,
)
from desk_rag.tui.app import DeskRagApp
from desk_rag.tui.backend import Started
from desk_rag.tui.widgets.answer_text import AnswerText as Words
from desk_rag.tui.widgets.answer_view import AnswerView
from tests.tui.conftest import Run, ask, text_of, until
from tests.tui.scripted import QUOTE, SOURCES, ScriptedBackend, answer

Q = "how long is the warranty?"
TEXT = "The warranty period is five years. [1] A longer one can be bought."
RIGHT = CheckedSentence(0, 38, Support.SUPPORTED, "", 0.9, (QUOTE,))
INVENTED = CheckedSentence(39, len(TEXT), Support.UNSUPPORTED, "no passage says this", 0.1)


async def test_a_written_answer_is_marked_and_its_reasoning_folded(running: Run) -> None:
    final = replace(
        answer(Q, TEXT, citations=(QUOTE,)), sentences=(RIGHT, INVENTED), reasoning="It is in the contract. \x1b[31mRed"
    )
    gates = [threading.Event() for _ in range(4)]
    script: list[AnswerEvent | threading.Event | Exception] = [
        Retrieved(SOURCES), FirstToken(final.timings), ReasoningText("It is in the "), gates[0],
        ReasoningText("contract."), AnswerDraft("The warranty period is"), gates[1],
        AnswerText(TEXT[:38]), SentenceChecked(RIGHT), gates[2],
        AnswerText(TEXT[38:]), SentenceChecked(INVENTED), gates[3], Finished(final),
    ]  # fmt: skip
    backend = ScriptedBackend(script={Q: script}, started=Started("a chat model", "CPU", markdown=True))
    async with running(backend) as pilot:
        app = pilot.app
        assert isinstance(app, DeskRagApp)
        await ask(pilot, Q)
        await until(pilot, lambda: text_of(app, ".note") == "reasoning: 4 words so far …")
        gates[0].set()
        await until(pilot, lambda: text_of(app, ".note") == "The warranty period is …")
        gates[1].set()
        await until(pilot, lambda: app._chat.query_one(Words).text == TEXT[:38])
        gates[2].set()
        await until(pilot, lambda: app._chat.query_one(Words).text == f"{TEXT} [?]")
        gates[3].set()
        await until(pilot, lambda: app._chat.query_one(AnswerView).over)
        assert app._chat.query_one(Words).text == f"{TEXT} [?]"
        note = "! 1 of 2 sentences is not supported by the passages, marked [?]: no passage says this"
        assert text_of(app, ".note") == note
        folded = app._chat.query_one(Collapsible)
        assert folded.collapsed and folded.title == "The model reasoned for 6 words first"
        assert "contract" not in app._chat.query_one(Words).text


async def test_an_answer_without_support_is_labelled(running: Run) -> None:
    text = "A longer warranty can be bought."
    invented = CheckedSentence(0, len(text), Support.UNSUPPORTED, "no passage says this", 0.1)
    final = replace(answer(Q, text, found=False), sentences=(invented,))
    script: list[AnswerEvent | threading.Event | Exception] = [
        Retrieved(SOURCES),
        FirstToken(final.timings),
        AnswerText(text),
        SentenceChecked(invented),
        Finished(final),
    ]
    backend = ScriptedBackend(script={Q: script}, started=Started("a chat model", "CPU", markdown=True))
    async with running(backend) as pilot:
        app = pilot.app
        assert isinstance(app, DeskRagApp)
        await ask(pilot, Q)
        await until(pilot, lambda: bool(app._chat.query(AnswerView)) and app._chat.query_one(AnswerView).over)
        assert text_of(app, ".note").startswith("! Not from your documents")
        assert "The nearest passages:" in text_of(app, ".note")
        assert app._chat.query_one(Words).text == f"{text} [?]"
        assert app._chat.query_one(AnswerView).has_class("-not-found")
