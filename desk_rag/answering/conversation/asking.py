"""Ask a question of a conversation: its '@' names limit the search, its follow-up is made to stand alone.

The one way from command line and UI to the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.conversation import scope as scopes
from desk_rag.answering.conversation import small_talk, vocabulary
from desk_rag.answering.conversation.follow_up import is_open, stand_alone
from desk_rag.answering.conversation.turns import Request, Turn
from desk_rag.answering.events import AnswerEvent, AskedAs, Finished
from desk_rag.answering.questions.narrowing import is_mentioned, named_files
from desk_rag.answering.requirements.statements.languages import foreign_language
from desk_rag.ingest import unread
from desk_rag.sanitize import clean

if TYPE_CHECKING:
    from desk_rag.answering.engine import AnswerEngine
    from desk_rag.store.store import Store

_MOST_PASSAGES = 60
"""Passages of a quoted document whose words tell whether a short question leans on it."""

_MOST_ABOUT = 8
"""Passages with a name that are looked at for its title."""
_OPEN = "The chat leaves open whom or what the question means: name it to be sure"


@dataclass(frozen=True, slots=True)
class Understood:
    """The resolved form of a request: the question to search for, and the folders to search."""

    asked: str
    rewritten: str
    """`asked` if it differs from what the user wrote; else empty."""
    under: tuple[Path, ...]
    limited_to: tuple[Path, ...]
    """`under` if the user, the question or the turn it leans on named it; else empty."""


def ask(engine: AnswerEngine, request: Request, stop: Callable[[], bool] = lambda: False) -> Iterator[AnswerEvent]:
    """Yield AskedAs if the question was rewritten, then the engine's events. Raises `scope.UnknownName` at once."""
    return answer(engine, request, understand(request, engine.store), stop)


def understand(request: Request, store: Store) -> Understood:
    """Resolve '@' names and rewrite a follow-up. Raises `scope.UnknownName`, StoreError."""
    scope = scopes.among_indexed(request.question, store, request.limit or request.under)
    if small_talk.kind_of(scope.question) is not None:
        return Understood(scope.question, "", scope.paths, request.limit)
    earlier = tuple(turn for turn in request.earlier if small_talk.kind_of(turn.asked) is None)
    files = scope.paths if scope.named else named_files(store, scope.question, scope.paths).indexed
    standalone = request.asked_as or stand_alone(
        scope.question,
        earlier,
        _quoted_stems(earlier, store),
        texts_about=partial(_texts_about, store, request.limit or request.under),
        in_named_file=partial(_stands_in, store, files) if files else None,
    )
    rewritten = standalone if standalone != scope.question else ""
    if scope.named:
        return Understood(standalone, rewritten, scope.paths, scope.paths)
    # A question that leans on the last one is about the same files.
    same = earlier[-1].limited_to if earlier and rewritten and not request.limit else ()
    return Understood(standalone, rewritten, same or scope.paths, same or request.limit)


def answer(
    engine: AnswerEngine, request: Request, understood: Understood, stop: Callable[[], bool]
) -> Iterator[AnswerEvent]:
    """Yield the events of an answer to a request that was understood."""
    if understood.rewritten:
        yield AskedAs(understood.rewritten)
    kind = small_talk.kind_of(understood.asked)
    if kind is not None:
        yield from small_talk.answer(kind, request.question, engine.store, understood.under)
        return
    events = engine.ask(understood.asked, mode=request.mode, top_k=request.top_k, under=understood.under, stop=stop)
    left_open = [_OPEN] if is_open(request.question, understood.rewritten) and not request.asked_as else []
    for event in events:
        if isinstance(event, Finished):
            by_kind = not event.answer.found
            named = [
                sentence
                for sentence in unread.named_in(understood.asked, engine.store, understood.under, by_kind=by_kind)
                if sentence not in event.answer.text  # which may be nothing but this
            ]
            event = Finished(
                replace(
                    event.answer,
                    notices=(*event.answer.notices, *named, *left_open, *_language_notice(understood.asked, engine)),
                    question=request.question,
                    asked_as=understood.rewritten,
                    limited_to=understood.limited_to,
                )
            )
        yield event


def _language_notice(question: str, engine: AnswerEngine) -> list[str]:
    """Return a sentence if a question is not in the language that the embedded reader reads."""
    language = foreign_language(question) if engine.model.is_embedded else ""
    if not language:
        return []
    return [
        f"The question seems to be in {language}; the built-in reader reads English only, so answers are unreliable."
        " A larger model may read it (desk-rag help models)"
    ]


def _stands_in(store: Store, files: Sequence[Path], name: str) -> bool:
    """Return whether the last word of a name stands in some files or folders."""
    words = vocabulary.words_of(name)
    return bool(words) and is_mentioned(store, words[-1], files)


def _texts_about(store: Store, under: Sequence[Path], name: str) -> list[str]:
    """Return the texts of the passages nearest to a name by its words that have it."""
    passages = (store.passage(hit.chunk_id, under) for hit in store.search_words(name, _MOST_ABOUT, under))
    return [clean(one.chunk.text) for one in passages if one is not None and name in one.chunk.text]


def _quoted_stems(earlier: Sequence[Turn], store: Store) -> frozenset[str]:
    """Return the stems of the words of the documents quoted last."""
    last = next((turn for turn in earlier[::-1] if turn.paths), None)
    if last is None:
        return frozenset()
    read = (passage.chunk.text for path in last.paths for passage in store.passages_of(path)[:_MOST_PASSAGES])
    texts = [*last.quotes, *last.headings, *read]
    return vocabulary.stems([word for text in texts for word in vocabulary.content_words(clean(text))])
