"""Questions about two whole desks, asked as `desk-rag ask` does, their printed answers checked word by word."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from desk_rag.answering.conversation import asking
from desk_rag.answering.conversation.turns import Request
from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import Finished
from desk_rag.answering.opening import open_engine
from desk_rag.answering.questions.folder import asking as folder_asking
from desk_rag.cli.output import AnswerPrinter
from desk_rag.config import Settings
from desk_rag.ingest import pipeline
from tests.answering.whole_desk.desk import NOT_READ, write_desk
from tests.answering.whole_desk.freelancer import write_desk as write_freelancer


def questions_in(name: str) -> list[dict[str, list[str]]]:
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def engine_over(root: Path, write: Callable[[Path], Path]) -> AnswerEngine:
    """An engine over a desk at `root`/desk that has just been indexed."""
    desk, settings = write(root / "desk"), Settings(data_dir=root / "data")
    opened = open_engine(settings, writer=True)
    prompt = opened.model.prompt
    list(pipeline.sync_folder(opened.store, desk, prompt, prompt.chunk_size, settings.index, lambda: False))
    list(pipeline.embed_pending(opened.store, opened.embedder, lambda: False))
    return opened


def engine_over_texts(root: Path, texts: Mapping[str, str]) -> AnswerEngine:
    """An engine over a desk of these texts, by the names of their files."""

    def write(folder: Path) -> Path:
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        return folder

    return engine_over(root, write)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerEngine]:
    opened = engine_over(tmp_path_factory.mktemp("whole-desk"), write_desk)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def freelancer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerEngine]:
    opened = engine_over(tmp_path_factory.mktemp("freelancer"), write_freelancer)
    yield opened
    opened.close()


def printed(engine: AnswerEngine, question: str) -> str:
    """The output of `desk-rag ask`, without the nearest passages of a refusal and without the footer."""
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


def check(engine: AnswerEngine, question: dict[str, list[str]]) -> None:
    text = printed(engine, str(question["question"]))
    assert [words for words in question["must"] if not stands_in(words, text)] == [], text
    assert [words for words in question["must_not"] if stands_in(words, text)] == [], text


@pytest.mark.parametrize("question", questions_in("questions.jsonl"), ids=lambda question: question["question"])
def test_the_printed_answer(engine: AnswerEngine, question: dict[str, list[str]]) -> None:
    check(engine, question)


@pytest.mark.slow
@pytest.mark.parametrize("question", questions_in("freelancer.jsonl"), ids=lambda question: question["question"])
def test_the_printed_answer_at_another_desk(freelancer: AnswerEngine, question: dict[str, list[str]]) -> None:
    check(freelancer, question)


def test_every_row_of_a_total_is_shown_and_adds_up(engine: AnswerEngine) -> None:
    text = printed(engine, "What is the total of the invoices of Kessler Heating?")
    rows = re.findall(r"^\[\d+\] KH-\S+, .*?, ([\d,.]+) euros: ", text, re.MULTILINE)
    assert len(rows) == 5
    assert len(re.findall(r"^(?:\[\d+\] )?\S*KH-\d+", text, re.MULTILINE)) == 5, "a document is listed once"
    assert sum(round(float(row.replace(",", "")) * 100) for row in rows) == 483_083
    assert "Of another party and left out, although the name stands in it: Nordfracht Logistics 2022.md" in text
    assert "2 rows of payments 2024.csv, 784.15 in all" in text
    assert f"{len(NOT_READ)} files not read" in text


def test_a_refusal_names_the_archive_that_the_question_nearly_names(engine: AnswerEngine) -> None:
    text = printed(engine, "What was the tax refund for 2019?")
    assert "old tax 2019.zip was not read: an archive; unpack it" in text


def test_two_leases_are_both_quoted_unless_one_is_named(engine: AnswerEngine) -> None:
    both = printed(engine, "What is the notice period?")
    assert both.index("three months for the tenant") < both.index("says something else, see [")
    named = printed(engine, "What is the notice period of Birch Street 14?")
    assert "three months" in named
    assert "says something else" not in named
    assert "six weeks" not in named


@pytest.mark.parametrize(
    "question",
    [
        "How long is the lease?",
        "When was the roof changed?",
        "When was the roof repaired?",
        "What changed in 2019?",
        "How many letters are in the word turbine?",
        "How many documents must be handed in for the permit?",
        "How many copies of the contract are there?",
        "How many invoices can be sent per month?",
        "How many mails can the server send?",
        "What is the total number of pages?",
        "What is the cost of the lease per month?",
        "What was the first order of the day?",
        "What does the offer include?",
        "Which documents are needed for the permit?",
        "Which mail says the boiler was bought in 2016?",
        "Which letter is on the door?",
        "How much did we pay the roofer?",
        "How much did we pay for the sofa?",
        "Compare the car and the ferry",
        "List all ingredients of the loaf",
    ],
)
def test_a_question_for_one_fact_is_not_taken_for_one_about_the_folder(engine: AnswerEngine, question: str) -> None:
    events = folder_asking.answer(engine.store, question, ())
    assert [event.answer.text for event in events if isinstance(event, Finished)] == []


def test_the_latest_letter_is_quoted_and_not_only_named(engine: AnswerEngine) -> None:
    text = printed(engine, "What was the last letter about?")
    assert "letter to Margaret Hollis.txt" in text
    assert "the cellar of Birch Street 14 is damp" in text


def test_a_total_per_supplier_has_a_line_for_each(engine: AnswerEngine) -> None:
    text = printed(engine, "What did we pay each supplier?")
    assert "\nBright Paper: 3 invoices, 341.40 euros\nKessler Heating: 5 invoices, 4,830.83 euros\n" in text
    assert "books.csv" not in text


def test_a_name_after_an_at_limits_a_total(engine: AnswerEngine) -> None:
    assert "4,724.50 euros (computed: the sum of 4 invoices)" in printed(engine, "@invoices/2023/ what is the total?")
    assert "2,251.65 euros (computed: the sum of 3 invoices)" in printed(engine, "total of @invoices/2024/")


def test_what_was_paid_in_a_year_names_what_it_leaves_out(engine: AnswerEngine) -> None:
    text = printed(engine, "How much did we pay in 2024?")
    assert "398.65 euros (from the only invoice in 2024 that is not said to be unpaid; there are 13 in all" in text
    assert "not paid yet: Bright Paper 2024.xlsx, Nordfracht Logistics 2024.txt." in text
    assert "of nothing without an invoice" in text
    assert "3 rows of payments 2024.csv, 845.35 in all" in text
