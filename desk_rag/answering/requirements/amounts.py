"""Find the number of a line that is to be added up, add exactly, and notice answers that are no such sum."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

from desk_rag.answering.requirements.answer_kinds import MONEY_WORDS, asks_money
from desk_rag.answering.requirements.rows import FIELD
from desk_rag.answering.requirements.stems import content_stems

_NUMBER = re.compile(r"(?<![\w.,:/-])[-−]?(?:\d{1,3}(?:[,\u00a0\u202f ]\d{3})+|\d+)(?:\.\d+)?(?![\w:/]|[.,-]\d|-\w)")
_MONEY = re.compile(rf"(?:[€$£¥]\s?(?P<after>{_NUMBER.pattern}))|(?P<before>{_NUMBER.pattern})\s?{MONEY_WORDS}")
UNITS = (
    {"km", "kms", "kilometre", "kilometres", "kilometer", "kilometers"}, {"l", "litre", "litres", "liter", "liters"},
    {"h", "hr", "hrs", "hour", "hours"}, {"kg", "kilo", "kilos", "kilogram", "kilograms"},
    {"min", "mins", "minute", "minutes"}, {"kwh"}, {"mile", "miles", "mi"}, {"m3", "m³", "cbm"},
)  # fmt: skip
"""Names of units of measure, those of one unit together."""
_OF_TIME = frozenset({"hour", "min"})
_HOW_MANY = re.compile(r"^how\s+many\s+(?P<unit>[a-z]+[³3]?)\b", re.I)
_MEASURES = frozenset[str]().union(*UNITS)
_MONEY_KEYS = content_stems("amount price total cost costs sum fee income value paid payment charge expense expenses")
_RATE_OR_MONEY = re.compile(
    rf"(?<![^\W_])(?:{MONEY_WORDS}|per|pence|price|costs?|amount|fee|rate)(?![^\W_])|[€$£¥/]", re.I
)
_ASKS_TOTAL = re.compile(
    r"\b(?:in\s+total|altogether|in\s+all|so\s+far|until\s+now|to\s+date|(?:total|sum)\s+of)\b", re.I
)
_DATED_AMOUNT = re.compile(r"\d\s+(?:[€$£]|\w+\s)?on\s+\d", re.I)
"""'300 on 1 March', of which a list of payments holds several."""
_ASKS_SEVERAL = re.compile(
    r"\b(?:total|sum)\s+of\s+(?:(?:all|of|the|my|our|these)\s+)*"
    r"(?:two|three|four|five|six|seven|eight|nine|ten|both|\d{1,2})\s+(?:[\w-]+\s+){0,3}?(?P<things>[\w-]+s)\s*(?=[?.]|$|\b(?:in|of|from|for)\b)",
    re.I,
)
_PART = "The question asks for a total, and the quote may be only one part of it"
_SAYS_TOTAL = re.compile(r"\b(?:totals?|sum|altogether|in\s+all|gesamt\w*|summe)\b", re.I)


def amount_of(text: str, asked: str) -> Decimal | None:
    """The number of a line that the question asks to add up; None if there is none or more than one."""
    amount = column_and_amount(text, asked)
    return None if amount is None else amount[1]


def column_and_amount(text: str, asked: str) -> tuple[str, Decimal] | None:
    """The column ('' outside of tables) and number of a line that the question asks to add up."""
    wanted = content_stems(asked)
    fields = [(match["key"].strip(), number_of(match["value"])) for match in FIELD.finditer(text)]
    numeric = [(key, number) for key, number in fields if number is not None]
    for keys in (wanted, _MONEY_KEYS):
        chosen = [(key, number) for key, number in numeric if content_stems(key) & keys]
        if len(chosen) == 1:
            return chosen[0]
    if fields:
        return numeric[0] if len(numeric) == 1 else None
    money = [_parsed(match["after"] or match["before"]) for match in _MONEY.finditer(text)]
    if len(money) == 1:
        return "", money[0]
    counted = [_parsed(match.group()) for match in _NUMBER.finditer(text) if _unit(text, match.end()) & wanted]
    return ("", counted[0]) if len(counted) == 1 else None


def fields_of(text: str) -> dict[str, str]:
    """The columns and cells of a row of a table; nothing for other lines."""
    return {match["key"].strip(): match["value"].strip() for match in FIELD.finditer(text)}


def measure_of(column: str, value: str) -> str:
    """The unit of measure in a column's name or after a number, which shows that it is no money; '' for none."""
    if _RATE_OR_MONEY.search(f"{column} {value}"):
        return ""
    behind = re.sub(r"^\W*\d[\d.,]*", "", value)
    words = re.split(r"[\W_]+", f"{column} {behind}".lower())
    return next((word for word in words if word in _MEASURES), "")


def written(amounts: Sequence[Decimal]) -> str:
    """The sum, with as many decimals as the most precise amount."""
    places = max((max(0, -int(amount.as_tuple().exponent)) for amount in amounts), default=0)
    return f"{sum(amounts, Decimal(0)):,.{places}f}"


def number_of(value: str) -> Decimal | None:
    """The value of a cell that holds a number and perhaps its unit."""
    match = re.fullmatch(rf"\s*(?:{MONEY_WORDS}\s?)?({_NUMBER.pattern})(?:\s?\D{{0,12}})?\s*", value)
    return _parsed(match.group(1)) if match else None


def not_the_sum(question: str, answer: str, quote: str) -> str:
    """Return a sentence that says why an answer is not the money or the total asked for; empty if it may be."""
    if asks_money(question):
        columns = [column for column, value in fields_of(quote).items() if value == answer] or [""]
        if measure := measure_of(columns[0], answer):
            return f"The question asks for money, and “{answer}” has the unit “{measure}”"
    if unit := _unit_missing(question, quote):
        return f"The question asks how many {unit}, and the quote speaks of none"
    return _PART if _is_part(question, quote) else ""


def _unit_missing(question: str, text: str) -> str:
    """The unit of measure that a question counts, if a text has it in no form; hours may be told by the clock."""
    counted = _HOW_MANY.match(question.strip())
    unit = counted["unit"].lower() if counted is not None else ""
    names = next((names for names in UNITS if unit in names and not names & _OF_TIME), None)
    return unit if names is not None and not names & set(re.findall(r"[^\W\d_]+[³3]?", text.lower())) else ""


def _is_part(question: str, quote: str) -> bool:
    """True if a question asks for the total of several things, and the quote is of one of them or a row of a table."""
    several = _ASKS_SEVERAL.search(question)
    if several is not None:
        return several["things"].lower() not in quote.lower()
    is_part = len(fields_of(quote)) > 1 or len(_DATED_AMOUNT.findall(quote)) > 1
    return is_part and _ASKS_TOTAL.search(question) is not None and _SAYS_TOTAL.search(quote) is None


def _parsed(text: str) -> Decimal:
    return Decimal(re.sub(r"[,\s\u00a0\u202f]", "", text).replace("−", "-"))


def _unit(text: str, end: int) -> set[str]:
    """The stems of the word behind a number."""
    word = re.match(r"\s?([^\W\d_]+)", text[end:])
    return content_stems(word.group(1)) if word else set()
