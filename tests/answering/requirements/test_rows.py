"""The cell that a question asks for is looked up by the words of question and table."""

from __future__ import annotations

import pytest

from desk_rag.answering.requirements.places import Place
from desk_rag.answering.requirements.rows import look_up

COURSES = Place(
    "Beginners\nWeekday; Teacher; Fee\nWeekday: Monday; Teacher: Ana; Fee: 95\n"
    "Weekday: Thursday; Teacher: Cleo; Fee: 90\n"
    "Advanced\nWeekday; Teacher; Fee\nWeekday: Monday; Teacher: Ben; Fee: 130\n"
    "Weekday: Thursday; Teacher: Ana; Fee: 125\n"
    "Children\nWeekday; Teacher; Fee\nWeekday: Saturday; Teacher: Cleo; Fee: 40",
    "courses",
    0,
)
SHELVES = Place("shelf: 1; content: earthenware; boxes: 3\nshelf: 3; content: clay; boxes: 1", "shelves", 0)
SALES = [
    Place("month: May; pieces: 77; income: 2460\nmonth: June; pieces: 52; income: 1580", f"sales-{year}", 0)
    for year in (2023, 2024)
]


INVOICES = Place(
    "2024\nNumber: INV-2024-001; Date: 2024-01-31; Client: Friends of Bethel; Gross: 6810; Paid on: 2024-02-20\n"
    "Number: INV-2024-002; Date: 2024-03-28; Client: Harrow; Gross: 6240; Paid on: 2024-04-15\n"
    "Number: INV-2024-003; Date: 2024-05-06; Client: Ines Pemberton; Gross: 3468; Paid on: OPEN",
    "accounts\n2024",
    0,
)
TAX = Place("Tax 2023/24\nIncome from self-employment 58,902\nIncome tax due 5,177\nProfit 38,455", "tax 2024", 0)
MINUTES = Place(
    "Minutes of 19 March\nPresent: Ana Ruiz, Gus (carpenter)\nThe premium is 20 (last year: 19).\n"
    "Martha Hollins, who wrote the report, may be reached on 01632 960 417.",
    "minutes",
    0,
)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("When was INV-2024-002 paid?", "2024-04-15"),
        ("When did Friends of Bethel pay INV-2024-001?", "2024-02-20"),
        ("When was INV-2024-003 paid?", "OPEN"),
        ("When was INV-2024-009 paid?", None),
        ("How much income tax do I have to pay for 2023/24?", "5,177"),
        ("How much income tax do I have to pay for 2021/22?", None),
        ("How much income is there?", None),  # a tax is none
        ("Who was present on 19 March?", "Ana Ruiz, Gus (carpenter)"),
        ("What is the premium?", "20"),
        ("What is the phone number of Martha Hollins?", "01632 960 417"),
        ("What is the email address of Martha?", None),
        ("What is the phone number of Ana Ruiz?", None),
    ],
)
def test_a_line_that_says_what_is_asked(question: str, expected: str | None) -> None:
    lookup = look_up(question, [INVOICES, TAX, MINUTES])
    assert (lookup and lookup.place.text[slice(*lookup.value)]) == expected


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is the fee of the advanced course on Thursday?", "125"),
        ("Who teaches the beginners on Monday?", "Ana"),
        ("What is the fee of the advanced course on Saturday?", None),
        ("What is the fee on Thursday?", None),  # two courses
        ("What is on shelf 3?", "clay"),
        ("How many boxes are on shelf 1?", "3"),
        ("What is on shelf 2?", None),
        ("What was the income in June 2023?", "1580"),
        ("What was the income in July 2023?", None),
        ("How old is Ana?", None),
    ],
)
def test_a_cell_is_looked_up_if_one_row_is_clearly_meant(question: str, expected: str | None) -> None:
    lookup = look_up(question, [COURSES, SHELVES, *SALES])
    assert (lookup and lookup.place.text[slice(*lookup.value)]) == expected


