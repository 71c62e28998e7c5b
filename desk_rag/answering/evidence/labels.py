"""Tell short answers that are only a label in their quote: the number of a list item, a sort code, a phone number."""

from __future__ import annotations

import re

_ITEM = re.compile(r"(?:\d{1,3}(?:\.\d{1,3})*[.)]|\d{1,3}(?:\.\d{1,3})+)")
_BULLET = r"[\s\-*•–]*"
_BEHIND_ITEM = r"\s+[^\W\d_a-z\s]|\s*\["
"""What follows the number of an item: a capital or a box to tick; behind a measure stands its unit."""
_CODE = re.compile(
    r"\b(?:sort\s+code|bank\s+code|account(?:\s+(?:no\.?|number))?|IBAN|BIC|SWIFT|(?:tele)?phone|tel\.?|fax|mobile|cell|ref(?:erence)?"
    r"|(?:VAT|tax|customer|client|policy|order|company)\s+(?:no\.?|number|reg(?:istration)?))[\s:.]*(?:no\.?|number)?[\s:]*$",
    re.I,
)
"""Words directly before a number that name what kind of code it is."""
_PHONE = re.compile(r"(?:\+\d|\(?0)\d[\d\s()/-]{6,}\d")
_ASKS_CODE = re.compile(
    r"\b(?:numbers?|no\.|codes?|phones?|telephone|tel|fax|mobile|call|ring|reach|contact|accounts?|IBAN|BIC|references?|ref"
    r"|ID|details|where\s+(?:do|should|can)\s+(?:I|we)\s+(?:pay|transfer))\b",
    re.I,
)


def is_label(question: str, words: str, quote: str) -> bool:
    """True if a short answer is only the number of a list item, or a code or phone number that nobody asked for."""
    plain, line = words.strip(), " ".join(quote.split())
    if not plain or any(map(str.isalpha, plain)):
        return False
    if _ITEM.fullmatch(plain) and re.match(_BULLET + re.escape(plain) + f"(?:{_BEHIND_ITEM})", line):
        return True
    if _ASKS_CODE.search(question):
        return False
    place = line.find(" ".join(plain.split()))
    return _PHONE.fullmatch(plain) is not None or (place > 0 and _CODE.search(line[:place]) is not None)
