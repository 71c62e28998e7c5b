"""Statements that give something a number or a code, strewn over chunks: what must be found and copied to the letter.

Keys are many and alike, values are long and random, and some keys have several values in different places, so that
neither a guess nor a neighbour's value will do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from desk_rag.model.trained_frame import NO_ANSWER
from desk_rag.training.reader.data.frame import answer_text
from desk_rag.training.reader.synthetic.templates import Asked
from desk_rag.training.reader.synthetic.values import people
from desk_rag.training.reader.synthetic.words import CITIES, FIRMS, PROJECTS, THINGS, phrases

_WHAT = phrases(
    "access code|account number|badge number|booking code|box number|call sign|code word|contract number|"
    "customer number|door code|file number|hidden number|identifier|invoice number|key|licence key|lucky number|"
    "member number|order number|parcel number|pass phrase|password|personal number|PIN|policy number|"
    "reference|registration|secret code|serial number|special number|tax number|ticket number|token|voucher code"
)
_SAID = (
    "The {what} of {key} is {value}.",
    "The {what} for {key} is {value}.",
    "{key} has the {what} {value}.",
    "One {what} of {key} is {value}.",
    "{key}: {what} {value}",
    "{what} of {key}: {value}",
    "For {key} the {what} is {value}.",
    "Note that {key} was given the {what} {value}.",
    "{value} is the {what} of {key}.",
)
_ASKED = (
    "What is the {what} of {key}?",
    "What is the {what} for {key}?",
    "Which {what} does {key} have?",
    "{what} of {key}?",
    "Tell me the {what} of {key}.",
)
_ASKED_ALL = (
    "What are all the {what}s of {key}?",
    "List every {what} of {key}.",
    "Which {what}s does {key} have?",
    "What are the {what}s for {key}?",
)
_HEX = "0123456789abcdef"
_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Needles:
    """Lines to be strewn, in any order and place, and questions about them."""

    lines: list[str]
    asked: list[Asked]


def needles(rng: Random, most: int) -> Needles:
    """Up to `most` lines (at least one), and one to four questions whose answers quote the lines they need."""
    what, wording = rng.choice(_WHAT), rng.choice(_SAID)
    make_key, make_value = rng.choice(_KEYS), rng.choice(_VALUES)
    each = rng.choice([1, 1, 1, 2, 3, 4]) if most >= 4 else 1
    keys = _distinct(rng, make_key, max(1, rng.randint(1, most) // each))
    values = _distinct(rng, make_value, len(keys) * each)
    stated = {
        key: [
            (wording.format(what=what, key=key, value=value), value)
            for value in values[number * each : (number + 1) * each]
        ]
        for number, key in enumerate(keys)
    }
    chosen = rng.sample(keys, min(len(keys), rng.randint(1, 3)))
    pairs = [_question(rng, what, [key], [stated[key]]) for key in chosen]
    if len(keys) > 1 and each == 1 and rng.random() < 0.4:
        several = rng.sample(keys, min(len(keys), rng.randint(2, 4)))
        pairs.append(_question(rng, what, several, [stated[key] for key in several]))
    if rng.random() < 0.3:
        stranger = next(key for key in _distinct(rng, make_key, len(keys) + 1) if key not in stated)
        pairs.append((rng.choice(_ASKED).format(what=what, key=stranger), NO_ANSWER))
    return Needles([line for lines in stated.values() for line, _ in lines], pairs)


def _question(rng: Random, what: str, keys: list[str], stated: list[list[tuple[str, str]]]) -> Asked:
    lines = [line for each in stated for line, _ in each]
    values = [value for each in stated for _, value in each]
    form = rng.choice(_ASKED if len(values) == 1 else _ASKED_ALL)
    return form.format(what=what, key=_listed(keys)), answer_text(lines, _listed(values))


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _distinct(rng: Random, make: Callable[[Random], str], count: int) -> list[str]:
    keys: dict[str, None] = {}
    while len(keys) < count:
        keys[make(rng)] = None
    return list(keys)


def _uuid(rng: Random) -> str:
    return "-".join("".join(rng.choice(_HEX) for _ in range(size)) for size in (8, 4, 4, 4, 12))


def _pair(rng: Random) -> str:
    return f"{rng.choice(PROJECTS).lower()}-{rng.choice(THINGS).split()[-1]}"


_KEYS: tuple[Callable[[Random], str], ...] = (
    _pair,
    _pair,
    lambda rng: people(rng, 1)[0],
    lambda rng: f"the {rng.choice(PROJECTS)} project",
    lambda rng: f"the {rng.choice(THINGS)} in {rng.choice(CITIES)}",
    lambda rng: f"{rng.choice(FIRMS)} {rng.choice(CITIES)}",
    lambda rng: f"room {rng.randint(100, 999)}",
    lambda rng: f"{rng.choice(_LETTERS)}{rng.randint(10, 99999)}",
    _uuid,
)
_VALUES: tuple[Callable[[Random], str], ...] = (
    lambda rng: str(rng.randint(1000, 9999)),
    lambda rng: str(rng.randint(100_000, 999_999)),
    lambda rng: str(rng.randint(1_000_000, 9_999_999)),
    lambda rng: f"{''.join(rng.choice(_LETTERS) for _ in range(rng.randint(2, 4)))}-{rng.randint(100, 99999)}",
    lambda rng: "".join(rng.choice(_HEX) for _ in range(rng.randint(6, 16))),
    lambda rng: f"{rng.choice(PROJECTS).lower()}{rng.randint(1, 999)}",
    lambda rng: " ".join(str(rng.randint(1000, 9999)) for _ in range(rng.randint(2, 5))),
    _uuid,
)
