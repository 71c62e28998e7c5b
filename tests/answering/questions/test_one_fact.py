"""What speaks against an answer, which unit it leaves out, and who holds an office by the newest paper."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from desk_rag.answering.events import Answer, AnswerMode, Citation, Timings
from desk_rag.answering.questions.one_fact import doubts
from desk_rag.answering.questions.one_fact.holders import newer_holder
from desk_rag.answering.requirements.places import Place
from desk_rag.documents.chunking import Location
from desk_rag.store.store import Store
from tests.answering.questions.test_payments import _index

SHOW = Place("The cup for the best onions went to Idris Gwynne.", "minutes\nAGM", 0)
LUNCH = Place("Lunch with Stanley: 13 December 2025; Place: Whitby, The Magpie", "calendar", 0)
PUMP = Place("The seal of the pump must be renewed within 14 days. Fee: 88.50; it was seen on 3 May.", "report", 0)


@pytest.mark.parametrize(
    ("question", "answer", "place", "is_doubted"),
    [
        ("Who won the cup for the best leeks?", "", SHOW, True),
        ("Who won the cup for the best onions?", "", SHOW, False),
        (
            "What is the longest time it may run?",
            "75 minutes",
            Place("The longest it may run is 75 minutes.", "d", 0),
            False,
        ),
        (
            "What is Stanley's telephone number?",
            "01632 960809",
            Place("Stanley Coombs, home: 01632 960809", "c", 0),
            False,
        ),
        ("Where is the lunch in Whitby?", "The Magpie", LUNCH, False),
        ("Has the seal of the pump been renewed?", "within 14 days", PUMP, True),
        ("Was the fee for the pump paid?", "88.50", PUMP, True),
        ("Is there a fee for the pump?", "88.50 a day", PUMP, True),
        ("Was the pump seen in May?", "3 May", PUMP, False),
        ("Was the fee for the pump 88.50?", "88.50", PUMP, False),
        ("Must the seal be renewed?", "must be renewed within 14 days", PUMP, False),
        ("How long may the seal of the pump stay?", "within 14 days", PUMP, False),
        ("Has Tovey been paid for the shed?", "145.00", Place("What: shed; By: Tovey; Cost: 145.00", "c", 0), True),
        ("Is the shed insured for 500?", "for 500", Place("The shed is insured for 500.", "c", 0), False),
        ("Who was chair before Ann Lowe?", "Bo", Place("Present: Ann Lowe (chair), Bo (clerk)", "c", 0), True),
        ("Who was chair before Ann Lowe?", "Bo", Place("Bo was chair until Ann Lowe took over.", "c", 0), False),
        ("How much of the gift was left?", "£90", Place("The gift of £90 paid for the oars.", "c", 0), True),
        ("Who has more keys, Ana or Ben?", "Ana", Place("Ana keeps the keys.", "c", 0), True),
        ("What was the fee in 2023?", "£9", Place("The fee for 2024 will be £9.", "c", 0), True),
        ("What was the fee in 2023?", "£9", Place("The fee for 2023 will be £9.", "c", 0), False),
        ("How much did we pay Bo for the songs?", "twelve copies", Place("Bo gave twelve copies.", "c", 0), True),
        ("How much did we pay Bo for the songs?", "twelve pounds", Place("Bo got twelve pounds.", "c", 0), False),
        ("When was the pool opened?", "3 May", Place("The pool was to be opened on 3 May.", "c", 0), True),
    ],
)
def test_what_speaks_against_an_answer(question: str, answer: str, place: Place, is_doubted: bool) -> None:
    assert bool(doubts.reason(question, answer, place.text, place)) is is_doubted


@pytest.mark.parametrize(
    ("question", "quote", "support", "missing"),
    [
        ("What did grown-ups pay before?", "We charge adults 16 crowns before noon.", 0.5, ""),
        ("Which dog is diabetic?", "Animal: Tibbs; Food: diabetic dry", 0.5, "dog"),
        ("Which dog is diabetic?", "Animal: Tibbs; Food: diabetic dry", 0.8, ""),
        ("Which dog is diabetic?", "Rex is a dog and diabetic.", 0.5, ""),
        ("Which hotel did we stay at in Whitby?", LUNCH.text, 0.6, "hotel stay"),
        ("What was the income in July 2023?", "To pay by 14 July 2023: 5,600", 0.6, "income"),
        ("Who treated Pepper in May?", "Pepper was bitten by Bruno in May.", 0.6, "treated"),
        ("How far are we towed for nothing?", "Towing is free up to 60 km.", 0.5, ""),
        ("What did Ana get as a farewell?", "Ana left because of the noise.", 0.5, ""),
    ],
)
def test_an_answer_is_doubted_if_its_text_lacks_half_the_question(
    question: str, quote: str, support: float, missing: str
) -> None:
    said = doubts.lacking(question, quote, quote, Place(f"{quote}\nMore of it.", "", 0), support)
    assert said == tuple(missing.split())


def test_a_unit_that_is_left_out_is_named() -> None:
    quote = "Notice: the tenant gives one month, the landlord two."
    assert "“two” is of months" in doubts.unit_meant("How long is the notice for the landlord?", "two", quote)
    assert doubts.unit_meant("How long is the notice for the tenant?", "one month", quote) == ""
    assert doubts.unit_meant("How long is it let?", "two", "It is let for two years.") == ""


@pytest.mark.parametrize(
    ("question", "answer", "is_said"),
    [
        ("Which clients have we had?", "the Diocese of Bruton", True),
        ("Which clients have we had?", "the Diocese of Bruton and Ana Lind", False),
        ("What colours were the doors?", "red, green", False),
        ("Which bus do we take?", "the 14", False),
        ("Which client was the first?", "the Diocese", False),
    ],
)
def test_one_of_several_is_said_to_be_one(question: str, answer: str, is_said: bool) -> None:
    assert bool(doubts.one_of_several(question, answer)) is is_said


PAPERS = {
    "club/lease 2018.md": "# Lease of 4 May 2018\n\nSigned for the club by Marten Voss, President.\n",
    "club/minutes 2023.md": "# Meeting, 14 October 2023\n\n- President: Marten Voss (re-elected)\n"
    "- Treasurer: Ilse Brandow\n",
    "club/minutes 2025.md": (
        "# Meeting, 11 October 2025\n\nMarten Voss retired. Sofie Lund was elected president with 21 votes; Otto Falk"
        " had 12. Pavel Kiss was elected treasurer and stays boatman.\n"
    ),
    "council/letter 2026.md": "# Letter of 3 February 2026\n\nOur chairwoman is Dora Finch.\n",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = _index(tmp_path_factory.mktemp("papers"), PAPERS)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("question", "said", "file", "holder"),
    [
        ("Who is the president of the club now?", "Marten Voss", "club/lease 2018.md", "Sofie Lund"),
        ("Who is the president?", "Marten Voss", "club/minutes 2023.md", "Sofie Lund"),
        ("Who is the president?", "Sofie Lund", "club/minutes 2025.md", None),
        ("Who is the treasurer of the club?", "Ilse Brandow", "club/minutes 2023.md", "Pavel Kiss"),
        ("Who is the boatman?", "Ilse Brandow", "club/minutes 2023.md", "Pavel Kiss"),
        ("Who was the president in 2023?", "Marten Voss", "club/minutes 2023.md", None),
        ("Who is the chairwoman?", "Ilse Brandow", "club/minutes 2023.md", "Dora Finch"),
        ("Who is the secretary?", "Marten Voss", "club/minutes 2023.md", None),
        ("Who is the chair of the rowing team?", "Marten Voss", "club/minutes 2023.md", None),
    ],
)
def test_the_newest_paper_says_who_holds_an_office(
    store: Store, question: str, said: str, file: str, holder: str | None
) -> None:
    path = next(row.path for row in store.documents(None) if str(row.path).endswith(file))
    cited = Citation(1, path, Location(), said)
    answer = Answer(
        question=question, text=said, found=True, citations=(cited,), dropped_quotes=(), sources=(),
        timings=Timings(()), warm_chunks=0, cold_chunks=0, mode=AnswerMode.CACHED, model="", raw="",
    )  # fmt: skip
    newer = newer_holder(store, answer, question, ())
    assert (newer and newer.name) == holder
