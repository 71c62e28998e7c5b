"""A pottery's and a family's papers: prices, the last of several days, whole lists, relatives, letters and reasons."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from desk_rag.answering.conversation import asking
from desk_rag.answering.conversation.turns import Request, turn_of
from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import Answer, Finished
from tests.answering.whole_desk.test_questions import engine_over_texts, printed

_FILES = {
    "shop/price list 2025.txt": (
        "GULLWING POTTERY - PRICES FROM MARCH 2025\n\nEvening course (six evenings, clay included)     168 pounds\n"
        "Morning at the wheel                 45 pounds\nStoneware clay, bag of 12.5 kg      14.50 pounds\n"
    ),
    "shop/bookings 2025.csv": (
        "date,name,what,persons,paid (pounds)\n2025-03-22,Lindley,evening course,1,150.00\n"
        "2025-04-05,Brandt,morning at the wheel,2,90.00\n2025-05-10,Sato,evening course,2,320.00\n"
    ),
    "shop/kiln log.txt": (
        "Kiln log\n\n12 March 2024\nInspection by Mr Dabney. Elements fine.\n\n3 February 2025\nService by Vulcan"
        " Kilns: thermocouple replaced, because it read forty degrees too low.\n\n17 June 2025\nInspection by Ms Orrin."
        " No faults.\n\n2 July 2025\nBisque firing, shelf three cracked.\n"
    ),
    "shop/minutes 2024-10-05.txt": (
        "Minutes, 5 October 2024\n\nPresent: Maren Holt, Dilys Rowe, Ansel Pike.\n1. The kiln was inspected on 30"
        " September; the seal is new.\n2. The evening course moves from Tuesday to Thursday, because Dilys sings in the"
        " choir on Tuesdays.\n3. The Saturday market was given up. Too few visitors came after the bridge was closed.\n"
    ),
    "shop/glazes.md": (
        "# Glazes\n\n## Celadon\n\nMade of cornish stone, whiting, quartz and a little iron oxide. It is fired to 1,280"
        " degrees.\n"
    ),
    "shop/firings.txt": (
        "Firings\n\nEarthenware was fired on 3 May 2025. Raku was first fired on 1 July 2025, and last fired on"
        " 5 August 2025.\n"
    ),
    "people/students.md": (
        "# Students\n\n## Priya Nand\n\nComes on Thursdays. Allergic to latex and wool.\n\n## Frances Adair\n\nComes on"
        " Saturdays. She cannot eat nuts or shellfish.\n"
    ),
    "people/cat.txt": "Cat\n\n2024-06-12 vaccination, weight 4.1 kg\n2025-06-18 vaccination, weight 4.8 kg\n",
    "family/my family.md": (
        "# My family\n\nMy father Edmund Holt was born on 4 May 1931 and died on 19 November 1998 in York.\n\nMy mother"
        " Agnes Holt was born on 2 August 1935. She died on 7 January 2011.\n"
    ),
    "family/letters/1974-03-02 Agnes to Ruth.txt": (
        "York, 2 March 1974\n\nDear Ruth,\n\nEdmund has sold the boat. Maren has the measles and asks for you. I have a"
        " new hat.\n\nYour sister\nAgnes\n"
    ),
    "family/letters/1974-03-20 Ruth to Agnes.txt": (
        "Leeds, 20 March 1974\n\nDear Agnes,\n\nI was sorry to hear of the boat. I have a new post at the library in"
        " Headingley. I am sending Maren a box of paints.\n\nWith love\nRuth\n"
    ),
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerEngine]:
    opened = engine_over_texts(tmp_path_factory.mktemp("pottery"), _FILES)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What does an evening course cost?", "168 pounds"),
        ("How much is the evening course?", "168 pounds"),
        ("What is the price of an evening course?", "168 pounds"),
        ("How much is a bag of clay?", "14.50 pounds"),
        ("What is Priya allergic to?", "latex and wool"),
        ("What can Frances not eat?", "nuts or shellfish"),
        ("What is celadon made of?", "cornish stone, whiting, quartz and a little iron oxide"),
        ("Who was present on 5 October 2024?", "Maren Holt, Dilys Rowe, Ansel Pike"),
        ("When did my father die?", "19 November 1998"),
        ("When did my mother die?", "7 January 2011"),
        ("When was my mother born?", "2 August 1935"),
        ("Why did the evening course move to Thursday?", "because Dilys sings in the choir on Tuesdays"),
        ("Why was the thermocouple replaced?", "because it read forty degrees too low"),
        ("Why was the Saturday market given up?", "Too few visitors came after the bridge was closed"),
    ],
)
def test_the_answer_is_whole_and_of_the_thing_asked_about(engine: AnswerEngine, question: str, answer: str) -> None:
    lines = printed(engine, question).splitlines()
    assert answer in lines, lines


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("When was the last inspection of the kiln?", "17 June 2025 (the last of 3 days"),
        ("When was the kiln last inspected?", "17 June 2025 (the last of 3 days"),
        ("What was the date of the kiln's latest inspection?", "17 June 2025 (the last of 3 days"),
        ("When was the first inspection of the kiln?", "12 March 2024 (the first of 3 days"),
        ("Who did the last inspection of the kiln?", "Ms Orrin (17 June 2025, the last of"),
        ("Who inspected the kiln last?", "Ms Orrin (17 June 2025, the last of"),
        ("When was raku last fired?", "5 August 2025 (the last of 2 days"),
        ("How much did the cat weigh last?", "4.8 kg (18 June 2025, the last of 2 days"),
    ],
)
def test_last_is_the_latest_of_all_days_and_not_the_nearest_sentence(
    engine: AnswerEngine, question: str, answer: str
) -> None:
    lines = printed(engine, question).splitlines()
    assert any(line.startswith(answer) for line in lines), lines


@pytest.mark.parametrize(
    ("question", "says", "other"),
    [
        ("What did Ruth write to Agnes about her new post?", "library in Headingley", "hat"),
        ("What does Ruth say to Agnes about the boat?", "sorry to hear of the boat", "sold the boat"),
        ("What did Agnes write to Ruth about the boat?", "Edmund has sold the boat.", "sorry"),
    ],
)
def test_a_letter_is_from_one_and_to_the_other(engine: AnswerEngine, question: str, says: str, other: str) -> None:
    text = printed(engine, question)
    assert says in text and other not in text, text


@pytest.mark.parametrize(
    "question", ["Why did shelf three crack?", "For what reason did shelf three crack?", "Why has shelf three cracked?"]
)
def test_that_it_was_so_is_no_reason(engine: AnswerEngine, question: str) -> None:
    text = printed(engine, question)
    assert "could not find" in text or "read it before you rely on it" in text


@pytest.mark.parametrize(
    ("questions", "asked_as", "answer"),
    [
        (("When was the thermocouple replaced?", "And who did it?"), "By whom was the thermocouple replaced?", ""),
        (("Who replaced the thermocouple?", "When was that?"), "When was the thermocouple replaced?", "3 Febr"),
        (("When was the thermocouple replaced?", "How much was the bill?"), "of the thermocouple?", ""),
    ],
)
def test_a_deed_is_carried_over(engine: AnswerEngine, questions: tuple[str, str], asked_as: str, answer: str) -> None:
    first = _asked(engine, Request(questions[0]))
    second = _asked(engine, Request(questions[1], earlier=(turn_of(first),)))
    assert second.asked_as.endswith(asked_as)
    assert second.text.startswith(answer)


def _asked(engine: AnswerEngine, request: Request) -> Answer:
    *_, last = asking.ask(engine, request)
    assert isinstance(last, Finished)
    return last.answer
