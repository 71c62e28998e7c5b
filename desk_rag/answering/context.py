"""What one answer reads and what is told of it: sources numbered, token ids and keys; stages summed up.

Knows passages, prompts and events; knows no device, retrieves nothing and loads nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from desk_rag.answering.events import Absence, Answer, AnswerMode, Missing, Source, Stage, Timings
from desk_rag.kv.identity import kv_key
from desk_rag.kv.prefix_variants.variants import PrefixVariant, PrefixVariants
from desk_rag.kv.types import KVKey
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.prompt import NO_ANSWER
from desk_rag.retrieval.search import RetrievedChunk
from desk_rag.store.presence import AbsentFolder, absent_folders, covers
from desk_rag.store.store import Store
from desk_rag.store.types import Passage


@dataclass(frozen=True, slots=True)
class Context:
    """The chunks one answer reads, best first."""

    sources: tuple[Source, ...]
    token_ids: tuple[tuple[int, ...], ...]
    """Per source, frame included."""
    keys: tuple[KVKey, ...]
    rungs: tuple[PrefixVariant, ...]
    """Per source the rung whose chunk KV is read, and at which it is prefilled live if that is lost."""


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
    found: Sequence[RetrievedChunk], model: LanguageModel, ladder: PrefixVariants, store: Store, room: int
) -> Context:
    """The best chunks that fit `room` tokens together, numbered from 1.

    Each takes its KV from the rung of the place where it will be laid; where that is not on disk yet, from the nearest
    lower rung that is, which answers a little worse and at once; where there is none, it is to be prefilled live at the
    right rung. A source counts as warm when any of these is there.
    """
    chosen: list[tuple[RetrievedChunk, tuple[int, ...]]] = []
    for chunk in found:
        ids = tuple(model.prompt.chunk_ids(chunk.passage.chunk.text))
        if len(ids) <= room:
            room -= len(ids)
            chosen.append((chunk, ids))
    serving = [ladder.candidates_for(place_of(index, len(chosen))) for index in range(len(chosen))]
    keys = [[kv_key(rung.namespace, ids) for rung in rungs] for rungs, (_, ids) in zip(serving, chosen, strict=True)]
    warm = store.has_kv([key for several in keys for key in several])
    taken = [next((at for at, key in enumerate(several) if key in warm), 0) for several in keys]
    read = tuple(several[at] for several, at in zip(keys, taken, strict=True))
    files = _Files(store)
    sources = tuple(
        _source(number, chunk, files, warm=key in warm)
        for number, ((chunk, _), key) in enumerate(zip(chosen, read, strict=True), start=1)
    )
    rungs = tuple(several[at] for several, at in zip(serving, taken, strict=True))
    return Context(sources, tuple(ids for _, ids in chosen), read, rungs)


def place_of(index: int, num_chunks: int) -> int:
    """Where the chunk that is at `index`, best first, is laid: the best one goes last, next to the question."""
    return num_chunks - 1 - index


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


class _Files:
    """Compares the files of one answer with the index; folders are only looked at if a file is missing."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def state(self, passage: Passage) -> tuple[bool, Absence | None]:
        """Return whether a passage's file is stale, and why it is not there if it is not."""
        stamp = passage.stamp
        try:
            now = passage.path.stat()
            if (now.st_size, now.st_mtime_ns) == (stamp.size, stamp.mtime_ns):
                return False, None
            is_there = True
        except OSError:
            is_there = False
        away = covers(self._absent, passage.path)
        if is_there and not away:
            return True, None
        row = self._store.document(passage.path)
        why = Missing.FOLDER_AWAY if away else Missing.FILE_GONE
        return True, None if row is None else Absence(why, row.indexed_at)

    @cached_property
    def _absent(self) -> list[AbsentFolder]:
        return absent_folders(self._store)


def _source(number: int, found: RetrievedChunk, files: _Files, *, warm: bool) -> Source:
    passage = found.passage
    stale, absence = files.state(passage)
    return Source(
        number=number,
        chunk_id=passage.chunk.chunk_id,
        path=passage.path,
        title=passage.title,
        location=passage.chunk.location,
        text=passage.chunk.text,
        score=found.score,
        warm=warm,
        stale=stale,
        absence=absence,
        digest=passage.digest,
        file=(passage.stamp.size, passage.stamp.mtime_ns, passage.stamp.inode),
        indexed_at=passage.indexed_at,
    )
