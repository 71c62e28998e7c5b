"""Find the amount of a document, such as the total of an invoice, without subtotals, taxes and account numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING

from desk_rag.answering.questions.folder.reading.fields import Field
from desk_rag.answering.requirements.dates import dates

if TYPE_CHECKING:
    from desk_rag.store.types import Passage


class Measure(Enum):
    """An amount that a document states."""

    TOTAL = "total"
    NET = "net amount"
    TAX = "tax"
    PLAIN = "amount"
    """An amount without a word that says which; it counts if it is the only one."""


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount of money and the words in which it stands."""

    value: Decimal
    currency: str
    """'euros'; empty if none is named."""
    quote: str
    passage: Passage


@dataclass(frozen=True, slots=True)
class NoAmount:
    """The reason why a document has no amount that could be added up."""

    reason: str


_CURRENCIES = {
    "euros": r"€|EUR\b|euros?\b",
    "dollars": r"US\$|\$|USD\b|dollars?\b",
    "pounds": r"£|GBP\b|pounds?\b",
    "francs": r"CHF\b|francs?\b",
    "crowns": r"SEK\b|NOK\b|DKK\b|CZK\b|crowns?\b|kron(?:er|or)\b",
    "yen": r"¥|JPY\b|yen\b",
}
_CURRENCY = "(?:" + "|".join(_CURRENCIES.values()) + ")"
_NUMBER = r"(?<![\w.,/:-])[-−]?(?:\d{1,3}(?:[.,'’\u00a0\u202f]\d{3})+|\d+)(?:[.,]\d{1,2})?(?![\w/:]|[.,-]\d|-\w)"
_MONEY = re.compile(
    rf"(?P<before>{_CURRENCY})?\s?(?P<number>{_NUMBER})(?:\s?(?P<after>{_CURRENCY})(?!\s?\d))?(?!\s?%)", re.IGNORECASE
)
_STATED = re.compile(
    r"(?P<label>(?:[\w()%.-]+\s){0,3}?(?:totals?|sum|amount(?:\s+due)?|due|payable|gross|net|VAT|tax|costs?|charges?)"
    r"(?:\s+(?:due|payable|amount|price|is|are|of|comes?|to|incl\w*\.?|excl\w*\.?|VAT|tax|by\s+\d{1,2}\s+[^\W\d_]+))*)"
    r"\s*(?:[:=]|[.…·_](?:\s?[.…·_])+)?\s*$",
    re.IGNORECASE,
)
_ENDS_SENTENCE = re.compile(r"\s*[.*|]*\s*$|\.\s")
_ACCOUNT = re.compile(r"\b[A-Z]{2}\d{2}(?:\s?[A-Z0-9]{2,4}){3,8}\b")
_SUBTOTAL = re.compile(r"\bsub-?\s?totals?\b|\bcarried\b|\bforward\b|\bprevious\b|\bzwischensumme\b|\bdiscount\b", re.I)
_NET = re.compile(r"\bnet(?:to)?\b|\bexcl\w*|\bbefore\s+(?:tax|vat)\b|\bwithout\s+(?:tax|vat)\b", re.I)
_TAX = re.compile(r"\b(?:vat|tax(?:es)?|gst|mwst|ust|umsatzsteuer)\b", re.I)
_INCLUDED = re.compile(r"\bincl\w*|\bgross\b|\bwith\s+(?:vat|tax)\b|\bbrutto\b|\binkl\w*", re.I)
_TOTAL = re.compile(
    r"\btotals?\b|\bsum\b|\bgross\b|\b(?:amount|balance)\s+(?:due|payable|to\s+pay|owed)\b|\bto\s+pay\b|\bpayable\b"
    r"|\binvoice\s+amount\b|\bgesamt\w*|\brechnungsbetrag\b|\bendbetrag\b|\bsumme\b|\bbrutto\b|\bdue\b",
    re.I,
)
_BARE = re.compile(r"^(?:(?:grand|invoice)\s+)?(?:total|sum|amount)(?:\s+(?:due|payable|amount))*$", re.I)
"""Labels behind which a number without currency and decimals is money."""
_PLAIN = re.compile(r"\bamounts?\b|\bprice\b|\bcosts?\b|\bfees?\b|\bcharges?\b|\bbetrag\b|\brent\b|\bpremium\b", re.I)


def measure_of(label: str) -> Measure | None:
    """The amount that a label announces; None for a label that announces none."""
    if _SUBTOTAL.search(label):
        return None
    if _NET.search(label):
        return Measure.NET
    if _TAX.search(label) and not _INCLUDED.search(label):
        return Measure.TAX
    if _TOTAL.search(label) or _INCLUDED.search(label):
        return Measure.TOTAL
    return Measure.PLAIN if _PLAIN.search(label) else None


def amount_of(
    fields: Sequence[Field], passages: Sequence[Passage], measure: Measure = Measure.TOTAL
) -> Amount | NoAmount:
    """The amount of a document: of several totals the largest, which includes tax and what was paid before."""
    by_measure = _by_measure([*_of_fields(fields), *_of_sentences(passages)])
    candidates = by_measure.get(measure, [])
    if measure is Measure.TOTAL and not candidates:
        candidates = by_measure.get(Measure.PLAIN, [])
        if len({amount.value for amount in candidates}) > 1:
            return NoAmount("several amounts, and none is called a total")
    if candidates:
        best = max(candidates, key=lambda amount: amount.value)
        return _with_currency(best, candidates, passages)
    if measure is Measure.TOTAL and (Measure.NET in by_measure or Measure.TAX in by_measure):
        return NoAmount("only a net amount or a tax")
    return _only_price(passages) if measure is Measure.TOTAL else NoAmount("no amount")


