"""The short answer takes the value that is asked for where a sentence holds two."""

from __future__ import annotations

import pytest

from desk_rag.answering.evidence.two_values import ValuePreference

LEVY = "The levy for the use of the water rises from 310 to 345 crowns a year as of 2026."
BILL = "My bill comes to 5,180 crowns instead of the 4,900 I had estimated, the slates were dearer."
PREMIUM = "The premium for the coming year is GBP 2,184.00 (last year: GBP 1,975.00)."
PRESENT = "Present: Gus Lindholm (carpenter), Ana Ruiz (structural engineer)"
BOILER = "The boiler was bought in 2016 and overhauled in 2023 by Lowe."
SAILS = 'SAILS = {"jib": (4.2, 1.8), "main": (7.5, 3.1), "spinnaker": (9.0, 5.5)}'


SHEDS = "Sheds may not be larger than 1.8 by 2.4 metres nor higher than 2.2 metres."
PRICES = "Prices 2025: large dog 32.50, medium 27.50, small 24.00; cats unchanged."
JARS = "The honey: 31 jars from Ceres, 18 from Vesta, none from Juno."


@pytest.mark.parametrize(
    ("question", "sentence", "value"),
    [
        ("What is the levy before 2026?", LEVY, "310"),
        ("What will the levy be?", LEVY, "345 crowns a year as of 2026"),
        ("What did Tomas originally estimate?", BILL, "the 4,900 I had estimated"),
        ("What is the premium?", PREMIUM, "year is GBP 2,184.00 "),
        ("What was the old premium?", PREMIUM, "GBP 1,975.00"),
        ("Who is the carpenter?", PRESENT, "Gus Lindholm"),
        ("Who is the engineer?", PRESENT, "Ana Ruiz"),
        ("Who takes over the store?", "Ana Abara takes over the store from Ben.", "Ana Abara "),
        ("Who took over the store?", "The store was taken over by Ana from Ben.", None),
        ("Who laid the floor?", "New floor laid by Ana Ruiz.", None),
        ("Who takes over the store?", "In May, the store goes from Ben to Ana.", None),
        ("What is the engineer called?", PRESENT, None),
        ("Which sail is 7.5 by 3.1?", SAILS, "main"),
        ("What size is the spinnaker?", SAILS, "9.0, 5.5"),
        ("Which sails are there?", SAILS, None),
        ("Who changed the belt?", "Otto changed the belt in 2024.", "Otto "),
        ("When was the belt changed?", "Otto changed the belt in 2024.", None),
        ("What does a medium dog cost?", PRICES, "27.50"),
        ("What does a large dog cost?", PRICES, "32.50"),
        ("What does a dog cost?", PRICES, None),
        ("How high may a shed be?", SHEDS, "2.2 metres"),
        ("How wide may a shed be?", SHEDS, None),
        ("How many jars came from Juno?", JARS, "none from Juno."),
        ("How many jars came from Ceres?", JARS, "31 jars from Ceres"),
        ("How many jars came from Flora?", JARS, None),
        ("Which boiler do we have now?", "The old Baxi was replaced by a Vaillant in May.", "a Vaillant in May"),
        ("Who replaced the valve?", "The valve was replaced by Neil.", None),
    ],
)
def test_old_and_new_value(question: str, sentence: str, value: str | None) -> None:
    chosen = ValuePreference(question, sentence).value
    assert (sentence[slice(*chosen)] if chosen else None) == value


@pytest.mark.parametrize(("verb", "right", "wrong"), [("bought", "2016", "2023"), ("overhauled", "2023", "2016")])
def test_the_clause_with_the_words_of_the_question(verb: str, right: str, wrong: str) -> None:
    preference = ValuePreference(f"When was it {verb}?", BOILER)

    def nats(value: str) -> float:
        return preference.nats(BOILER.index(value), BOILER.index(value) + len(value))

    assert nats(right) > nats(wrong)


def test_what_is_denied_loses() -> None:
    sentence = "Last one out turns the red tap off, not the blue."
    preference = ValuePreference("Which tap is turned off?", sentence)
    blue, red = sentence.index("blue"), sentence.index("red")
    assert preference.nats(blue, blue + 4) < preference.nats(red, red + 3)


@pytest.mark.parametrize(
    ("word", "right", "wrong"), [("with", "£11,870", "£10,640"), ("without", "£10,640", "£11,870")]
)
def test_with_and_without(word: str, right: str, wrong: str) -> None:
    sentence = "Wiring with a car charger = £11,870 + VAT. Without the charger £10,640."
    preference = ValuePreference(f"What does the wiring {word} the charger cost?", sentence)

    def nats(value: str) -> float:
        return preference.nats(sentence.index(value), sentence.index(value) + len(value))

    assert nats(right) > nats(wrong)
