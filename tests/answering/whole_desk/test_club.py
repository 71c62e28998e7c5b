"""A rowing club's papers: what is over, who holds an office now, what a log's date says, and what is not spoken of."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from desk_rag.answering.engine import AnswerEngine
from tests.answering.whole_desk.test_questions import engine_over_texts, printed

FILES = {
    "boathouse/letters/lease 2018.md": (
        "# Lease of the boathouse\n\nThis lease is made on 4 May 2018 between Holm Harbour Board and the Tern Rowing"
        " Club.\n\nThe rent is £310 a year.\n\nSigned for the club by Marten Voss, President.\n"
    ),
    "boathouse/minutes/general meeting 2023.md": (
        "# General meeting, 14 October 2023\n\n## Elections\n\n- President: Marten Voss (re-elected)\n"
        "- Treasurer: Ilse Brandow\n\n## Show\n\nThe shield for the fastest double scull went to Hanne Dorn.\n"
    ),
    "boathouse/minutes/general meeting 2025.md": (
        "# General meeting, 11 October 2025\n\n## Elections\n\nMarten Voss retired after twelve years. Sofie Lund was"
        " elected president with 21 votes. Pavel Kiss was elected treasurer and stays boatman.\n\n## Dues\n\nThe dues"
        " for a full membership stay at £84 for 2026. Half memberships pay £50.\n"
    ),
    "boathouse/minutes/committee 2025-02-03.txt": (
        "COMMITTEE, 3 February 2025\n\n1. Slipway. New rollers were ordered from Brask for 9 April; they cost £410.\n"
        "2. Fire. The alarm was tested.\n"
    ),
    "boathouse/minutes/committee 2025-05-06.txt": (
        "COMMITTEE, 6 May 2025\n\n1. Slipway. The rollers came on 9 April. Brask charged £455 for the rollers, with the"
        " delivery.\n2. Tea. The urn leaks.\n"
    ),
    "boathouse/house rules.md": (
        "# House rules\n\nA trailer may not be wider than 1.9 metres nor longer than 7.5 metres.\n\nMembers may bring"
        " no dog into the boathouse. One barbecue is allowed on the lawn.\n"
    ),
    "coach/log 2025.txt": (
        "Coaching log 2025\n\n2 March 2025\nFirst outing of the eight in the rain.\n\n16 March 2025\nThe quad capsized"
        " at 10.15. Hanne and Otto swam ashore.\n\n30 March 2025\nSold raffle tickets: 40 by Hanne, 25 by Otto, none by"
        " Mirko.\n"
    ),
    "home/to the optician.md": (
        "3 September 2025\n\nDear Dr Quill,\n\nI no longer use the drops for my eyes (timolol) since May, because they"
        " stung. The clinic gave me latanoprost drops for my eyes instead.\n"
    ),
    "home/policy Harbour Mutual.md": (
        "# Harbour Mutual: certificate of insurance\n\nThe boathouse is insured against fire; the excess is £150.\n"
    ),
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerEngine]:
    opened = engine_over_texts(tmp_path_factory.mktemp("club"), FILES)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Which drops do I use for my eyes now?", "latanoprost"),
        ("Who is the president of the rowing club now?", "Sofie Lund"),
        ("Who is the president?", "Sofie Lund"),
        ("Who is the treasurer of the club?", "Pavel Kiss"),
        ("What did the rollers cost in the end?", "455"),
        ("How long may a trailer be?", "7.5"),
        ("When did the quad capsize?", "16 March 2025"),
        ("How many raffle tickets were sold by Mirko?", "none"),
        ("May a member bring a dog?", "Members may bring no dog"),
    ],
)
def test_the_answer_is_what_holds_of_the_thing_asked_about(engine: AnswerEngine, question: str, answer: str) -> None:
    lines = printed(engine, question).splitlines()
    assert any(line.lstrip("£").removeprefix("The ").startswith(answer) for line in lines), lines


def test_the_newest_holder_is_doubted_where_no_minutes_speak_of_the_body(engine: AnswerEngine) -> None:
    text = printed(engine, "Who is the treasurer of the chess club?")
    assert "could not find" in text or "read it before you rely on it" in text


@pytest.mark.parametrize(
    "question",
    ["Who won the shield for the fastest quad in 2023?", "What is the excess of my car insurance?"],
)
def test_what_no_passage_speaks_of_is_not_answered_without_doubt(engine: AnswerEngine, question: str) -> None:
    text = printed(engine, question)
    assert "could not find" in text or "read it before you rely on it" in text
