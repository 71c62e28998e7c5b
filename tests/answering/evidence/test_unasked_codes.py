"""Codes and phone numbers that nobody asked for are no short answers."""

from __future__ import annotations

import pytest

from desk_rag.answering.evidence.short_answers import is_unasked_code

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
