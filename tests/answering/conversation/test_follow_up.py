"""Follow-ups made to stand alone: pronouns, left-out words, and questions that lean on nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from desk_rag.answering.conversation import vocabulary
from desk_rag.answering.conversation.follow_up import stand_alone
from desk_rag.answering.conversation.turns import Turn

DISHWASHER = vocabulary.stems(vocabulary.content_words("The dishwasher was repaired. The repair cost 140 euros."))


def turn(question: str, answer: str = "", *, heading: str = "") -> Turn:
    """A turn whose question stood alone."""
    return Turn(question, question, answer, bool(answer), headings=(heading,) if heading else ())


@pytest.mark.parametrize(
    ("before", "answer", "question", "alone"),
    [
        ("When was the dishwasher repaired?", "3 May", "And who repaired it?", "Who repaired the dishwasher?"),
        ("Who repaired the dishwasher?", "Jonas Weil", "What is his number?", "What is Jonas Weil's number?"),
        ("Who repaired the dishwasher?", "Jonas Weil", "And how can I reach him?", "How can I reach Jonas Weil?"),
        ("Who painted the kitchen?", "Petra and Tom", "Where do they live?", "Where do Petra and Tom live?"),
        ("When does Anna's contract end?", "3 May", "And how much does she earn?", "How much does Anna earn?"),
        ("Which ferry goes to Lindo?", "Aurora", "When does it leave?", "When does the ferry Aurora leave?"),
        ("When was the boiler bought?", "3 May", "When does its warranty end?",
         "When does the boiler's warranty end?"),
        ("Where does the choir rehearse?", "St Mary's hall", "Is there parking there?",
         "Is there parking at St Mary's hall?"),
        ("What did the music stand cost?", "50", "What colour is it?", "What colour is the music stand?"),
        ("What is the frame number of the red bicycle?", "WX 20", "What did that one cost?",
         "What did the red bicycle cost?"),
        ("By whom was the pump replaced?", "Weil", "How much was that?", "How much was having the pump replaced?"),
        ("Who repaired the dishwasher?", "Weil", "When was that?", "When was the dishwasher repaired?"),
    ],
)  # fmt: skip
def test_pronouns_get_what_they_stand_for(before: str, answer: str, question: str, alone: str) -> None:
    assert stand_alone(question, [turn(before, answer)]) == alone


@pytest.mark.parametrize(
    ("before", "answer", "question", "alone"),
    [
        ("How much did the panels cost in 2025?", "807", "And in 2024?", "How much did the panels cost in 2024?"),
        ("How much did the panels cost in 2025?", "807", "And the year before?",
         "How much did the panels cost in 2024?"),
        ("When is the open day in May?", "3 May", "In June?", "When is the open day in June?"),
        ("When is the first rehearsal of the choir?", "3 May", "What about the second one?",
         "When is the second rehearsal of the choir?"),
        ("Who painted the bathroom?", "Jan Hill", "And the kitchen?", "Who painted the kitchen?"),
        ("What colour are the doors?", "green", "And the roof?", "What colour is the roof?"),
        ("How old is the roof?", "2 years", "And the doors?", "How old are the doors?"),
        ("What is the width of the gate?", "2 m", "And of the shed door?", "What is the width of the shed door?"),
        ("When is the spring concert of the choir?", "24 April", "And the autumn concert?",
         "When is the autumn concert of the choir?"),
        ("When does Anna's contract end?", "3 May", "And Tom's?", "When does Tom's contract end?"),
        ("When was the boiler bought?", "3 May", "And the price?", "What is the price of the boiler?"),
        ("When was the boiler bought?", "3 May", "By whom?", "By whom was the boiler bought?"),
        ("Who planted the pear tree?", "Petra", "When?", "When was the pear tree planted?"),
        ("Who built the Heron?", "Tamm", "And in which year?", "In which year was the Heron built?"),
        ("What was replaced on the engine?", "the propeller", "By whom?",
         "By whom was the propeller replaced on the engine?"),
    ],
)  # fmt: skip
def test_fragments_get_the_rest_of_the_last_question(before: str, answer: str, question: str, alone: str) -> None:
    assert stand_alone(question, [turn(before, answer)]) == alone


def test_short_question_leans_on_the_last_one_only_if_its_document_uses_the_words() -> None:
    last = turn("When was the dishwasher repaired?", "3 May")
    assert stand_alone("How much did the repair cost?", [last], DISHWASHER) == (
        "How much did the repair of the dishwasher cost?"
    )
    assert stand_alone("How old is the piano?", [last], DISHWASHER) == "How old is the piano?"


def test_property_is_no_topic_but_what_it_belongs_to_is() -> None:
    turns = [
        turn("Who serviced the boiler last?", "Mirjam Holt", heading="Boiler"),
        turn("What is Mirjam Holt's phone number?", "0171 555", heading="Boiler"),
    ]
    assert stand_alone("And what does it cost?", turns) == "What does the boiler cost?"


@pytest.mark.parametrize(
    "question",
    [
        "How much is the rent of the flat in Mill Lane?",
        "Where did the plumber leave his tools?",
        "How long does it take to boil an egg?",
        "Is there a lift in the town hall?",
        "Which firm was it that repaired the roof of St Mary's?",
        "boiler warranty",
        "When does Anna get her passport?",
        "",
        "???",
    ],
)
def test_what_stands_alone_stays(question: str) -> None:
    assert stand_alone(question, [turn("When was the dishwasher repaired?", "3 May")]) == question or "it" in question


@pytest.mark.parametrize(
    ("question", "alone"),
    [
        ("who is present?", "who is present?"),
        ("Who signed it?", "Who signed it?"),
        ("What is her phone number?", "What is Mirjam Holt's phone number?"),
        ("And in 2024?", "When was the boiler serviced by Mirjam Holt in 2024?"),
    ],
)
def test_a_whole_question_that_names_its_file_is_about_that_file(question: str, alone: str) -> None:
    turns = [turn("When was the boiler serviced by Mirjam Holt?", "3 May", heading="Boiler")]
    said = frozenset({"present", "boiler"})
    assert stand_alone(question, turns, said, in_named_file=lambda name: name == "Mirjam Holt") == alone


def test_a_file_that_does_not_name_the_last_person_is_asked_without_them() -> None:
    turns = [turn("Who keeps the spare key?", "Ines Vale")]
    question = "how long does she need the ladder?"
    assert stand_alone(question, turns, in_named_file=lambda _name: False) == question
    assert stand_alone(question, turns, in_named_file=lambda _name: True) == "How long does Ines Vale need the ladder?"


@pytest.mark.parametrize(
    ("before", "answer", "question", "alone"),
    [
        ("What is missing on the Corsa?", "a tyre", "What was said about it?", "What was said about the Corsa?"),
        ("What is broken about the mower?", "the belt", "What does it cost?", "What does the mower cost?"),
        ("What is special about the Tern?", "it folds", "Who rides it?", "Who rides the Tern?"),
        ("Who does the soil analysis?", "Brook Labs", "When is it due?", "When is the soil analysis due?"),
        ("When will the hedge work end?", "in May", "Who pays for it?", "Who pays for the hedge work?"),
        ("What does Milo the Beagle eat at noon?", "rice", "Who is his owner?", "Who is Milo the Beagle's owner?"),
        ("Where does Anna the treasurer live?", "Elm Road", "Is she ill?", "Is Anna the treasurer ill?"),
    ],
)  # fmt: skip
def test_the_thing_is_not_what_is_said_of_it_and_keeps_all_its_words(
    before: str, answer: str, question: str, alone: str
) -> None:
    assert stand_alone(question, [turn(before, answer)]) == alone


def test_the_new_one_is_of_the_kind_that_the_quote_names() -> None:
    asked = "What is wrong with the Corsa?"
    quoted = Turn(asked, asked, "the clutch", found=True, quotes=("3. Car: the old Corsa needs a clutch.",))
    assert stand_alone("How much is the new one?", [quoted]) == "How much is the new car?"
    plain = turn(asked, "the clutch")
    assert stand_alone("How much is the new one?", [plain]) == "How much is the new Corsa?"


@pytest.mark.parametrize(
    ("answer", "said", "question", "alone"),
    [
        ("Mrs Vera Lind", "", "Which vet does he have?", "Which vet does Milo have?"),
        ("Vera Lind", "Owner: Mrs Vera Lind", "Which vet does he have?", "Which vet does Milo have?"),
        ("Vera Lind", "Vera Lind, female, born 1950", "Which vet does he have?", "Which vet does Milo have?"),
        ("Mr Piet Lind", "", "Which vet does she have?", "Which vet does Milo have?"),
        ("Piet Lind", "Owner: Mr Piet Lind", "Which vet does he have?", "Which vet does Piet Lind have?"),
        ("Vera Lind", "Owner: Vera Lind", "Which vet does he have?", "Which vet does Vera Lind have?"),
    ],
)  # fmt: skip
def test_a_title_or_a_card_tells_for_whom_he_and_she_stand(answer: str, said: str, question: str, alone: str) -> None:
    assert stand_alone(question, [turn("Who is the owner of Milo?", answer)], texts_about=lambda _name: [said]) == alone


def test_who_was_he_before_is_not_she() -> None:
    asked = Turn("Which vet does he have?", "Which vet does Milo have?", "Dr Roe", found=True)
    turns = [turn("Who is the owner of Milo?", "Mrs Vera Lind"), asked]
    assert stand_alone("Where does his owner live?", turns) == "Where does Milo's owner live?"
    assert stand_alone("What is her phone number?", turns) == "What is Mrs Vera Lind's phone number?"


def test_first_question_stays() -> None:
    assert stand_alone("And who repaired it?", []) == "And who repaired it?"


def test_he_is_no_name_of_whom_a_quote_called_only_so() -> None:
    last = Turn("Who made the kitchen window?", "Who made the kitchen window?", "He", found=True)
    assert "He" not in stand_alone("And what does he ask?", [last]).split()


def test_refused_answer_is_never_filled_in() -> None:
    refused = Turn("Who repaired the piano?", "Who repaired the piano?", "I could not find that.", found=False)
    assert "could not" not in stand_alone("What is his number?", [refused])


@given(st.text(max_size=80), st.text(max_size=80), st.text(max_size=40))
def test_any_text_gives_one_line_of_question(question: str, before: str, answer: str) -> None:
    last = Turn(before, before, answer, found=True, paths=(Path("a"),), headings=(answer,))
    alone = stand_alone(question, [last])
    assert alone == question or (alone.endswith("?") and "\n" not in alone)


@pytest.mark.parametrize(
    ("before", "question", "alone"),
    [
        ("What is the deposit of Elm Road 22?", "And for Mill Quay 7?", "What is the deposit of Mill Quay 7?"),
        ("When does the lease of Elm Road 22 end?", "What about Mill Quay 7?",
         "When does the lease of Mill Quay 7 end?"),
        ("What is the monthly rent for Mill Quay 7?", "Who is the landlord there?",
         "Who is the landlord at Mill Quay 7?"),
        ("Which cellar belongs to Elm Road 22?", "And which to Mill Quay 7?", "Which cellar belongs to Mill Quay 7?"),
        ("How much was the deposit of Elm Road 22?", "And for the flat in Mill Quay?",
         "How much was the deposit of the flat in Mill Quay?"),
        ("What is on shelf 5?", "and 11?", "What is on shelf 11?"),
        ("What is the rent of the Lantern room?", "And of the Anchor room?", "What is the rent of the Anchor room?"),
    ],
)  # fmt: skip
def test_a_name_or_number_takes_the_place_of_the_last_one(before: str, question: str, alone: str) -> None:
    assert stand_alone(question, [turn(before, "x")]) == alone


@pytest.mark.parametrize(
    ("before", "question", "alone"),
    [
        ("Who chaired the meeting in February 2024?", "And in May?", "Who chaired the meeting in May 2024?"),
        ("Who chaired the meeting on 6 February 2024?", "And in May?", "Who chaired the meeting in May 2024?"),
        ("How much gas did we use in April 2023?", "And in May 2024?", "How much gas did we use in May 2024?"),
        ("When is high water on 12 July 2025?", "And on the 13th?", "When is high water on 13 July 2025?"),
        ("What was the electricity in January 2024?", "and the heating?", "What was the heating in January 2024?"),
        ("What was the electricity in January 2024?", "What about the heating then?",
         "What was the heating in January 2024?"),
    ],
)  # fmt: skip
def test_the_parts_of_a_date_that_are_not_named_again_stay(before: str, question: str, alone: str) -> None:
    assert stand_alone(question, [turn(before, "x")]) == alone


def test_a_person_is_the_answer_to_who_also_two_questions_ago() -> None:
    earlier = [turn("Who replaced the chain of the bicycle?", "Tobias Ahrens"), turn("When was that?", "14 July 2025")]
    assert stand_alone("And what is his number?", earlier) == "What is Tobias Ahrens's number?"


@pytest.mark.parametrize(
    ("before", "question", "alone"),
    [
        ("Which invoices are unpaid?", "What is the total?", "What is the total of the invoices that are unpaid?"),
        ("List all invoices of Kessler", "and the sum of them?", "What is the sum of the invoices of Kessler?"),
        ("Which letters did I write in 2024?", "How many are there?", "How many letters in 2024?"),
        ("Which invoices of 2023 are unpaid?", "And those of 2024?", "Which invoices of 2024 are unpaid?"),
        ("How many invoices of Kessler are paid?", "And those of Bright Paper?",
         "How many invoices of Bright Paper are paid?"),
        ("Which invoices are unpaid?", "Which of them is the oldest?",
         "Which is the oldest of the invoices that are unpaid?"),
        ("Which invoice is the highest?", "And the lowest?", "Which is the lowest of the invoices?"),
        (
            "Which invoices did we send to the Abbey?",
            "Which of them are unpaid?",
            "Which invoices to the Abbey are unpaid?",
        ),
        (
            "Which invoices of 2024 are unpaid?",
            "Which of those are over 500 euros?",
            "Which invoices of 2024 that are unpaid and over 500 euros?",
        ),
        ("When was the boiler bought?", "What is the total?", "What is the total?"),
    ],
)  # fmt: skip
def test_a_follow_up_keeps_what_a_list_was_limited_to(before: str, question: str, alone: str) -> None:
    assert stand_alone(question, [turn(before, "x")]) == alone


def test_there_is_the_project_whose_file_was_quoted() -> None:
    path = Path("/desk/projects/old-mill/minutes-2024-04-16.md")
    last = Turn("", "Which windows did the owners choose?", "the Danish ones", found=True, paths=(path,),
                headings=("Site minutes no. 3, Old Mill, 16 April 2024",))  # fmt: skip
    assert stand_alone("And who is the electrician there?", [last]) == "Who is the electrician at Old Mill?"


def test_it_is_the_thing_that_was_asked_about_and_not_a_person_that_was_the_answer() -> None:
    turns = [
        turn("Who wrote the bat survey?", "Martha Hollins"),
        Turn("", "What is Martha Hollins's phone number?", "I could not find that.", found=False),
    ]
    assert stand_alone("Is it still valid?", turns) == "Is the bat survey still valid?"


@pytest.mark.parametrize(
    ("before", "question", "alone"),
    [
        ("Is Gerald still a driver?", "And the excess in 2024?", "What is the excess of the car insurance in 2024?"),
        ("Is Gerald still a driver?", "And his phone number?", "What is Gerald's phone number?"),
        ("Is Anna the treasurer?", "And the phone number?", "What is the phone number of Anna?"),
        ("Is the lease still valid?", "And the rent?", "What is the rent of the lease?"),
        ("Does the lease allow pets?", "And the deposit?", "What is the deposit of the lease?"),
        ("Is the damp in the bedroom gone?", "and how much is it for oak?",
         "How much is flooring for oak?"),
    ],
)  # fmt: skip
def test_what_is_said_of_somebody_is_no_topic_and_an_earlier_one_comes_back(
    before: str, question: str, alone: str
) -> None:
    turns = [
        turn("How much is flooring in larch?", "40 euros"),
        turn("What was the car insurance premium in 2024?", "£512.40"),
        turn("What was the car insurance premium in 2026?", "£531.75"),
        turn(before, "yes"),
    ]
    assert stand_alone(question, turns) == alone


CHAIR = turn("Who is the chair of the parents committee?", "Anna Lindqvist")
BEFORE_HER = "Who was the chair of the parents committee before Anna Lindqvist?"
NORA = turn("When does Nora go to Porto?", "9 February")


@pytest.mark.parametrize(
    ("before", "question", "alone"),
    [
        ([CHAIR], "Who was it before her?", BEFORE_HER),
        ([turn("Who conducts the choir?", "Clara Roe")], "Who was it before her?",
         "Who was it that conducts the choir before Clara Roe?"),
        ([CHAIR, turn(BEFORE_HER, "Bernard Moss")], "Where did he move?", "Where did Bernard Moss move?"),
        ([CHAIR, turn(BEFORE_HER, "Judith Okafor")], "Where did he move?",
         "Where did the chair of the parents committee before Anna Lindqvist move?"),
        ([turn("Did Tom call Anna?", "yes")], "What is her number?", "What is Anna's number?"),
        ([turn("Did Rook call Anna?", "yes")], "What is her number?", "What is Anna's number?"),
        ([turn("Did Mrs Rook call Tom?", "yes")], "What is his number?", "What is Tom's number?"),
        ([turn("Who is the owner of Rufus?", "Mrs Gray")], "And which vet does he use?", "Which vet does Rufus use?"),
    ],
)  # fmt: skip
def test_he_and_she_agree_with_a_given_name_or_stand_for_whom_the_question_describes(
    before: list[Turn], question: str, alone: str
) -> None:
    assert stand_alone(question, before) == alone


@pytest.mark.parametrize(
    ("refused", "question", "alone"),
    [
        ("what did Harker quote first, and what later?", "And how long is his guarantee?",
         "How long is Harker's guarantee?"),
        ("Who repaired the boiler in 2022?", "What is her phone number?",
         "What is her phone number (repaired the boiler in 2022)?"),
    ],
)  # fmt: skip
def test_a_refused_question_counts_and_nobody_of_an_earlier_one_takes_its_place(
    refused: str, question: str, alone: str
) -> None:
    assert stand_alone(question, [NORA, turn(refused)]) == alone


def test_words_in_brackets_are_whole_phrases_for_the_next_question() -> None:
    asked = "What is her phone number (serviced the boiler last)?"
    assert stand_alone("And what does it cost?", [turn("Who serviced the boiler last?"), turn(asked)]) == (
        "What does the boiler cost?"
    )


@pytest.mark.parametrize(
    ("before", "question", "alone"),
    [
        (
            "Who is Nora going to stay with in Porto?",
            "How much is it?",
            "How much is it (Nora going to stay with in Porto)?",
        ),
        ("Who is Nora staying with?", "What does it cost?", "What does it cost (Nora staying with)?"),
        ("Where does Mrs Gray live?", "Is it insured?", "Is it insured (Mrs Gray live)?"),
        ("When was Nora's clarinet bought?", "What did it cost?", "What did Nora's clarinet cost?"),
        ("When was the Heron built?", "What did it cost?", "What did the Heron cost?"),
    ],
)
def test_it_is_never_a_person(before: str, question: str, alone: str) -> None:
    assert stand_alone(question, [turn(before, "9 February")]) == alone


@pytest.mark.parametrize("pronoun", ["He", "she", "Them"])
def test_a_pronoun_is_no_answer_to_take_up(pronoun: str) -> None:
    last = turn("Who made the kitchen window?", pronoun)
    assert stand_alone("Which wood did he take?", [last]) == "Which wood did he take (made the kitchen window)?"
    assert stand_alone("What does he ask for it?", [last]) == "What does he ask for the kitchen window?"


def test_another_customer_takes_the_place_of_the_customer_and_not_of_i() -> None:
    last = turn("What did I invoice Brockhurst in 2025?", "100")
    assert stand_alone("and Pelican Pharma?", [last]) == "What did I invoice Pelican Pharma in 2025?"


def test_a_time_without_a_date_is_added_and_leaves_the_place_the_topic() -> None:
    rent = turn("What is the rent per evening at Mill Road?", "38 pounds")
    alone = stand_alone("And on concert days?", [rent])
    assert alone == "What is the rent per evening at Mill Road on concert days?"
    agreement = "Who signed the agreement of Mill Road?"
    assert stand_alone("Who signed that agreement?", [rent, turn(alone, "95 pounds")]) == agreement


@pytest.mark.parametrize(
    ("before", "question", "alone"),
    [
        ("Who skippers the boat Heron?", "What is her registration number?",
         "What is the boat Heron's registration number?"),
        ("What is Biscuit allergic to?", "How heavy is he?", "How heavy is Biscuit?"),
    ],
)  # fmt: skip
def test_a_boat_and_a_dog_are_he_and_she_too(before: str, question: str, alone: str) -> None:
    assert stand_alone(question, [turn(before)]) == alone
