"""Show what documents much alike say under one label: 'What is the rent?' where two leases have a line 'Rent:'."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from desk_rag.answering.events import AnswerEvent
from desk_rag.answering.questions.disagreement.look_alikes import are_alike
from desk_rag.answering.questions.disagreement.newest import Writing, dated_name, days_of, newest
from desk_rag.answering.questions.folder.reading.fields import Field, fields_of
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.questions.whole_folder import FolderQuestion, listed, show
from desk_rag.answering.requirements.stems import content_stems

if TYPE_CHECKING:
    from desk_rag.store.types import DocumentRow

_LABEL_ASKED = re.compile(
    r"^(?:what|who|when|how\s+(?:much|high))\s+(?:is|are|was|were)\s+(?:the|my|our)\s+(?P<label>[\w\s-]{3,40})$",
    re.I,
)
_MOST_COMPARED, _MOST_SHOWN = 60, 3
"""Passages with words of the question that are looked through, and documents that may have the label."""


def by_label(question: FolderQuestion) -> Iterator[AnswerEvent]:
    """Yield the values that documents much alike have under the label that is asked for; nothing if one has it."""
    match = _LABEL_ASKED.match(" ".join(question.text.split()).rstrip("?!. "))
    wanted = content_stems(match["label"]) if match is not None else set()
    if not wanted:
        return
    store = question.store
    passages = (store.passage(hit.chunk_id, question.under)
                for hit in store.search_words(question.text, _MOST_COMPARED, question.under))  # fmt: skip
    paths = list(dict.fromkeys(passage.path for passage in passages if passage is not None))
    having: list[tuple[DocumentRow, Field]] = []
    for row in filter(None, map(store.document, paths)):
        fields = (
            field for field in fields_of(store.passages_of(row.path)) if not field.around and field.quote != row.title
        )
        field = next((field for field in fields if content_stems(field.label) == wanted), None)
        having += [(row, field)] if field is not None else []
    if not 2 <= len(having) <= _MOST_SHOWN or not all(are_alike(having[0][0], row) for row, _ in having[1:]):
        return
    if len({field.value.casefold() for _, field in having}) < len(having):
        return
    shown = show(store, [Row(field.passage, field.quote) for _, field in having])
    roots, of_fields = store.volumes.roots(), zip(shown.citations, having, strict=True)
    lines = [
        listed(citation, " ".join(field.quote.split()), row.path, roots, with_place=True)
        for citation, (row, field) in of_fields
    ]
    days = days_of(store, (Writing(row.path) for row, _ in having))
    latest = newest(days)
    which = f" The newest is {dated_name(latest.path, days[latest])}." if latest is not None else ""
    text = "\n".join([*lines, f"{len(having)} documents say something different; name the one that is meant.{which}"])
    yield from question.answered(text, shown, len(paths), len(paths))
