"""Answers of the shipped reader whose quote and short answer are chosen, through the whole engine."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import Answer, AnswerMode, AnswerText, Evidence, Finished, FirstToken
from desk_rag.model.prompt import NO_ANSWER
from tests.answer_world import BICYCLE, World, an_engine, ask, make_world

DEPOSIT = "What deposit do the tenants pay?"
CASIMIR = (
    "Name: Casimir Dunn; Kind of member: full; Member since: 2020; Telephone: 0417 301 16; Street: 8 Foundry Lane; "
    "Fee paid in 2026: 145"
)
QUOTE = "The tenants pay a deposit of 1,740 crowns, which is two months' rent."


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, sample_docs: Path) -> World:
    root = tmp_path_factory.mktemp("quoted")
    (root / "docs").mkdir()
    for file in ("home/lease-flat-tanners-row.docx", "rainbarrel/settings.toml", "club/members.csv"):
        shutil.copy(sample_docs / file, root / "docs")
    return make_world(root, "cpu")


def quotes(answer: Answer) -> list[str]:
    return [citation.quote for citation in answer.citations]


def test_the_reader_alone_quotes_the_wrong_sentence_and_the_choice_the_right_one(world: World) -> None:
    with an_engine(world, world.data, max_new_tokens=80, choose_quote=False) as engine:
        alone = ask(engine, DEPOSIT)
    with an_engine(world, world.data, max_new_tokens=80) as engine:
        chosen = ask(engine, DEPOSIT)
        full = ask(engine, DEPOSIT, AnswerMode.FULL)
    assert "1,740" not in alone.raw
    assert quotes(chosen) == [QUOTE] and chosen.text == "1,740 crowns"
    assert chosen.raw == full.raw == f'"{QUOTE}"\n1,740 crowns'
    assert chosen.citations == full.citations
    ids = world.prepared.model.prompt.answer_ids(chosen.raw)
    assert chosen.timings.decoded_tokens == len(ids) - 1


def test_what_the_reader_does_not_find_is_quoted_where_the_pointer_is_sure(world: World) -> None:
    question, absent = "How many messages are sent per day at most?", "Who won the chess tournament in Dulvane?"
    with an_engine(world, world.data, max_new_tokens=80, choose_quote=False) as engine:
        alone = ask(engine, question)
    with an_engine(world, world.data, max_new_tokens=80) as engine:
        chosen, full = ask(engine, question), ask(engine, question, AnswerMode.FULL)
        nowhere = ask(engine, absent)
    assert not alone.found and alone.raw == nowhere.raw == NO_ANSWER
    assert quotes(chosen) == ["messages.most_per_day: 5"] and chosen.text == "5" and chosen.found
    assert chosen.raw == full.raw and not nowhere.found


@pytest.mark.parametrize("how", [{"attention": "lazy"}, {"recompute": 0.2}, {"lean": True}], ids=str)
def test_every_way_of_reading_chunks_chooses_alike(world: World, how: dict[str, Any]) -> None:
    lean = True if how.pop("lean", None) else None
    with an_engine(world, world.data, max_new_tokens=80, lean=lean, **how) as engine:
        assert ask(engine, DEPOSIT).raw == f'"{QUOTE}"\n1,740 crowns'


@pytest.mark.parametrize(
    ("question", "quote", "answer"),
    [
        ("How long is the pause after watering?", "watering.pause_after_watering_hours: 6", "6"),
        ("What is the telephone number of Casimir Dunn?", CASIMIR, "0417 301 16"),
    ],
)
def test_lines_of_settings_and_tables_are_quoted_whole_and_answered_with_a_part(
    world: World, question: str, quote: str, answer: str
) -> None:
    with an_engine(world, world.data, max_new_tokens=120) as engine:
        got = ask(engine, question)
    assert quotes(got) == [quote] and got.text == answer and not got.dropped_quotes


def test_the_short_answer_is_made_of_the_quotes_own_words(world: World) -> None:
    asked = (DEPOSIT, BICYCLE, "When was the chain changed?", "Who has the tickets?")
    with an_engine(world, world.data, max_new_tokens=80) as engine:
        answers = [ask(engine, question) for question in asked]
    assert all(answer.found and any(answer.text in quote for quote in quotes(answer)) for answer in answers)
    assert [answer.text for answer in answers[1:]] == ["WTU-4471-B", "spring 2024", "Anna"]


@pytest.mark.parametrize("short_by", [1, 2, 9, 20])
def test_at_the_limit_an_answer_is_cut_and_not_replaced(world: World, short_by: int) -> None:
    question = "What is the telephone number of Casimir Dunn?"
    whole = world.prepared.model.prompt.answer_ids(f'"{CASIMIR}"\n0417 301 16')
    limit = len(whole) - short_by
    with an_engine(world, world.data, max_new_tokens=limit) as engine:
        got = ask(engine, question)
    assert got.raw == world.prepared.model.prompt.decode(whole[:limit])
    assert got.timings.decoded_tokens == limit - 1


def events_of(engine: AnswerEngine, question: str, until: int) -> list[object]:
    """Stopped once so many events behind the first token have come."""
    events: list[object] = []

    def stop() -> bool:
        return bool(events) and len(events) >= until

    for event in engine.ask(question, stop=stop):
        if isinstance(event, (FirstToken, Evidence, AnswerText, Finished)):
            events.append(event)
    return events


def test_stopping_behind_the_first_token_leaves_nothing_and_later_the_quote(world: World) -> None:
    with an_engine(world, world.data, max_new_tokens=80) as engine:
        at_once = events_of(engine, BICYCLE, 1)
        assert isinstance(at_once[0], FirstToken) and isinstance(at_once[-1], Finished)
        assert at_once[-1].answer.stopped and at_once[-1].answer.raw == '"' and not at_once[-1].answer.citations
        whole = events_of(engine, BICYCLE, 1000)
        assert [type(event) for event in whole] == [FirstToken, Evidence, AnswerText, Finished]
        assert isinstance(whole[-1], Finished) and whole[-1].answer.text == "WTU-4471-B"
