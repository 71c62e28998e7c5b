"""Answers of the shipped reader whose quote is chosen, through the whole engine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from desk_rag.answer import AnswerEngine
from desk_rag.answer_events import Answer, AnswerMode, AnswerText, Evidence, Finished, FirstToken
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


@pytest.mark.parametrize("how", [{"attention": "lazy"}, {"recompute": 0.2}, {"lean": True}], ids=str)
def test_every_way_of_reading_chunks_chooses_alike(world: World, how: dict[str, object]) -> None:
    lean = True if how.pop("lean", None) else None
    with an_engine(world, world.data, max_new_tokens=80, lean=lean, **how) as engine:
        assert ask(engine, DEPOSIT).raw == f'"{QUOTE}"\n1,740 crowns'


@pytest.mark.parametrize(
    ("question", "quote"),
    [
        ("How long is the pause after watering?", "pause_after_watering_hours = 6"),
        ("What is the telephone number of Casimir Dunn?", CASIMIR),
    ],
)
def test_lines_of_settings_and_tables_are_quoted_whole(world: World, question: str, quote: str) -> None:
    with an_engine(world, world.data, max_new_tokens=80) as engine:
        assert quotes(ask(engine, question))[:1] == [quote]


def events_of(engine: AnswerEngine, question: str, until: int) -> list[object]:
    """Stopped once so many events behind the first token have come."""
    came: list[object] = []

    def stop() -> bool:
        return bool(came) and len(came) >= until

    for event in engine.ask(question, stop=stop):
        if isinstance(event, (FirstToken, Evidence, AnswerText, Finished)):
            came.append(event)
    return came


def test_stopping_behind_the_first_token_leaves_nothing_and_later_the_quote(world: World) -> None:
    with an_engine(world, world.data, max_new_tokens=80) as engine:
        at_once = events_of(engine, BICYCLE, 1)
        assert isinstance(at_once[0], FirstToken) and isinstance(at_once[-1], Finished)
        assert at_once[-1].answer.stopped and at_once[-1].answer.raw == '"' and not at_once[-1].answer.citations
        whole = events_of(engine, BICYCLE, 1000)
        assert [type(event) for event in whole[:2]] == [FirstToken, Evidence]
        assert isinstance(whole[-1], Finished) and "WTU-4471-B" in whole[-1].answer.text


def test_neighbouring_questions_embed_no_sentence_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    with an_engine(world, world.data, max_new_tokens=80) as engine:
        ask(engine, DEPOSIT)
        real = world.embedder.embed_chunks
        monkeypatch.setattr(world.embedder, "embed_chunks", lambda texts: asked.extend(texts) or real(texts))  # type: ignore[func-returns-value]
        ask(engine, DEPOSIT)
        assert asked == []  # the judge's neither
