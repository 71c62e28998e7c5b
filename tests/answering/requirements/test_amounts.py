"""Answers that are not the money or the total that a question asks for."""

from __future__ import annotations

import pytest

from desk_rag.answering.requirements.amounts import not_the_sum

_PART = "The question asks for a total, and the quote may be only one part of it"


@pytest.mark.parametrize(
    ("question", "answer", "quote", "reason"),
    [
        ("How much gas did we pay for?", "4402", "date: 2025-01-01; gas_m3: 4402; cost: 12",
         "The question asks for money, and “4402” has the unit “m3”"),
        ("What does the pump cost a day?", "12 kWh", "The pump takes 12 kWh a day.",
         "The question asks for money, and “12 kWh” has the unit “kwh”"),
        ("How much did 3 l of paint cost?", "£12", "Paint: £12 for 3 l", ""),
        ("What does electricity cost?", "0.28", "year: 2025; price_per_kwh: 0.28; supplier: Severn", ""),
        ("What does electricity cost?", "28 pence per kWh", "It costs 28 pence per kWh.", ""),
        ("How much time did Ana spend on it?", "3 hours", "Ana spent 3 hours on it.", ""),
        ("How much gas was used?", "4402", "date: 2025-01-01; gas_m3: 4402; cost: 12", ""),
        ("What is the total of our three insurance premiums?", "£512.40", "Total premium: £512.40", _PART),
        ("What is the total of the two premiums?", "£90", "The two premiums come to £90.", ""),
        ("What did we spend on milk in total?", "3.10", "date: 2025-01-02; shop: Mole; milk: 3.10", _PART),
        ("What is the total of the budget?", "90", "item: Total; net: 80; gross: 90", ""),
        ("How many pages are there in total?", "312", "The book has 312 pages.", ""),
    ],
)  # fmt: skip
def test_another_number_or_a_part_is_no_sum(question: str, answer: str, quote: str, reason: str) -> None:
    assert not_the_sum(question, answer, quote) == reason
