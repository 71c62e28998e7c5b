"""A sentence that says the opposite of a passage is noticed, and two negations that agree are not taken for one."""

from __future__ import annotations

import pytest

from desk_rag.answering.writing.contrasts import contradicts

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
