"""Lists of people with some columns of what is known of them: members, contacts, guests.

Knows columns and the forms of a row; every row of a list has the same form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from desk_rag.training.reader.synthetic import values as value
from desk_rag.training.reader.synthetic.templates import Line, Section
from desk_rag.training.reader.synthetic.words import FIRMS, FIRST_NAMES, PROJECTS


@dataclass(frozen=True, slots=True)
class Column:
    """Facts about a person."""

    name: str
    draw: Callable[[Random], str]
    asked: tuple[str, ...]
    """Questions for the value; {} is the person."""
    whose: tuple[str, ...] = ()
    """Questions for the person; {} is the value."""


_STATUS = ("full", "junior", "guest", "honorary", "retired")
_COLUMNS = (
    Column(
        "Status",
        lambda rng: rng.choice(_STATUS),
        ("What status does {} have?", "What kind of member is {}?"),
    ),
    Column(
        "Since",
        lambda rng: str(rng.randint(1980, 2026)),
        ("Since when has {} been a member?", "In which year did {} join?", "When did {} become a member?"),
    ),
    Column(
        "Phone",
        value.phone,
        (
            "What is the phone number of {}?",
            "What is {}'s telephone number?",
            "How can I call {}?",
            "Under which number can {} be reached?",
        ),
        ("Whose phone number is {}?", "Who has the number {}?"),
    ),
    Column(
        "Address",
        value.address,
        ("Where does {} live?", "What is the address of {}?"),
        ("Who lives at {}?",),
    ),
    Column(
        "Fee",
        lambda rng: str(rng.randint(20, 400)),
        ("How much does {} pay?", "What fee does {} pay?"),
    ),
    Column(
        "Room",
        lambda rng: str(rng.randint(1, 420)),
        ("Which room does {} have?", "What is {}'s room number?"),
        ("Who is in room {}?",),
    ),
    Column(
        "Email",
        lambda rng: f"{rng.choice(FIRST_NAMES).lower()}{rng.randint(1, 99)}@{rng.choice(FIRMS).lower()}.org",
        ("What is the email address of {}?", "How do I write to {}?"),
        ("Whose email is {}?",),
    ),
    Column(
        "Birthday",
        value.date,
        ("When is {}'s birthday?", "When was {} born?"),
    ),
    Column(
        "Team",
        lambda rng: rng.choice(PROJECTS),
        ("Which team is {} on?", "What team does {} belong to?"),
    ),
)
_TITLES = ("Members", "Member list", "Contacts", "Address book", "Team list", "Guests", "Register")
# Below which draw a list has a form; the two in the middle are tables, which may have a header.
_LABELLED, _SEMICOLONS, _TABLE, _SENTENCE = 0.4, 0.55, 0.7, 0.85


def members(rng: Random) -> list[Section]:
    """One list of four to eleven people."""
    count = rng.randint(4, 11)
    people = value.people(rng, count)
    columns = rng.sample(_COLUMNS, rng.randint(2, 5))
    form = rng.random()
    lines = []
    for person in people:
        known = [column.draw(rng) for column in columns]
        pairs = [(rng.choice(c.asked).format(person), text) for c, text in zip(columns, known, strict=True)]
        for column, text in zip(columns, known, strict=True):
            if column.whose and rng.random() < 0.5:
                pairs.append((rng.choice(column.whose).format(text), person))
        lines.append(Line(_row(form, person, columns, known), tuple(pairs)))
    title = rng.choice(_TITLES)
    if _LABELLED <= form < _TABLE and rng.random() < 0.8:
        lines.insert(0, Line(_header(form, columns)))
    return [Section(title, tuple(lines))]


def _row(form: float, person: str, columns: Sequence[Column], known: Sequence[str]) -> str:
    if form < _LABELLED:
        return f"Name: {person}; " + "; ".join(f"{c.name}: {v}" for c, v in zip(columns, known, strict=True))
    if form < _SEMICOLONS:
        return f"{person}; " + "; ".join(known)
    if form < _TABLE:
        return f"| {person} | " + " | ".join(known) + " |"
    if form < _SENTENCE:
        return f"{person}: " + ", ".join(f"{c.name.lower()} {v}" for c, v in zip(columns, known, strict=True)) + "."
    return f"{person} - " + ", ".join(known)


def _header(form: float, columns: Sequence[Column]) -> str:
    names = [column.name for column in columns]
    return "Name; " + "; ".join(names) if form < _SEMICOLONS else "| Name | " + " | ".join(names) + " |"
