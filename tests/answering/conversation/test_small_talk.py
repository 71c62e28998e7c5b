"""Greetings and the like are answered with what can be asked, questions about documents are not taken for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from desk_rag.answering.conversation import small_talk
from desk_rag.answering.conversation.small_talk import Talk
from desk_rag.answering.events import AnswerText, Finished
from desk_rag.config import StoreSettings
from desk_rag.store.store import Store


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("hello", Talk.GREETING),
        ("Good morning!", Talk.GREETING),
        ("Thanks a lot", Talk.THANKS),
        ("thank you", Talk.THANKS),
        ("who are you?", Talk.ABOUT),
        ("What can you do?", Talk.ABOUT),
        ("what can I ask?", Talk.ABOUT),
        ("help", Talk.ABOUT),
        ("bye", Talk.FAREWELL),
        ("  ", Talk.EMPTY),
        ("???", Talk.EMPTY),
        ("hello, when is the rent due?", None),
        ("thanks, and who paid it?", None),
        ("what do you know about the lease?", None),
        ("Who helps with the boiler?", None),
        ("What is the name of the dentist?", None),
    ],
)
def test_only_whole_messages_are_small_talk(message: str, kind: Talk | None) -> None:
    assert small_talk.kind_of(message) is kind


def test_the_reply_says_what_can_be_asked_and_quotes_nothing(tmp_path: Path) -> None:
    with Store.open(tmp_path, StoreSettings(), writer=True) as store:
        events = list(small_talk.answer(Talk.GREETING, "hello", store, ()))
    last = events[-1]
    assert isinstance(last, Finished)
    assert not last.answer.citations and not last.answer.sources
    assert "desk-rag index FOLDER" in last.answer.text
    assert "".join(event.text for event in events if isinstance(event, AnswerText)) == last.answer.text
