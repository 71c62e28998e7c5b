"""A sentence that says the opposite of a passage is noticed, and two negations that agree are not taken for one."""

from __future__ import annotations

import pytest

from desk_rag.answering.writing.contrasts import contradicts, swapped

PASSAGE = (
    "The stove was swept in March.",
    "Smoking is forbidden in the cellar.",
    "Towels are charged separately.",
    "The concert was attended by 90 people, which is 12 more than last year.",
    "Rita did not sign the form, because she was ill.",
)
TEXT = " ".join(PASSAGE)


@pytest.mark.parametrize(
    ("claim", "core"),
    [
        ("Smoking is permitted in the cellar.", 1),
        ("You may smoke in the cellar; smoking is allowed there.", 0),
        ("Rita signed the form.", 4),
        ("Fewer people came; the number was lower than last year.", 3),
        ("The stove needs no sweeping in March.", 0),  # what is negated elsewhere is another matter
    ],
)
def test_the_opposite(claim: str, core: int) -> None:
    assert contradicts(claim, PASSAGE[core], TEXT, PASSAGE)


@pytest.mark.parametrize(
    ("claim", "passage"),
    [
        ("The cellar is unlocked at night.", "The cellar is locked at night."),
        ("The keys are still missing.", "The keys were found under the bench."),
        ("The path leads uphill to the mill.", "The path leads downhill to the mill."),
    ],
)
def test_a_reversed_word(claim: str, passage: str) -> None:
    assert contradicts(claim, passage, passage, [passage])
    assert not contradicts(passage, passage, passage, [passage]) and not contradicts(claim, claim, claim, [claim])


@pytest.mark.parametrize(
    ("claim", "core"),
    [
        ("Smoking is not permitted in the cellar.", 1),
        ("The price does not include towels.", 2),
        ("Towels are not included.", 2),
        ("The form was left out by Rita since she was ill.", 4),
        ("More people came than last year.", 3),
        ("The stove was swept in March.", 0),
    ],
)
def test_what_agrees(claim: str, core: int) -> None:
    assert not contradicts(claim, PASSAGE[core], TEXT, PASSAGE)


@pytest.mark.parametrize(
    ("claim", "passage"),
    [
        ("Beans: 21 kilograms", "We had 38 kilograms of tomatoes, 21 kilograms of potatoes and 9 kilograms of beans."),
        ("Gregor Pohl took over the file from Wilma Sand.", "Ask Wilma Sand, who has taken the file from Gregor Pohl."),
        ("The bill was 4,900 instead of 5,180 crowns.", "It comes to 5,180 crowns instead of the 4,900 estimated."),
        (
            "Solveig Dahl is treasurer now.",
            "Ines Okafor is treasurer now, Leif Anders gives the chair to Solveig Dahl.",
        ),
    ],
)
def test_a_fact_in_the_place_of_another_is_noticed(claim: str, passage: str) -> None:
    assert swapped(claim, passage)


@pytest.mark.parametrize(
    ("claim", "passage"),
    [
        ("Beans: 9 kilograms", "We had 38 kilograms of tomatoes, 21 kilograms of potatoes and 9 kilograms of beans."),
        ("Wilma Sand took over the file from Gregor Pohl.", "Ask Wilma Sand, who has taken the file from Gregor Pohl."),
        ("At weekends a boat is kept for three hours.", "A boat is kept four hours on weekdays and three at weekends."),
        (
            "Class 6b travels from 11 to 15 May.",
            "From Monday 11 May to Friday 15 May class 6b goes to the island Hollsay.",
        ),
        ("Mabel Tarrant has been a member since 2011.", "Name: Mabel Tarrant; Member since: 2011; Fee: 25"),
    ],
)
def test_a_fact_in_its_own_place_is_not_doubted(claim: str, passage: str) -> None:
    assert not swapped(claim, passage)


@pytest.mark.parametrize(
    ("claim", "passage"),
    [
        ("Without a service the guarantee is void.", "The boiler must be serviced, otherwise the guarantee is void."),
        ("There is not enough pressure.", "The pressure is too low."),
        ("Larch is used, not spruce.", "Larch is used rather than spruce."),
    ],
)
def test_words_that_mean_not_agree_with_it(claim: str, passage: str) -> None:
    assert not contradicts(claim, passage, passage, (passage,))
