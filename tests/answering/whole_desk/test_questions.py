"""Sixty-four questions about a whole desk, asked as `desk-rag ask` does, their printed answers checked word by word."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.answering.conversation import asking
from desk_rag.answering.conversation.asking import Request
from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.opening import open_engine
from desk_rag.cli.output import AnswerPrinter
from desk_rag.config import Settings
from desk_rag.ingest import pipeline
from tests.answering.whole_desk.desk import NOT_READ, write_desk

_QUESTIONS = [
    json.loads(line) for line in Path(__file__).with_name("questions.jsonl").read_text(encoding="utf-8").splitlines()
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerEngine]:
    root = tmp_path_factory.mktemp("whole-desk")
    desk = write_desk(root / "desk")
    settings = Settings(data_dir=root / "data")
    opened = open_engine(settings, writer=True)
    prompt = opened.model.prompt
    list(pipeline.sync_folder(opened.store, desk, prompt, prompt.chunk_size, settings.index, lambda: False))
    list(pipeline.embed_pending(opened.store, opened.embedder, lambda: False))
    yield opened
    opened.close()


def printed(engine: AnswerEngine, question: str) -> str:
    """What `desk-rag ask` prints, without the nearest passages of a refusal and without the footer."""
    stream, desk = io.StringIO(), engine.settings.data_dir.parent / "desk"
    printer = AnswerPrinter(stream, (desk,))
    for event in asking.ask(engine, Request(question, limit=(desk,))):
        printer.show(event)
    text = stream.getvalue().split("\n-- ")[0]
    return re.sub(r"Nearest passages:\n(?:  \[.*\n)+", "", text)


def stands_in(pattern: str, text: str) -> bool:
    """True if a text has these words, or matches them as a pattern if they hold '|', '(' or a backslash."""
    is_pattern = any(sign in pattern for sign in "\\(|")
    return re.search(pattern if is_pattern else re.escape(pattern), text, re.IGNORECASE) is not None


@pytest.mark.parametrize("question", _QUESTIONS, ids=lambda question: question["question"])
def test_the_printed_answer(engine: AnswerEngine, question: dict[str, list[str]]) -> None:
    text = printed(engine, str(question["question"]))
    assert [words for words in question["must"] if not stands_in(words, text)] == [], text
    assert [words for words in question["must_not"] if stands_in(words, text)] == [], text


def test_every_row_of_a_total_is_shown_and_adds_up(engine: AnswerEngine) -> None:
    text = printed(engine, "What is the total of the invoices of Kessler Heating?")
    rows = re.findall(r"^KH-\S+, .*?, ([\d,.]+) euros: ", text, re.MULTILINE)
    assert len(rows) == 5
    assert sum(round(float(row.replace(",", "")) * 100) for row in rows) == 483_083
    assert "Of another party and left out, although the name stands in it: Nordfracht Logistics 2022.md" in text
    assert "2 rows of payments 2024.csv, 784.15 in all" in text
    assert f"{len(NOT_READ)} files not read" in text


def test_a_refusal_names_the_archive_that_the_question_nearly_names(engine: AnswerEngine) -> None:
    text = printed(engine, "What was the tax refund for 2019?")
    assert "old tax 2019.zip was not read: an archive; unpack it" in text


def test_two_leases_are_both_quoted_unless_one_is_named(engine: AnswerEngine) -> None:
    both = printed(engine, "What is the notice period?")
    assert both.index("three months for the tenant") < both.index("says something else, quoted as well")
    named = printed(engine, "What is the notice period of Birch Street 14?")
    assert "three months" in named
    assert "says something else" not in named
    assert "six weeks" not in named
