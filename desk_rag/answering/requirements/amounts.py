"""Take the number to add up from a line of a table or of text, and add such numbers up exactly."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

from desk_rag.answering.requirements.rows import FIELD
from desk_rag.answering.requirements.stems import content_stems

_NUMBER = re.compile(r"(?<![\w.,:/-])[-−]?(?:\d{1,3}(?:[,\u00a0\u202f ]\d{3})+|\d+)(?:\.\d+)?(?![\w:/]|[.,-]\d|-\w)")
_MONEY_WORDS = r"(?:crowns?|euros?|dollars?|pounds?|francs?|kroner|kronor|cents?|EUR|USD|GBP|CHF|SEK|NOK|DKK|[€$£¥])"
_MONEY = re.compile(rf"(?:[€$£¥]\s?(?P<after>{_NUMBER.pattern}))|(?P<before>{_NUMBER.pattern})\s?{_MONEY_WORDS}")
_MONEY_KEYS = content_stems("amount price total cost costs sum fee income value paid payment charge expense expenses")


def amount_of(text: str, asked: str) -> Decimal | None:
    """The one number of a line that the question asks to add up; None if there is none or it is not clear which."""
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


def written(amounts: Sequence[Decimal]) -> str:
    """The sum, with as many decimals as the amount with the most."""
    places = max((max(0, -int(amount.as_tuple().exponent)) for amount in amounts), default=0)
    return f"{sum(amounts, Decimal(0)):,.{places}f}"


def number_of(value: str) -> Decimal | None:
    """The value of a cell that holds a number and perhaps its unit."""
    match = re.fullmatch(rf"\s*(?:{_MONEY_WORDS}\s?)?({_NUMBER.pattern})(?:\s?\D{{0,12}})?\s*", value)
    return _parsed(match.group(1)) if match else None


def _parsed(text: str) -> Decimal:
    return Decimal(re.sub(r"[,\s\u00a0\u202f]", "", text).replace("−", "-"))


def _unit(text: str, end: int) -> set[str]:
    """The stems of the word behind a number."""
    word = re.match(r"\s?([^\W\d_]+)", text[end:])
    return content_stems(word.group(1)) if word else set()
