"""Answer '/words' in a prompt: the passages that contain the words, without a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.context import sources_of
from desk_rag.answering.conversation import scope as scopes
from desk_rag.answering.events import Answer, AnswerEvent, AnswerMode, Finished, Retrieved, Timings
from desk_rag.retrieval.search import RetrievedChunk, retrieve
from desk_rag.store.catalog.words import STOP_WORDS

if TYPE_CHECKING:
    from desk_rag.documents.chunking import ChunkId
    from desk_rag.store.store import Store

SIGN = "/"
"""A prompt that begins with it is a search; with two of them it is a question that begins with one."""
_MOST = 20
_CONSIDERED = 200
_MOST_HITS = 20_000
"""Chunks with one word, in the files of those considered."""


def is_search(text: str) -> bool:
    """Return whether a prompt asks for passages rather than for an answer."""
    return text.startswith(SIGN) and not text.startswith(SIGN * 2) and bool(text[1:].strip())


def search(store: Store, text: str, under: Sequence[Path]) -> Iterator[AnswerEvent]:
    """Yield the passages as Retrieved, then Finished. Raises `scope.UnknownName`, StoreError."""
    scope = scopes.among_indexed(text.removeprefix(SIGN).strip(), store, under)
    ranked, words = retrieve(store, None, scope.question, _CONSIDERED, scope.paths), _words(scope.question)
    matched = _matched(store, words, ranked)
    ranked.sort(key=lambda chunk: -matched[chunk.passage.chunk.chunk_id])  # stable: of equals the best first
    sources = sources_of(ranked[:_MOST], store)
    yield Retrieved(sources)
    complete = sum(matched[chunk.passage.chunk.chunk_id] == len(words) for chunk in ranked[:_MOST])
    sentence = _sentence(len(sources), complete, len(words))
    answer = Answer(
        text, sentence, bool(sources), (), (), sources, Timings(()), 0, 0, AnswerMode.CACHED, "", sentence,
        is_search=True, limited_to=scope.paths if scope.named else (),
    )  # fmt: skip
    yield Finished(answer)


def _words(text: str) -> list[str]:
    """Return the words that are searched for, each once."""
    words = dict.fromkeys(word.casefold() for word in text.split() if any(map(str.isalnum, word)))
    return [word for word in words if word not in STOP_WORDS] or list(words)


def _matched(store: Store, words: Sequence[str], chunks: Sequence[RetrievedChunk]) -> Counter[ChunkId]:
    """Return how many of the words each chunk, or the name of its file, has."""
    files = list({chunk.passage.path for chunk in chunks})
    numbers: Counter[ChunkId] = Counter()
    for word in words if files else ():
        numbers.update({hit.chunk_id for hit in store.search_words(word, _MOST_HITS, files)})
    return numbers


def _sentence(number: int, complete: int, words: int) -> str:
    """Say how many of the listed passages have all words, and how many only some."""
    if not number:
        return "No passage has this word." if words == 1 else "No passage has any of these words."
    passages, order = (f"{number} passages", ", the best first") if number > 1 else ("1 passage", "")
    if words == 1:
        return f"{passages} with this word{order}."
    if complete == number:
        return f"{passages} with all of these words{order}."
    if not complete:
        return f"No passage has all of these words; {passages} with some of them{order}."
    first = "[1] has" if complete == 1 else f"[1] to [{complete}] have"
    others = "the others have" if number - complete > 1 else "the other has"
    return f"{passages}: {first} all of these words, {others} only some."
