"""The date of a document is its own, not that of the document it refers to; table rows are quoted whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import docx
import openpyxl
import pytest

from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.questions.disagreement.newest import Writing, day_of
from desk_rag.answering.requirements.dates import in_words
from tests.answering.whole_desk.test_questions import engine_over, printed

WORD_FILES = {
    "contracts/Framework agreement Torrin 2021.docx": (
        "Framework agreement",
        "This agreement is made on 22 March 2021 between Torrin & Hale Ltd (the Agency) and Mira Aldous.",
        "Invoices of 3 May 2021 and later fall under it.",
        "Either side may end this agreement in writing with four weeks' notice.",
    ),
    "contracts/Amendment 1 Torrin 2024.docx": (
        "Amendment No. 1 to the framework agreement of 22 March 2021",
        "The parties agree on the following changes, which take effect on 1 February 2024.",
        "The period of notice becomes eight weeks for both sides.",
        "Signed on 29 January 2024 by Petra Hale, managing director, and Mira Aldous.",
    ),
    "letters/garage.docx": (
        "Vance Garage",
        "Your letter of 4 April 2023",
        "Thank you for it. We repair the door on 9 June 2023.",
        "Date: 11 May 2023",
    ),
}
FILES = {
    "mails/door.eml": (
        "From: Ana Lind <ana@yard.example>\nTo: ben@yard.example\nDate: Tue, 20 Feb 2024 08:00:00 +0100\n"
        "Subject: Your offer of 2023-11-02\n\nWe take it.\n\nAna\n"
    ),
    "minutes/board.md": "# Minutes of 5 March 2024\n\nThe chair signs the lease of 1 May 2022 again.\n",
    "letters/2022-08-09 reply.txt": "To the lease of 1 May 2022\n\nWe agree. Signed on 12 August 2022 by Ida.\n",
}
MONTHS = (("January", 1650, 2480, 865, 0), ("February", 1420, 2480, 870, 40), ("March", 2100, 2510, 880, 60))


def write_papers(folder: Path) -> Path:
    for name, paragraphs in WORD_FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        document = docx.Document()
        for paragraph in paragraphs:
            document.add_paragraph(paragraph)
        document.save(str(folder / name))
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    book = openpyxl.Workbook()
    for row in (("Month", "Income Mira", "Income Tomas", "Mortgage", "House repairs"), *MONTHS):
        book.active.append(row)
    book.save(folder / "budget 2024.xlsx")
    return folder


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerEngine]:
    opened = engine_over(tmp_path_factory.mktemp("papers"), write_papers)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("name", "day"),
    [
        ("contracts/Framework agreement Torrin 2021.docx", "22 March 2021"),
        ("contracts/Amendment 1 Torrin 2024.docx", "29 January 2024"),
        ("letters/garage.docx", "11 May 2023"),
        ("letters/2022-08-09 reply.txt", "9 August 2022"),
        ("mails/door.eml", "20 February 2024"),
        ("minutes/board.md", "5 March 2024"),
    ],
)
def test_a_document_has_its_own_date(engine: AnswerEngine, name: str, day: str) -> None:
    assert in_words(day_of(engine.store, Writing(engine.settings.data_dir.parent / "desk" / name))) == day


def test_an_amendment_answers_for_today_and_the_agreement_is_shown_beside_it(engine: AnswerEngine) -> None:
    text = printed(engine, "How much notice must be given to end the Torrin agreement today?")
    assert "eight weeks" in text.splitlines()
    assert "four weeks' notice" in text
    assert "of 22 March 2021 says something else" in text
    assert "is older than Amendment 1 Torrin 2024.docx of 29 January 2024" in text


def test_the_quote_of_a_row_has_its_first_cell_and_the_whole_names_of_its_columns(engine: AnswerEngine) -> None:
    text = printed(engine, "How much was the income of Tomas in March 2024?")
    assert "“Month: March; Income Mira: 2100; Income Tomas: 2510; Mortgage: 880; House repairs: 60”" in text
    assert "2510" in text.splitlines()


@pytest.mark.parametrize(
    ("question", "total", "column"),
    [
        ("How much did we spend on house repairs in 2024?", "100", "House repairs"),
        ("Mortgage in 2024?", "2,615", "Mortgage"),
        ("What was the income of Tomas in 2024?", "7,470", "Income Tomas"),
    ],
)
def test_the_months_of_a_year_are_added_up(engine: AnswerEngine, question: str, total: str, column: str) -> None:
    text = printed(engine, question)
    assert f"{total} (computed: the sum of the column “{column}” in 3 rows of budget 2024.xlsx in 2024)" in text
    assert all(f"“Month: {month}; " in text for month, *_ in MONTHS)


def test_one_month_is_no_sum_and_one_of_several_months_is_doubted(engine: AnswerEngine) -> None:
    assert "60" in printed(engine, "How much did we spend on house repairs in March 2024?").splitlines()
    assert "2 rows of budget 2024.xlsx fit the question" in printed(engine, "What was Tomas's income?")


def test_a_year_of_which_the_table_has_no_row_is_no_sum(engine: AnswerEngine) -> None:
    for question in ("How much did we spend on house repairs in 2019?", "Mortgage in 2019?"):
        assert "computed" not in printed(engine, question)
