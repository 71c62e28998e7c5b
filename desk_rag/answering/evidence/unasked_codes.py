"""Recognise short answers that are codes which nobody asked for: a sort code, an account or phone number."""

from __future__ import annotations

import re

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


def is_unasked_code(question: str, words: str, quote: str) -> bool:
    """Return whether a short answer is a code or phone number, and the question asks for none."""
    plain, line = words.strip(), " ".join(quote.split())
    if not plain or any(map(str.isalpha, plain)) or _ASKS_CODE.search(question):
        return False
    place = line.find(" ".join(plain.split()))
    return _PHONE.fullmatch(plain) is not None or (place > 0 and _CODE.search(line[:place]) is not None)
