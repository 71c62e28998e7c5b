"""Answer '/words' in a prompt: the passages that contain the words, without a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.context import sources_of
from desk_rag.answering.conversation import scope as scopes
from desk_rag.answering.events import Answer, AnswerEvent, AnswerMode, Finished, Retrieved, Timings
from desk_rag.retrieval.search import retrieve

if TYPE_CHECKING:
    from desk_rag.store.store import Store

SIGN = "/"
"""A prompt that begins with it is a search; with two of them it is a question that begins with one."""
_MOST = 20


def is_search(text: str) -> bool:
    """Return whether a prompt asks for passages rather than for an answer."""
    return text.startswith(SIGN) and not text.startswith(SIGN * 2) and bool(text[1:].strip())


def search(store: Store, text: str, under: Sequence[Path]) -> Iterator[AnswerEvent]:
    """Yield the passages as Retrieved, then Finished. Raises `scope.UnknownName`, StoreError."""
    scope = scopes.among_indexed(text.removeprefix(SIGN).strip(), store, under)
    sources = sources_of(retrieve(store, None, scope.question, _MOST, scope.paths), store)
    yield Retrieved(sources)
    number = f"{len(sources)} passages" if len(sources) != 1 else "1 passage"
    said = f"{number} with these words, the best first." if sources else "No passage has these words."
    answer = Answer(
        text, said, bool(sources), (), (), sources, Timings(()), 0, 0, AnswerMode.CACHED, "", said,
        is_search=True, limited_to=scope.paths if scope.named else (),
    )  # fmt: skip
    yield Finished(answer)
