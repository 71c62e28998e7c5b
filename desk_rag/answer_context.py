"""What one answer reads and what is told of it: sources numbered, token ids and keys; stages summed up.

Knows passages, prompts and events; knows no device, retrieves nothing and loads nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from desk_rag.answer_events import Answer, AnswerMode, Source, Stage, Timings
from desk_rag.kv.identity import kv_key
from desk_rag.kv.types import KVKey, Namespace
from desk_rag.model import LanguageModel
from desk_rag.prompt import NO_ANSWER
from desk_rag.retrieval import RetrievedChunk
from desk_rag.store.store import Store


@dataclass(frozen=True, slots=True)
class Context:
    """The chunks one answer reads, best first."""

    sources: tuple[Source, ...]
    token_ids: tuple[tuple[int, ...], ...]
    """Per source, frame included."""
    keys: tuple[KVKey, ...]


class Loaded(Protocol):
    """What is told of loading."""

    def waited(self) -> float:
        """Seconds for which the question's pass stood still."""

    @property
    def nbytes(self) -> int:
        """Bytes loaded."""


class Chosen(Protocol):
    """What is told of recompute."""

    @property
    def ratio(self) -> float:
        """Share of chunk tokens that were computed anew."""

    def choosing(self, waited: float) -> float:
        """Seconds of choosing within the pass, apart from what it waited for loading."""


def build(
    found: Sequence[RetrievedChunk], model: LanguageModel, namespace: Namespace, store: Store, room: int
) -> Context:
    """The best chunks that fit `room` tokens together, numbered from 1."""
    chosen: list[tuple[RetrievedChunk, tuple[int, ...], KVKey]] = []
    for chunk in found:
        ids = tuple(model.prompt.chunk_ids(chunk.passage.chunk.text))
        if len(ids) <= room:
            room -= len(ids)
            chosen.append((chunk, ids, kv_key(namespace, ids)))
    warm = store.has_kv([key for _, _, key in chosen])
    sources = tuple(_source(number, chunk, warm=key in warm) for number, (chunk, _, key) in enumerate(chosen, start=1))
    return Context(sources, tuple(ids for _, ids, _ in chosen), tuple(key for _, _, key in chosen))


def timings(
    stages: Sequence[tuple[str, float]],
    context_tokens: int = 0,
    loaded: Loaded | None = None,
    chosen: Chosen | None = None,
) -> Timings:
    """The stages so far, each name once. A pass's waiting for loading is no prefill, it counts as loading; nor is its
    choosing of what to compute anew."""
    seconds: dict[str, float] = {}
    for name, took in stages:
        seconds[name] = seconds.get(name, 0.0) + took
    waited = min(loaded.waited(), seconds["prefill"]) if loaded is not None else 0.0
    if waited:
        seconds["prefill"] -= waited
        seconds["load"] += waited
    if chosen is not None:
        choosing = min(chosen.choosing(waited), seconds["prefill"])
        seconds["prefill"] -= choosing
        seconds["choose"] = seconds.get("choose", 0.0) + choosing
    told = tuple(Stage(name, took) for name, took in seconds.items())
    nbytes, ratio = loaded.nbytes if loaded is not None else 0, chosen.ratio if chosen is not None else 0.0
    return Timings(told, context_tokens, nbytes, recompute_ratio=ratio)


def nothing_to_read(question: str, mode: AnswerMode, model: str, so_far: Timings) -> Answer:
    """The answer where nothing was found: that it is not known."""
    return Answer(
        question=question,
        text=NO_ANSWER,
        found=False,
        citations=(),
        dropped_quotes=(),
        sources=(),
        timings=so_far,
        warm_chunks=0,
        cold_chunks=0,
        mode=mode,
        model=model,
        raw="",
    )


def _source(number: int, found: RetrievedChunk, *, warm: bool) -> Source:
    passage = found.passage
    return Source(
        number=number,
        chunk_id=passage.chunk.chunk_id,
        path=passage.path,
        title=passage.title,
        location=passage.chunk.location,
        text=passage.chunk.text,
        score=found.score,
        warm=warm,
        stale=_is_stale(passage.path, passage.stamp.size, passage.stamp.mtime_ns),
    )


def _is_stale(path: Path, size: int, mtime_ns: int) -> bool:
    try:
        now = path.stat()
    except OSError:
        return True
    return (now.st_size, now.st_mtime_ns) != (size, mtime_ns)
