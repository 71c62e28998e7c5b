"""Answer a question about the documents of a folder, whatever its form; nothing for other questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import AnswerEvent, Finished
from desk_rag.answering.questions.folder import (
    about_file,
    changes,
    compare,
    days,
    documents,
    named_alike,
    written_by,
)
from desk_rag.answering.questions.folder.tables import extremes, groups, listing, owed, sums
from desk_rag.answering.questions.whole_folder import FolderQuestion

if TYPE_CHECKING:
    from desk_rag.store.store import Store

_Answering = Callable[[FolderQuestion], Iterator[AnswerEvent]]
_OF_FILES: tuple[_Answering, ...] = (compare.answer, about_file.answer, changes.answer)
"""Ways that look for the names of files themselves."""
_WAYS: tuple[_Answering, ...] = (
    documents.answer,
    owed.answer,
    sums.answer,
    groups.answer,
    extremes.answer,
    named_alike.answer,
    listing.answer,
    days.answer,
    written_by.who,
    written_by.when,
    written_by.what,
)


def answer(
    store: Store, question: str, under: Sequence[Path], within: str = "", files: Sequence[Path] = ()
) -> Iterator[AnswerEvent]:
    """Yield progress and the answer of the first way that has one.

    `within` is the question without the names of the `files` to which it limits itself; '' if it names none.
    """
    today = datetime.now(UTC).astimezone().date()
    for way in (*_OF_FILES, *_WAYS):
        answered = False
        whole = way in _OF_FILES or not within
        folder_question = FolderQuestion(store, question if whole else within, under if whole else files, today)
        for event in way(folder_question):
            answered = answered or isinstance(event, Finished)
            yield event
        if answered:
            return
