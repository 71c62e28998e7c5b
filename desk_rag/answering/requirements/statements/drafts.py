"""Tell drafts, copies and superseded documents by their names and titles: what others say goes before."""

from __future__ import annotations

import re

from desk_rag.answering.requirements.places import Place

_SAYS_SO = r"drafts?|superseded|obsolete|outdated|withdrawn"
_IN_NAME = re.compile(
    rf"(?<![^\W_])(?:{_SAYS_SO})(?![^\W_])|(?:^|\()copy\s+of\s|(?:[\s_-]|\()(?:old|copy)(?:[\s_]?\d{{1,2}})?\)?$"
    r"|\(copy\b|^(?:old|archived?|backups?)$",
    re.I | re.M,
)
"""In the name of a file or its folder; 'Old Rectory invoice' is none."""
_IN_TITLE = re.compile(rf"\b(?:{_SAYS_SO}|not\s+(?:yet\s+)?(?:valid|approved|in\s+force)|no\s+longer\s+valid)\b", re.I)


def asks_of_draft(question: str) -> bool:
    """True if a question asks for what a draft says."""
    return re.search(rf"\b(?:{_SAYS_SO}|old|copy|archived?|version|backup)\b", question, re.I) is not None


def is_draft(place: Place) -> bool:
    """True if the name, folder or title of a passage's document says that it is a draft, a copy or superseded."""
    return (_IN_NAME.search(place.labels) or _IN_TITLE.search(place.text[: place.body])) is not None
