"""Tell what something costs from what somebody paid once: a price list from rows of bookings and payments."""

from __future__ import annotations

import re

from desk_rag.answering.requirements.dates import dates
from desk_rag.answering.requirements.places import Place
from desk_rag.answering.requirements.stems import content_stems

_ASKS_PRICE = re.compile(
    r"^(?:what|how\s+much)\s+(?:does|do|will|would)\s+.+\s(?:costs?|charge)\b|^how\s+much\s+(?:is|are)\s+(?:the|an?|one|our|your)\b"
    r"|^what(?:['’]s|\s+is|\s+are)\s+(?:the|our|your)\s+(?:[\w-]+\s+){0,2}?(?:price|cost|fee|charge|rate|fare)s?\b",
    re.I,
)
_OF_PAST = re.compile(r"\b(?:19|20)\d\d\b|\b(?:paid|pay|was|were|did|had|bill|invoice|total|altogether)\b", re.I)
_DAY = re.compile(r"(?:^|;\s)(?P<key>[^:;]{1,40}):\s(?P<value>[^;]*)")
_SINCE = re.compile(r"\b(?:from|since|valid|as\s+of|until)\b", re.I)
PRICE_LIST = content_stems("price prices pricing tariff tariffs rates fees charges")
"""Names of files with prices."""


def asks_price(question: str) -> bool:
    """True if a question asks what something costs, and not what was paid once."""
    return _ASKS_PRICE.match(question.strip()) is not None and _OF_PAST.search(question) is None


def is_event(sentence: str) -> bool:
    """True for a row with a day of its own, such as a booking; 'valid from: 2025-01-01' is that of a price."""
    return any(
        not _SINCE.search(cell["key"]) and any(day.day for day in dates(cell["value"]))
        for cell in _DAY.finditer(sentence)
        if "; " in sentence
    )


def is_price_list(place: Place) -> bool:
    """True if the name or the title of a passage's document says that it is a list of prices."""
    return bool(PRICE_LIST & content_stems(f"{place.name}\n{place.text[: place.body]}"))
