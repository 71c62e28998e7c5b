"""Leave titles such as 'Mrs' and 'Reverend' out of a text: they are no part of the name that is looked for."""

from __future__ import annotations

import re

_ANY_CASE = r"mr|mrs|ms|mx|dr|prof|messrs|herrn?|frau"
_CAPITAL = r"Miss|Sir|Dame|Lady|Lord|Rev|Reverend|Professor|Doctor|Madam|Madame|Mme|Monsieur|Fräulein|Señora?"
_TITLE = rf"(?:the\s+)?(?:(?i:{_ANY_CASE})|{_CAPITAL})\b\.?"
_TITLES = re.compile(rf"\b{_TITLE}(?:\s+(?:(?:and|&|und)\s+)?{_TITLE})*\s+(?=[^\W\d_])")


def without_titles(text: str) -> str:
    """'the invoices of Harrow' for 'the invoices of Mr and Mrs Harrow'."""
    return _TITLES.sub("", text)
