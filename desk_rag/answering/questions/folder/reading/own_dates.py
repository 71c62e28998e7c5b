"""Tell a document's own date from that of a document it refers to: 'Amendment to the agreement of 22 March 2021'."""

from __future__ import annotations

import re

from desk_rag.answering.questions.folder.reading.periods import DATE
from desk_rag.answering.requirements.dates import Date, dates

_DAY = rf"(?:{DATE}|\d{{1,2}}[./]\d{{1,2}}[./]\d{{4}})"
_DOCUMENT = (
    r"(?:agreement|contract|lease|deed|treaty|will|amendment|addendum|annex|letter|e-?mail|mail|message|note|notice|invoice|bill"
    r"|receipt|offer|quotation|quote|estimate|order|policy|certificate|minutes|report|statement|decision|assessment)s?"
)
_REFERRED = re.compile(
    r"\b(?:(?:to|re|ref|regarding|concerning|under|with|for|see|(?:amend|chang|replac|renew|extend|correct)(?:e?s|ing)"
    r"|(?:amendment|renewal|correction|extension|cancellation|termination|confirmation|part)\s+of)\b:?\s+"
    r"(?:(?:the|our|my|his|her|their|its|an?)\s+)?|your\s+)(?:(?!this\b|present\b)[\w&'’-]+\s+){0,4}?"
    rf"{_DOCUMENT}(?:\s+(?:no|nr|number)\b\.?\s*\S+?)?,?\s+(?:of|from|dated|made\s+on|signed\s+on)\s+(?:the\s+)?{_DAY}",
    re.I,
)
"""'Your letter of 3 May 2023', 'to the framework agreement dated 22 March 2021'; not 'Minutes of 5 March 2024'."""
_MADE = re.compile(
    rf"(?:^|(?<=[.;]\s))\W*signed(?:\s+(?:on|by|for|at|in|and)\b|\s*[:,]|(?=\s+{_DAY}))[^.;\n]{{0,80}}?(?P<signed>{_DAY})"
    rf"|(?:^|(?<=[.;]\s))(?-i:[A-ZÀ-ÖØ-Þ])[\w-]+(?:\s[\w-]+)?,\s+(?:the\s+)?(?P<at>{_DAY})(?=\W*$|\.\s+signed\b)"
    rf"|\bthis\s+(?:\w+\s+){{1,4}}?(?:made|dated|concluded|entered\s+into|of)\b[^.;\n]{{0,40}}?(?P<made>{_DAY})",
    re.I | re.M,
)
"""'Signed on 3 May 2024', 'Tarn, 3 May 2024' below a contract, 'this lease, made on 3 May 2024'."""


def without_referred(text: str) -> str:
    """The text without the mentions of other documents by their dates."""
    return _REFERRED.sub(" ", text)


def refers_to(text: str, day: Date) -> bool:
    """True if a text mentions a document of this day: 'Amendment to the agreement of 22 March 2021'."""
    return any(day in dates(match[0]) for match in _REFERRED.finditer(text))


def days_made(text: str) -> list[str]:
    """The days on which a document says that it was signed or made, the last signature first."""
    days = [match["signed"] or match["at"] or match["made"] for match in _MADE.finditer(without_referred(text))]
    return days[::-1]
