"""Sender and recipient are told apart in questions and in the headings of mails."""

from __future__ import annotations

import pytest

from desk_rag.answering.requirements.correspondence import Correspondents, correspondents, header_of
from desk_rag.answering.requirements.places import Place


@pytest.mark.parametrize(
    ("question", "sender", "recipient"),
    [
        ("What did Ana write to Ben in May 2024?", "Ana", "Ben"),
        ("What did Ana ask Ben to sign for?", "Ana", "Ben"),
        ("what did ana tell ben", "ana", "ben"),
        ("Which mails did Ana Ruiz send to Ben?", "Ana Ruiz", "Ben"),
        ("mails from ana in may", "ana", ""),
        ("How many mails are from Ana Ruiz?", "Ana Ruiz", ""),
        ("Show Cleo's mails", "Cleo", ""),
        ("What did I get from Ana?", "Ana", ""),
        ("How many tables did Cleo promise Ben in 2023?", "Cleo", "Ben"),
        ("What did we send to Ben?", "", "Ben"),
        ("How many kilos did Cleo suggest to order?", "Cleo", ""),
        ("When was the boiler bought?", "", ""),
    ],
)
def test_who_writes_to_whom(question: str, sender: str, recipient: str) -> None:
    assert correspondents(question) == Correspondents(sender, recipient)


def test_a_sentence_belongs_to_the_mail_whose_heading_stands_above_it() -> None:
    text = "From: Ana; To: Ben; Subject: A\nfirst\nFrom: Ben; To: Ana; Subject: B\nsecond"
    place = Place(text, "box", 0)
    senders = [header.sender for word in ("first", "second") if (header := header_of(place, text.index(word)))]
    assert senders == ["Ana", "Ben"]


def test_a_paragraph_of_an_invoice_is_no_heading_of_a_mail() -> None:
    assert header_of(Place("Invoice 7\nFrom: Kessler To: Ana Date: 4 May 2025\nTotal: 90.00", "7", 0), 20) is None


def test_a_later_passage_of_a_mail_knows_its_sender_by_the_heading() -> None:
    header = header_of(Place("more text", "granary-roof\nTomas Vrel, 4 March 2025: Granary roof", 0), 0)
    assert header is not None and header.sender == "Tomas Vrel" and header.begin < 0