def _only_price(passages: Sequence[Passage]) -> Amount | NoAmount:
    """The amount of a document with one price and no word for a total: 'Tuning the piano ...... £65.00'."""
    prices: dict[tuple[Decimal, str], Amount] = {}
    for passage in passages:
        for line in passage.chunk.text.split("\n"):
            for match in _MONEY.finditer(_without_accounts(line)):
                currency = currency_of(match["before"] or match["after"] or "")
                if currency and _ENDS_SENTENCE.match(line[match.end() :]):
                    value = parsed(match["number"])
                    prices.setdefault((value, currency), Amount(value, currency, line.strip(), passage))
    if len(prices) > 1:
        return NoAmount("several amounts, and none is called a total")
    return next(iter(prices.values()), NoAmount("no amount"))


def money_in(text: str) -> list[tuple[Decimal, str]]:
    """All amounts in a text that name a currency or have two decimals, with the currency or ''."""
    plain = _without_accounts(text)
    return [
        (parsed(match["number"]), currency_of(match["before"] or match["after"] or ""))
        for match in _MONEY.finditer(plain)
        if match["before"] or match["after"] or re.search(r"[.,]\d\d$", match["number"])
    ]


def parsed(number: str) -> Decimal:
    """The value of a number with thousands and decimals in either notation."""
    plain = re.sub(r"['’\s\u00a0\u202f]", "", number).replace("−", "-")
    decimals = re.search(r"[.,](\d{1,2})$", plain)
    whole = plain[: decimals.start()] if decimals else plain
    return Decimal(re.sub(r"[.,]", "", whole) + (f".{decimals[1]}" if decimals else ""))


def currency_of(text: str) -> str:
    """The currency that a text names; '' without exactly one."""
    named = [name for name, pattern in _CURRENCIES.items() if re.search(rf"(?<![^\W\d]){pattern}", text, re.I)]
    return named[0] if len(named) == 1 else ""


def sums(amounts: Iterable[Amount]) -> dict[str, Decimal]:
    """The sum in each currency; amounts without one count for the only currency of the others."""
    by_currency: dict[str, Decimal] = {}
    for amount in amounts:
        by_currency[amount.currency] = by_currency.get(amount.currency, Decimal(0)) + amount.value
    if "" in by_currency and len(by_currency) == 2:
        unnamed = by_currency.pop("")
        (currency,) = by_currency
        by_currency[currency] += unnamed
    return by_currency


def written(value: Decimal, currency: str = "") -> str:
    """Return the amount in words: '2,890.00 euros'."""
    places = max(0, -int(value.as_tuple().exponent))
    return f"{value:,.{2 if 0 < places < 3 else places}f} {currency}".rstrip()


def _by_measure(amounts: Iterable[tuple[str, Amount]]) -> dict[Measure, list[Amount]]:
    by_measure: dict[Measure, list[Amount]] = {}
    for label, amount in amounts:
        if (measure := measure_of(label)) is not None:
            by_measure.setdefault(measure, []).append(amount)
    return by_measure


def _of_fields(fields: Sequence[Field]) -> Iterable[tuple[str, Amount]]:
    for field in fields:
        match = _MONEY.match(_without_accounts(field.value))
        if match and not re.match(
            r"\s*(?:days?|weeks?|months?|years?|hours?|pieces?|kWh)\b", field.value[match.end() :]
        ):
            currency = currency_of(match["before"] or match["after"] or "") or currency_of(
                f"{field.label} {field.around}"
            )
            is_money = currency or re.search(r"[.,]\d\d$", match["number"]) or _BARE.match(field.label)
            if is_money and not dates(field.value):
                yield field.label, Amount(parsed(match["number"]), currency, field.quote, field.passage)


def _of_sentences(passages: Sequence[Passage]) -> Iterable[tuple[str, Amount]]:
    """Amounts that a sentence states: 'Total 119.00', 'The total is 119 euros.'"""
    for passage in passages:
        for line in passage.chunk.text.split("\n"):
            plain = _without_accounts(line)
            for match in _MONEY.finditer(plain):
                named = match["before"] or match["after"]
                if not named and not re.search(r"[.,]\d\d$", match["number"]):
                    continue
                label = _STATED.search(plain[: match.start("before") if match["before"] else match.start("number")])
                if label is not None:
                    quote = line[label.start() : match.end()].strip()
                    yield label["label"], Amount(parsed(match["number"]), currency_of(named or ""), quote, passage)


def _with_currency(amount: Amount, candidates: Sequence[Amount], passages: Sequence[Passage]) -> Amount:
    """The amount with the only currency of its like or of its document, if it names none itself."""
    if amount.currency:
        return amount
    alike = {other.currency for other in candidates if other.value == amount.value} - {""}
    currency = next(iter(alike)) if len(alike) == 1 else currency_of("\n".join(one.chunk.text for one in passages))
    return Amount(amount.value, currency, amount.quote, amount.passage)


def _without_accounts(text: str) -> str:
    """The text with blanks in place of account numbers."""
    return _ACCOUNT.sub(lambda match: " " * len(match.group()), text)
