"""Values that invented texts hold: names, dates, sums, numbers, places.

Every function draws from the given random numbers, always alike.
"""

from __future__ import annotations

from random import Random

from desk_rag.training.reader.synthetic.words import (
    CODE_LETTERS,
    CURRENCIES,
    CURRENCY_SIGNS,
    FIRST_NAMES,
    LAST_NAMES,
    MONTHS,
    PLACE_KINDS,
    PLACE_NAMES,
    STREETS,
)


def person(rng: Random) -> str:
    """A first and a last name."""
    return f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"


def people(rng: Random, count: int) -> list[str]:
    """So many people, no two with the same first name."""
    return [f"{first} {rng.choice(LAST_NAMES)}" for first in rng.sample(FIRST_NAMES, count)]


def date(rng: Random) -> str:
    """A day, with or without its year, in one of four forms."""
    day, month, year = rng.randint(1, 28), rng.choice(MONTHS), rng.randint(2015, 2027)
    return rng.choice(
        [
            f"{day} {month} {year}",
            f"{day} {month} {year}",
            f"{day} {month}",
            f"{month} {day}, {year}",
            f"{year}-{MONTHS.index(month) + 1:02d}-{day:02d}",
        ]
    )


def money(rng: Random, least: int = 3, most: int = 3000) -> str:
    """A sum with its currency."""
    value = rng.randint(least, most)
    number = f"{value:,}" if rng.random() < 0.7 else f"{value:,}.{rng.randint(0, 99):02d}"
    return f"{number} {rng.choice(CURRENCIES)}" if rng.random() < 0.75 else rng.choice(CURRENCY_SIGNS) + number


def phone(rng: Random) -> str:
    """A telephone number in one of three forms."""
    return rng.choice(
        [
            f"0{rng.randint(100, 999)} {rng.randint(100, 999)} {rng.randint(10, 99)}",
            f"{rng.randint(200, 999)}-{rng.randint(1000, 9999)}",
            f"0{rng.randint(10, 99)} {rng.randint(1000000, 9999999)}",
        ]
    )


def letters(rng: Random, least: int, most: int) -> str:
    """So many capital letters, without those that look like digits."""
    return "".join(rng.choice(CODE_LETTERS) for _ in range(rng.randint(least, most)))


def code(rng: Random) -> str:
    """A number of an invoice or a contract: letters, perhaps a mark, digits."""
    return letters(rng, 1, 3) + rng.choice(["-", "", " ", "/"]) + str(rng.randint(10, 99999))


def hour(rng: Random) -> str:
    """A time between six and eleven at night."""
    return f"{rng.randint(6, 22)}{rng.choice([':', '.'])}{rng.choice(['00', '15', '30', '45', '10', '50'])}"


def address(rng: Random) -> str:
    """A house of a street."""
    return f"{rng.randint(1, 99)} {rng.choice(STREETS)}"


def place(rng: Random) -> str:
    """A place on a walk, with its article."""
    return f"the {rng.choice(PLACE_NAMES)} {rng.choice(PLACE_KINDS)}"


def capitalised(text: str) -> str:
    """`text` with a capital first letter, the rest as it is."""
    return text[:1].upper() + text[1:]
