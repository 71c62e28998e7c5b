"""Find the date that a diary or log has in the line above an entry, or in the name of the file of a day."""

from __future__ import annotations

import re

from desk_rag.answering.requirements.dates import dates, without_dates
from desk_rag.answering.requirements.places import Place

_WEEKDAY = re.compile(r"\b(?:mon|tues?|wed(?:nes)?|thur?s?|fri|sat(?:ur)?|sun)(?:day)?\b\.?,?", re.I)
_MOST_BETWEEN = 600
"""Characters of an entry; what is further below a date is a letter or minutes, not an entry."""
_FEWEST_DATES = 2
"""Lines with nothing but a date that make a passage a diary; one alone is the date of a letter."""
_DIARY = re.compile(r"(?:(?:site|work|daily|ship['’]?s)\s+)?(?:diary|log|logbook|journal|daybook|notes?)", re.I)


def day_in_name(place: Place) -> str:
    """Return the date that is the name of a file, as of 'diary/2024-06-20.txt'; '' if it is called something else."""
    if place.name and not _DIARY.fullmatch(place.name):
        return ""
    names = (_DIARY.sub("", line).strip(" -,") for line in place.labels.split("\n"))
    return next((name for name in names if _is_date(name)), "")


def dated_heading(place: Place, sentence: str) -> str:
    """Return the line above a sentence that is nothing but a day, in a passage with several; '' without one."""
    begin = place.text.find(sentence)
    if begin < 0 or sum(map(_is_date, place.text.split("\n"))) < _FEWEST_DATES:
        return ""
    above = [line.strip() for line in place.text[max(0, begin - _MOST_BETWEEN) : begin].split("\n")]
    return next((line.strip("#* :=-") for line in reversed(above) if _is_date(line)), "")


def _is_date(line: str) -> bool:
    days = dates(line)
    return len(days) == 1 and bool(days[0].day) and not re.search(r"\w", _WEEKDAY.sub(" ", without_dates(line)))
