"""Quotes that are only a part of the total that a question asks for."""

from __future__ import annotations

import pytest

from desk_rag.answering.requirements.amounts import not_the_sum

_PART = "The question asks for a total, and the quote may be only one part of it"


@pytest.mark.parametrize(
    ("question", "quote", "reason"),
    [
        ("What did we spend on milk in total?", "date: 2025-01-02; shop: Mole; milk: 3.10", _PART),
        ("What is the total of the two premiums?", "The two premiums come to £90.", ""),
        ("What is the total of the budget?", "item: Total; net: 80; gross: 90", ""),
        ("How many pages are there in total?", "The book has 312 pages.", ""),
    ],
)
def test_a_part_is_no_sum(question: str, quote: str, reason: str) -> None:
    assert not_the_sum(question, quote) == reason
