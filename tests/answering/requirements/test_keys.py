"""The value of a setting or constant is looked up by the words of its key."""

from __future__ import annotations

import pytest

from desk_rag.answering.requirements.places import Place
from desk_rag.answering.requirements.rows import look_up

SHOP = Place(
    "shop: lanterncart.example\nprice_adult: 18\nprice_child: 9\ngroup_discount_percent: 15\nrefund_until_days: 3\n"
    'seat_hold_minutes: 12\ncheck_in: "15:00"\ncheck_out: "10:30"',
    "settings\nticket-shop",
    0,
)
BOARD = Place('board.channels: 48\nboard.fade_seconds: 6.5\nboard.blackoutKey: "F12"', "settings\nlight-board", 0)
NAS = Place("server.name: attic-nas\nserver.port: 8445", "code\nnas\nserver", 0)
CODE = Place(
    '"""Seats."""\n\nBENCH_SEATS = 7  # when the awning is up\n'
    'MAX_GUESTS = 180\nGAUGE_PORT = "/dev/ttyUSB1"\nbench_row = put_bench(row)',
    "code\nseat plan of the weir",
    0,
)
MINUTES = Place("Chair: Fenna de Wit. nine members came.", "minutes\n2026-02-14", 0)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What does an adult ticket cost?", "18"),
        ("What discount does a group get in the ticket shop?", "15"),
        ("Until how many days does the ticket shop give a refund?", "3"),
        ("How long is a seat held in the ticket shop?", "12"),
        ("At what time is check-in?", "15:00"),
        ("What is the check-out time?", "10:30"),
        ("How many channels has the light board?", "48"),
        ("What is the blackout key of the light board?", "F12"),
        ("How many seats has a bench?", "7"),
        ("How many guests are allowed on the ship?", None),
        ("What does a ticket cost?", None),  # adult or child
        ("What is the rent?", None),
        ("Who holds the seat of the chair?", None),
        ("How many channels has the radio?", None),
        ("How often is the gauge at the weir read?", None),  # a port is no number of times
        ("What does the shop lanterncart.example sell?", None),  # the value stands in the question
        ("On which port does the NAS listen?", "8445"),
        ("On which port does the printer listen?", None),
        ("What is a bench?", None),  # an expression is no value
        ("Who was the chair on 14 February 2026?", None),  # a sentence is no value
    ],
)
def test_a_value_is_looked_up_if_its_key_is_spelled_out(question: str, expected: str | None) -> None:
    lookup = look_up(question, [SHOP, BOARD, NAS, CODE, MINUTES])
    assert (lookup and lookup.place.text[slice(*lookup.value)]) == expected


def test_the_name_of_the_file_decides_between_equal_keys() -> None:
    other = Place("board.channels: 12", "settings\nsound-board", 0)
    for question, expected in (
        ("How many channels has the light board?", "48"),
        ("How many channels has the sound board?", "12"),
        ("How many channels has the board?", None),
    ):
        lookup = look_up(question, [BOARD, other])
        assert (lookup and lookup.place.text[slice(*lookup.value)]) == expected


@pytest.mark.parametrize(
    ("question", "expected"), [("When is the copy made?", "01:45"), ("Where is the copy made?", None)]
)
def test_a_key_of_time_answers_when_and_nothing_else(question: str, expected: str | None) -> None:
    place = Place("copy.target: attic\ncopy.time: 01:45\ncopy.keep_days: 20", "server\nnightly", 0)
    lookup = look_up(question, [place])
    assert (lookup.place.text[slice(*lookup.value)] if lookup is not None else None) == expected
