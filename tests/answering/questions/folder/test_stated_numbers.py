"""How many there are, by a sentence that states it, and what was paid over the years to one firm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from desk_rag.answering.engine import AnswerEngine
from tests.answering.whole_desk.test_questions import engine_over_texts, printed

FILES = {
    "members/members 2023.csv": "name,voice\nOtto Hall,tenor\nRuth Kemp,alto\n",
    "members/welcome.md": "# Welcome\n\nThe scarf of a member is green. Members bring their own stand.\n",
    "minutes/2022-03 AGM.md": (
        "# Annual General Meeting, 12 March 2022\n\nTwenty-one members were present and two sent apologies.\n\nThe rule"
        " of the choir is that nobody under sixteen is a full member.\n"
    ),
    "minutes/2024-03 AGM.md": "# Annual General Meeting, 16 March 2024\n\nTwenty-five members were present.\n",
    "minutes/2025-09 committee.md": (
        "# Committee, 9 September 2025\n\nThe membership stands at twenty-six after Joan stopped.\n"
    ),
    "grant/application 2023.md": "# Application, 5 May 2023\n\nThe choir has twenty-three members of all ages.\n",
    "calendar/2024.md": "# Calendar 2024\n\nAGM of the members: 16 March 2024, cake by Sheila.\n",
    "insurance/Harbour Mutual 2022.md": "# Policy HM-44\n\nThe premium for the year is £86.40.\n",
    "insurance/Harbour Mutual 2023.md": "# Policy HM-44\n\nThe premium for the year is £91.20.\n",
    "insurance/Harbour Mutual 2024.md": "# Policy HM-44\n\nThe premium for the year is £97.50.\n",
    "helpers/rota.md": "# Rota\n\nHelpers meet at the gate. Ask the helpers for the key.\n",
    "helpers/notes.md": "# Notes\n\nOne of the helpers lost the key of the shed.\n",
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerEngine]:
    opened = engine_over_texts(tmp_path_factory.mktemp("choir"), FILES)
    yield opened
    opened.close()


@pytest.mark.parametrize("question", ["How many members does the choir have?", "How many members are there?"])
def test_the_newest_document_that_states_the_number_answers(engine: AnswerEngine, question: str) -> None:
    text = printed(engine, question)
    assert "twenty-six (stated in 2025-09 committee.md of September 2025). Others state another number." in text
    assert "The choir has twenty-three members of all ages." in text and "counted" not in text


def test_a_number_at_a_meeting_is_read_and_not_counted(engine: AnswerEngine) -> None:
    text = printed(engine, "How many members were present at the AGM in 2024?")
    assert "Twenty-five members were present." in text and "counted" not in text
    assert any(line.startswith("Twenty-five") for line in text.splitlines())


def test_a_count_of_lines_that_only_mention_it_is_doubted(engine: AnswerEngine) -> None:
    text = printed(engine, "How many helpers have we got?")
    assert "(counted: 3 lines in 2 files)" in text and "read it before you rely on it" in text


def test_rows_of_one_table_are_counted(engine: AnswerEngine) -> None:
    text = printed(engine, "How many rows with alto are in members 2023.csv?")
    assert "1 (counted" in text and "read it before you rely on it" not in text


@pytest.mark.parametrize(
    ("question", "total"),
    [
        ("What have we paid Harbour Mutual in premiums from 2022 to 2024 altogether?", "275.10 (computed: the sum of"),
        ("What is the total of the Harbour Mutual premiums?", "275.10 (computed: the sum of the 3"),
        ("What is the total of the premiums from 2023 to 2024?", "188.70 (computed: the sum of the 2"),
    ],
)
def test_amounts_of_a_firm_named_by_the_file_are_added_up(engine: AnswerEngine, question: str, total: str) -> None:
    assert total in printed(engine, question)
