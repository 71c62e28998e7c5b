"""Bring the numbers, times and dates of a text into one form, so that values written differently compare as equal."""

from __future__ import annotations

import re
from decimal import Decimal

_ONES = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
    seventeen eighteen nineteen""".split()  # noqa: SIM905
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()  # noqa: SIM905
_SCALES = {"hundred": 100, "thousand": 1000, "million": 1_000_000}
_VALUES = {word: number for number, word in enumerate(_ONES)} | {
    word: 10 * number for number, word in enumerate(_TENS, start=2)
}
NUMBER_WORDS = (*_VALUES,)
"""Words for numbers below a hundred, the smallest first."""
_SMALL = rf"(?:(?:{'|'.join(_TENS)})(?:[\s-](?:{'|'.join(_ONES[1:10])}))?|{'|'.join(reversed(_ONES))})"
_BELOW_THOUSAND = rf"(?:(?:{_SMALL}\s+)?hundred(?:\s+(?:and\s+)?{_SMALL})?|{_SMALL})"
IN_WORDS = re.compile(
    rf"\b(?:(?:(?P<digits>\d[\d.,]*)|{_BELOW_THOUSAND})(?:\s+(?:thousand|million))+(?:\s+(?:and\s+)?{_BELOW_THOUSAND})?"
    rf"|{_BELOW_THOUSAND})\b",
    re.I,
)
"""A number in words, or with 'thousand' or 'million' behind its digits: 'one hundred and five', '1.5 million'."""
_SPOKEN_TIME = re.compile(
    rf"\b(?P<part>half|(?:a\s+)?quarter)\s+(?P<side>past|to)\s+(?P<hour>{'|'.join(_ONES[1:13])})\b", re.I
)
_CLOCK = re.compile(
    r"\b(?P<hour>[01]?\d|2[0-4])(?:(?P<colon>:)|\.)(?P<minute>[0-5]\d)(?::\d\d)?(?!\d)\s*(?P<half>[ap]\.?m\b)?", re.I
)
_NUMERIC_DATE = re.compile(r"(?<![\d/-])\d{1,4}([/-])\d{1,2}\1\d{1,4}(?![\d/-])")
_NUMBER = re.compile(r"\d[\d.,:/-]*(?<![.,:/-])")
_DECIMAL_COMMA = re.compile(r"^(?P<whole>\d{1,3}(?:\.\d{3})*|\d+),(?P<part>\d\d?)$")
"""'865,00' and '1.149,50', as much of Europe writes them."""


def numbers_of(text: str) -> set[str]:
    """The numbers of a text in one form: '1,150' as '1150', 'ten million' as '10000000', 'half past seven' as '7.30'.

    The parts of '2025-06-28' are three numbers, as in '28 June 2025'.
    """
    plain = _NUMERIC_DATE.sub(lambda match: " ".join(str(int(part)) for part in re.split(r"[/-]", match[0])), text)
    plain = _CLOCK.sub(_clock, _SPOKEN_TIME.sub(_spoken_time, plain))
    plain = IN_WORDS.sub(_in_digits, plain)
    numbers = (re.sub(r",(?=\d{3}\b)", "", number) for number in _NUMBER.findall(plain))
    numbers = (_DECIMAL_COMMA.sub(lambda one: f"{one['whole'].replace('.', '')}.{one['part']}", one) for one in numbers)
    return {re.sub(r"\.0+$", "", number) for number in numbers}


def _spoken_time(match: re.Match[str]) -> str:
    hour, minute = _VALUES[match["hour"].lower()], 30 if match["part"].lower() == "half" else 15
    return f"{hour}.{minute}" if match["side"].lower() == "past" else f"{(hour + 10) % 12 + 1}.{60 - minute}"


def _clock(match: re.Match[str]) -> str:
    """A time of twelve hours, which is how most are spoken; '7.30' without 'am' or 'pm' may be a price."""
    hour = int(match["hour"])
    is_time = match["colon"] or match["half"]
    return f"{(hour + 11) % 12 + 1}.{match['minute']} " if is_time else match[0]


def _in_digits(match: re.Match[str]) -> str:
    """'one hundred and five' as '105'; 'one' by itself is no number, as in 'one of them'."""
    words = re.findall(r"[a-z]+", match[0].lower())
    if words in (["one"], ["zero"], ["hundred"], ["thousand"], ["million"]) and not match["digits"]:
        return match[0]
    total, group = Decimal(0), Decimal((match["digits"] or "0").replace(",", ""))
    for word in words:
        if word in _VALUES:
            group += _VALUES[word]
        elif word == "hundred":
            group = (group or Decimal(1)) * _SCALES[word]
        elif word in _SCALES:
            total, group = total + (group or Decimal(1)) * _SCALES[word], Decimal(0)
    value = total + group
    return str(int(value)) if value == int(value) else str(value)
