"""Say why a value of a sentence is another one than that asked for, by what stands around it.

'150 euros a month' is no pay per hour, 'Invoice 5521' no amount, a supplier no buyer, and -9720 is no rent but a line
of a budget.
"""

from __future__ import annotations

import re

_TIME = r"(?:hour|day|week|month|year|night)"
_RATE = re.compile(rf"\b(?:per|an?|each|every)\s+(?:{_TIME}|person|child|head|metre|kilo)\b", re.I)
_ASKS_RATE = re.compile(rf"\b(?:per|an|each|every)\s+(?P<unit>{_TIME})\b|\ba\s+(?P<last>{_TIME})\W*$", re.I)
_FORMS = {"hour": r"hour|/\s?h\b", "day": "day|dai", "year": "year|annual|annum"}
_ASKS_MONEY = re.compile(r"\bhow\s+much\b|\bcosts?\b|\bpa(?:y|id)\b|\b(?:price|amount)\b", re.I)
_NUMBERED = re.compile(
    r"\b(?:invoice|bill|policy|order|receipt|offer|quotation|contract|rechnung)(?:\s+(?:no\.?|number|nr\.?))?\s*:?\s+(?:[A-Z]+-)?$"
    r"|\b(?:no\.|nr\.|number)\s*$",
    re.I,
)
_ASKS_BALANCE = re.compile(
    r"\b(?:balance|loss|lose|lost|deficit|result|budget|plan|planned|minus|negative|below|debt|profit|booked|transactions?|temperature"
    r"|cold|frost|paid|pay|spen[dt]|owe)\b",
    re.I,
)
_NEGATIVE = re.compile(r"[-−]\s?\d[\d.,]*")
_ASKS_BUYER = re.compile(r"^who\s+(?:bought|purchased|ordered|buys|acquired)\b", re.I)
_SELLER = re.compile(r"\b(?:supplier|seller|vendor|shop|dealer|sold\s+by|from|lieferant|verkäufer|händler)\b", re.I)
_HOW_MANY = re.compile(r"^how\s+many\b", re.I)
_SEVERAL_NUMBERS = re.compile(r"\d+(?:,\s+\d+)+(?:,?\s+and\s+\d+)?")
_ASKS_HOURS = re.compile(
    r"^(?:when|what\s+time)\b.*\b(?:open|close|start|begin|meet)\w*\b.*\bon\s+(?:mon|tues|wednes|thurs|fri|satur|sun)days?\b",
    re.I,
)
_CLOCK = re.compile(r"\d{1,2}[:.]\d\d|\b\d{1,2}\s?(?:am|pm|o['’]clock)\b|\bnoon\b|\bmidnight\b", re.I)
_WE_PAID = re.compile(r"\b(?:I|we)\s+(?:pay|paid|spend|spent)\b", re.I)
_CAME_IN = re.compile(r"(?:^|;\s)(?:donor|donated\s+by|given\s+by|received\s+from|sponsor)[^:;]{0,20}:\s", re.I)
"""A column of a row of money that somebody gave."""
_SIGNED, _AMENDMENT = re.compile(r"\bsign(?:ed|s)?\b", re.I), re.compile(r"\b(?:addendum|amendment)\b", re.I)
_STEPS_DOWN = re.compile(
    r"[^,;.]{1,30}?\s(?:st(?:eps?|epped|ands?|ood)\s+down|resign(?:s|ed)|retire[sd]?|leaves|left|gives?\s+up|gave\s+up)\b",
    re.I,
)
_ASKS_HOLDER = re.compile(r"^who\s+(?:is|was)\b(?!.*\b(?:before|until|resign|retire|left|former|previous)\b)", re.I)


def reason(question: str, sentence: str, begin: int, end: int, *, is_number: bool) -> str:
    """A sentence that says why characters [begin, end) of a sentence are not what is asked for; '' if nothing here."""
    value, before = sentence[begin:end].strip(), sentence[:begin]
    if is_number:
        if _HOW_MANY.match(question) and _SEVERAL_NUMBERS.fullmatch(value):
            return f"“{value}” says which, and not how many"
        if _ASKS_MONEY.search(question) and _NUMBERED.search(before) and re.fullmatch(r"[\w/-]+", value):
            return f"“{value}” is a number of a document and no amount"
        if is_taken_off(question, value):
            return f"“{value}” is what a booking or a plan takes off"
        if other := _other_rate(question, sentence):
            return other
    if _ASKS_HOURS.search(question) and _CLOCK.search(sentence) and not _CLOCK.search(value):
        return f"The question asks for the time of day, and “{value}” is none"
    if _WE_PAID.search(question) and _CAME_IN.search(sentence):
        return "The question asks what was paid, and the quote says what came in"
    if _SIGNED.search(question) and _AMENDMENT.search(sentence) and not _AMENDMENT.search(question):
        return "The quote is about an amendment"
    if _ASKS_BUYER.match(question) and _is_seller(before):
        return f"The quote names “{value}” as the one who sold it"
    return ""


def steps_down(question: str, answer: str, quote: str) -> str:
    """A sentence about a holder of an office of whom the quote says that they give it up; '' for others."""
    begin = quote.find(answer)
    goes = begin >= 0 and answer[:1].isupper() and _STEPS_DOWN.match(quote, begin) is not None
    return f"By the quote “{answer}” steps down" if goes and _ASKS_HOLDER.match(question.strip()) else ""


def is_taken_off(question: str, value: str) -> bool:
    """True for a negative amount, such as the rent in a budget, unless the question is about a balance or a payment."""
    return _NEGATIVE.match(value) is not None and _ASKS_BALANCE.search(question) is None


def only_taken_off(question: str, sentence: str) -> bool:
    """True for a row of a table whose amounts are all negative, where none is asked for."""
    values = re.findall(r":\s([-−]?\s?\d[\d.,]*)(?=;|$)", sentence)
    return bool(values) and all(is_taken_off(question, value) for value in values)


def _other_rate(question: str, sentence: str) -> str:
    """A sentence about the time for which a quote gives an amount, if the question names another one."""
    rate = _ASKS_RATE.search(question)
    unit = (rate["unit"] or rate["last"]).lower() if rate is not None else ""
    if not unit or re.search(_FORMS.get(unit, unit), sentence, re.I):
        return ""
    other = _RATE.search(sentence)
    return f"The question asks for {unit}s, and the quote says “{other[0]}”" if other is not None else ""


def _is_seller(before: str) -> bool:
    """True if the column of a row's cell is that of suppliers."""
    key = re.search(r"(?:^|;\s)(?P<key>[^:;]{1,40}):\s[^;]*$", before)
    return key is not None and _SELLER.search(key["key"]) is not None
