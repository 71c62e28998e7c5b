"""Find sentences that state how many of something there are: 'We have twenty-six members', 'The membership is 26'.

A line that only mentions members is none of them, so that counting such lines says nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import AnswerEvent, Finished
from desk_rag.answering.questions.disagreement.newest import dated_name, day_of, newest_first, writing_of_passage
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.questions.second_look import finished
from desk_rag.answering.questions.whole_folder import finish, show
from desk_rag.answering.requirements.places import place_of_passage
from desk_rag.answering.requirements.statements.drafts import is_draft
from desk_rag.answering.requirements.statements.numbers import IN_WORDS, numbers_of
from desk_rag.documents.sentences import quotable

if TYPE_CHECKING:
    from desk_rag.store.store import Store

_ASKS = re.compile(
    r"^how\s+many\s+(?P<things>[a-z]{4,})\s+(?:(?:does|do|has|have)\s+.*\b(?:have|got)|(?:has|have)\s+.+"
    r"|are\s+(?:there|in|we)\b.*|are\s+.*\bin\b.*)$",
    re.I,
)
_NUMBER = rf"(?P<number>\d[\d,]*|{IN_WORDS.pattern})"
_HOLDS = r"(?:have|has|had|there\s+(?:are|were)|with|consists?\s+of|numbers?|counts?|we\s+are)\s+(?:now\s+|about\s+)?"
_STANDS = r"[a-z]*\s+(?:now\s+)?(?:stands?\s+at|is|are|numbers?|counts?|has\s+(?:risen|fallen|grown)\s+to)\s+"
_MOST_PASSAGES, _MOST_SHOWN = 40, 3


def stated_first(
    counted: Iterator[AnswerEvent],
    read: Callable[[], Iterator[AnswerEvent]],
    store: Store,
    question: str,
    under: Sequence[Path],
) -> Iterator[AnswerEvent]:
    """Pass a count of lines on; in place of a doubtful one, the number that a sentence states, if `read` finds one."""
    count = list(counted)
    if not any(isinstance(event, Finished) and event.answer.doubtful for event in count):
        yield from count
        return
    stated = list(_stated(store, question, under))
    if not stated:
        events = list(read())
        done = finished(events)
        is_stated = done.found and not done.doubtful and numbers_of(done.text) - numbers_of(question)
        stated = events if is_stated else count
    yield from stated


def _stated(store: Store, question: str, under: Sequence[Path]) -> Iterator[AnswerEvent]:
    """Yield the number that the newest document states, with those of others; nothing if none states it."""
    asked = _ASKS.match(" ".join(question.split()).rstrip("?!. "))
    if asked is None:
        return
    began = time.perf_counter()
    thing = re.escape(asked["things"].lower().removesuffix("s"))
    patterns = (
        re.compile(rf"\b{_HOLDS}{_NUMBER}\s+(?:[a-z]+\s+)?{thing}", re.I),
        re.compile(rf"\b{thing}{_STANDS}{_NUMBER}(?![\w.,]*[\d%])", re.I),
    )
    hits = store.search_words(f"{asked['things']} {thing}ship", _MOST_PASSAGES, under)
    passages = [passage for hit in hits if (passage := store.passage(hit.chunk_id, under)) is not None]
    stated = {Row(passage, unit): match["number"]
              for passage in passages if not is_draft(place_of_passage(passage))
              for unit in quotable(passage.chunk.text)
              for match in [next(filter(None, (pattern.search(unit) for pattern in patterns)), None)]
              if match is not None}  # fmt: skip
    rows = newest_first(store, list(stated))[:_MOST_SHOWN]
    if not rows:
        return
    latest, others = rows[0], [row for row in rows[1:] if numbers_of(stated[row]) != numbers_of(stated[rows[0]])]
    name = dated_name(latest.passage.path, day_of(store, writing_of_passage(latest.passage)))
    text = f"{stated[latest]} (stated in {name})" + (". Others state another number." if others else "")
    read = (began, len(passages), len({passage.path for passage in passages}))
    yield from finish(store, question, text, show(store, [latest, *others]), under, read)
