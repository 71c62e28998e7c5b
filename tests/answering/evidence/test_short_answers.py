"""A short answer is the whole value that the chosen span is part of, and nothing but that."""

from __future__ import annotations

import pytest

from desk_rag.answering.evidence.short_answers import ShortAnswers, is_unasked_code

DENTIST = "Dentist Dr Pascoe: 28 November 2024 14:00 to 15:00; Place: 4 Abbey Street"


@pytest.mark.parametrize(
    ("question", "sentence", "span", "expected"),
    [
        ("When is my dentist appointment?", DENTIST, "15:00", "28 November 2024 14:00 to 15:00"),
        ("When does the appointment start?", DENTIST, "15:00", "28 November 2024 14:00"),
        ("When is the appointment over?", DENTIST, "28 November 2024 14:00 to 15:00", "15:00"),
        ("Where is my dentist?", DENTIST, "4 Abbey Street", "4 Abbey Street"),
        ("What was charged?", "2. Door D3 sticks (Gus)", "2", None),
        ("What did the plumber charge for the tap?", "2. [ ] Door D3 sticks at the bottom (Gus)", "2.", None),
        ("What does the electrician charge?", "- 2.4 The electrician charges £11,870.", "2.4", None),
        ("What was charged?", "3. Étienne came.", "3.", None),
        ("What sticks?", "2. Door D3 sticks (Gus)", "2. Door D3", "Door D3"),
        ("When does it open?", "It opens from 15.30 to 17.30.", "from 15", "from 15.30"),
        ("What is the fee?", "It is one hundred and five pounds.", "five pounds", "one hundred and five pounds"),
        ("How much did we pay?", "We paid half of the fee of 78 pounds.", "78 pounds", "half of the fee of 78 pounds"),
        ("How much is the fee?", "We paid half of the fee of 78 pounds.", "78 pounds", "78 pounds"),
        ("How long is it?", "2.4 m is the length of it.", "2.4 m", "2.4 m"),
        ("When can it be loaded?", "It arrives not before 15 May.", "before 15 May", "not before 15 May"),
        (
            "When can it go?",
            "It cannot go before noon, which is late.",
            "before noon",
            "cannot go before noon, which is late",
        ),
        ("When is it open?", "It is not open on Mondays.", "Mondays", "is not open on Mondays"),
        ("When is it not open?", "It is not open on Mondays.", "Mondays", "Mondays"),
        ("When does it open?", "It does not open until 10:00.", "10:00", "10:00"),
        ("When is the visit?", "ultramarine not prussian visit 14 April", "14 April", "14 April"),
        ("When is he free?", "Any afternoon but Thursday.", "Thursday", "Any afternoon but Thursday"),
        ("When is it open?", "It is closed on Sundays.", "Sundays", "is closed on Sundays"),
        ("When is it closed?", "It is closed on Sundays.", "Sundays", "Sundays"),
        ("Until when is it covered?", "Cover from 14 June 2024 to 13 June 2025", "14 June 2024", "13 June 2025"),
        ("Since when is it covered?", "Cover from 14 June 2024 to 13 June 2025", "13 June 2025", "14 June 2024"),
        ("When is it covered?", "Cover from 14 June 2024 to 13 June 2025", "14 June 2024", "14 June 2024"),
        ("Who came?", "Ben did not come with Ana.", "Ana", "Ana"),
        ("What was it last year?", "It is 20 (last year: 19).", "19)", "19"),
        ("What is said of it?", "It is £3,540 and is held by a bank.", "£3,540 and is held", "£3,540 and is held"),
        ("What is the deposit?", "It is £3,540 and is held by a bank.", "£3,540 and is held", "£3,540"),
        ("How much is the deposit?", "It is £3,540 and is held by a bank.", "£3,540 and is held", "£3,540"),
    ],
)
def test_the_whole_value(question: str, sentence: str, span: str, expected: str | None) -> None:
    begin = sentence.index(span)
    whole = ShortAnswers(question, sentence).whole(begin, begin + len(span))
    assert (sentence[slice(*whole)] if whole else None) == expected


_BANK = "Payable within 30 days to Severn & Wye Bank, sort code 30-11-87, account 00482915."
_MINUTE = "- 2.4 The electrician charges £11,870 with the charger."


@pytest.mark.parametrize(
    ("question", "words", "quote", "unasked"),
    [
        ("What does the electrician charge?", "£11,870", _MINUTE, False),
        ("Has the invoice been paid?", "30-11-87", _BANK, True),
        ("What do we owe?", "00482915", _BANK, True),
        ("What is the sort code?", "30-11-87", _BANK, False),
        ("Into which account is it paid?", "00482915", _BANK, False),
        ("When is it payable?", "30 days", _BANK, False),
        ("Is the plumber coming?", "01632 960 114", "Gus, 01632 960 114, comes on Friday.", True),
        ("How can I reach Gus?", "01632 960 114", "Gus, 01632 960 114, comes on Friday.", False),
        ("How high is the door?", "2.4", "2.4 m is the height of the door.", False),
        ("Has it been paid?", "2024-04-15", "Status: PAID on 2024-04-15", False),
        ("How many chairs?", "12", "12 Chairs of oak", False),
    ],
)
def test_a_code_is_told_from_an_answer(question: str, words: str, quote: str, unasked: bool) -> None:
    assert is_unasked_code(question, words, quote) is unasked


@pytest.mark.parametrize(
    ("question", "sentence", "span", "expected"),
    [
        ("Wann wurde der Vertrag geschlossen?", "Er wurde am 3. Mai 2024 geschlossen.", "3", ""),
        ("Quel est le loyer mensuel ?", "Le loyer est de 1 234,56 € par mois.", "1 234,56", ""),
        ("¿Cuándo se firmó el contrato?", "Se firmó el 3 de mayo de 2024.", "3 de mayo de 2024", "3 de mayo de 2024"),
        ("How high is the rent?", "Die Miete beträgt 1.234,56 EUR im Monat.", "1.234,56", "1.234,56"),
    ],
)
def test_a_bare_number_of_another_language_is_shown_with_its_sentence(
    question: str, sentence: str, span: str, expected: str
) -> None:
    begin = sentence.index(span)
    whole = ShortAnswers(question, sentence).whole(begin, begin + len(span))
    assert whole is not None and sentence[slice(*whole)] == (expected or sentence)