def test_the_other_of_two_cells_is_meant_if_row_and_file_name_have_all_words() -> None:
    programmes = Place(
        "programme: night-rinse (usual); does: cold water, twice\nprogramme: wool; does: lukewarm water",
        "washing",
        0,
    )
    lookup = look_up("What is the programme night-rinse washing with?", [programmes])
    assert lookup is not None and programmes.text[slice(*lookup.value)] == "cold water, twice"
    assert look_up("What does the programme night-rinse contain?", [programmes]) is None


def test_what_something_is_is_no_setting_of_that_name() -> None:
    settings = Place("folded: twice", "napkin", 0)
    assert look_up("What is a folded napkin?", [settings]) is None
    assert look_up("What is folded of the napkin?", [settings]) is not None


STATEMENT = Place(
    "date: 2026-07-01; counterparty: Pettigrew Estates; purpose: Rent July; amount: -985.00\n"
    "date: 2026-07-09; counterparty: Greengrocer Amari; purpose: Groceries; amount: -63.20",
    "statement 2026",
    0,
)
LEASE = Place("Lease\nRoof: landlord\nGarden hedge: tenants\nBoiler service: tenants", "lease", 0)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("How much did I spend on groceries in July 2026?", "63.20"),
        ("Which amount has the line of the groceries in July 2026?", None),  # amount and line are light words
        ("How much did I spend on groceries in August 2026?", None),
        ("Who is responsible for the garden hedge?", "tenants"),
        ("Who is responsible for the roof?", "landlord"),
        ("Who is responsible for the chimney?", None),
    ],
)
def test_a_day_is_met_however_it_is_written_and_a_label_says_who_does_it(question: str, expected: str | None) -> None:
    lookup = look_up(question, [STATEMENT, LEASE])
    assert (lookup and lookup.place.text[slice(*lookup.value)]) == expected


HEADED = Place(
    "From: Agnes Wroth; To: Ines Calder; Date: 20 March 2026; Subject: Deposit for the trailer\nThe light is cracked.",
    "trailer",
    0,
)
WALK = Place("13 km, 520 m of ascent, four and a half hours.", "ridge-walk", 0)
PLAN = Place("The pond must not be deeper than 60 cm.", "garden plan", 0)
TOUR = Place("The price is £310 per singer. Please pay the first £100 to Olu.", "choir tour", 0)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is the deposit for the trailer?", None),
        ("Who is the sender of the mail with the subject Deposit for the trailer?", None),
        ("How long is the coast walk?", None),
        ("How long is the garden plan?", None),
        ("How heavy is the choir tour?", None),
        ("What is in the ridge walk?", None),
    ],
)
def test_a_measure_and_the_head_of_a_mail_are_not_looked_up(question: str, expected: str | None) -> None:
    lookup = look_up(question, [HEADED, WALK, PLAN, TOUR])
    assert (lookup and lookup.place.text[slice(*lookup.value)]) == expected


GOODS = Place(
    "item: piano Alder; bought: 2018-09-08; price_gbp: 2300\nitem: bicycle Kestrel (Ola); bought: 2024-05-18; "
    "price_gbp: 340\nitem: bicycle Hartley (Tomasz); bought: 2019-04-27; price_gbp: 780",
    "inventory",
    0,
)
ENERGY = Place(
    "Year: 2023; kWh electricity: 2955; Price per kWh (p): 29.8; Total (GBP): 1055.79\n"
    "Year: 2024; kWh electricity: 2790; Price per kWh (p): 26.4; Total (GBP): 926.36",
    "energy",
    0,
)


@pytest.mark.parametrize(
    ("question", "place", "value"),
    [
        ("What did the piano cost?", GOODS, "2300"),
        ("How much was Ola's bicycle?", GOODS, "340"),
        ("How much was the bicycle?", GOODS, None),  # there are two
        ("Where is the washer?", Place("item: washer W7; room: hall\nitem: sofa; room: attic", "", 0), "hall"),
        ("How many kWh of electricity were there in 2023?", ENERGY, "2955"),
        ("What did we pay for electricity in 2023?", ENERGY, "1055.79"),
    ],
)
def test_a_row_is_named_by_a_word_that_no_other_has(question: str, place: Place, value: str | None) -> None:
    lookup = look_up(question, [place])
    assert value == (None if lookup is None else place.text[slice(*lookup.value)])
