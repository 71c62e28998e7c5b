"""Build what one answer reads: numbered sources with their token ids and KV keys.

Sum up its stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from desk_rag.answering.events import Absence, Answer, AnswerMode, Missing, Source, Stage, Timings
from desk_rag.kv.identity import kv_key
from desk_rag.kv.prefix_variants.variants import PrefixVariant, PrefixVariants
from desk_rag.kv.types import KVKey, QuantizedKV
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
    """Per source, including the tokens around the chunk."""
    keys: tuple[KVKey, ...]
    rungs: tuple[PrefixVariant, ...]
    """Per source the prefix variant whose chunk KV is read, or prefilled live if it is lost."""


class LoadStats(Protocol):
    """Measurements of one load."""

    def waited(self) -> float:
        """Seconds that the question's pass waited for loading."""

    @property
    def nbytes(self) -> int:
        """Bytes loaded."""


class RecomputeStats(Protocol):
    """Measurements of selective recompute."""

    @property
    def ratio(self) -> float:
        """Share of chunk tokens that were recomputed."""

    def choosing(self, waited: float) -> float:
        """Seconds of token selection within the pass, without the `waited` seconds for loading."""


@dataclass(frozen=True, slots=True)
class LivePrefill:
    """Chunk KV that had to be prefilled for the answer."""

    index: int
    """Index of the chunk in its context."""
    kv: QuantizedKV
    seconds: float
    """Duration of the prefill."""


def build(
    chunks: Sequence[RetrievedChunk], model: LanguageModel, ladder: PrefixVariants, store: Store, max_tokens: int
) -> Context:
    """Select the best chunks that fit into `max_tokens` together, numbered from 1.

    Each chunk takes the prefix variant for its place in the context. If that is not on disk, it takes the nearest lower
    variant that is, which answers slightly worse but at once; if none is, the right variant is prefilled live. A source
    counts as warm if any of them is on disk.
    """
    chosen: list[tuple[RetrievedChunk, tuple[int, ...]]] = []
    for chunk in chunks:
        ids = tuple(model.prompt.chunk_ids(chunk.passage.chunk.text))
        if len(ids) <= max_tokens:
            max_tokens -= len(ids)
            chosen.append((chunk, ids))
    variants = [ladder.candidates_for(place_of(index, len(chosen))) for index in range(len(chosen))]
    keys = [
        [kv_key(variant.namespace, ids) for variant in usable]
        for usable, (_, ids) in zip(variants, chosen, strict=True)
    ]
    warm = store.has_kv([key for chunk_keys in keys for key in chunk_keys])
    picks = [next((index for index, key in enumerate(chunk_keys) if key in warm), 0) for chunk_keys in keys]
    read_keys = tuple(chunk_keys[pick] for chunk_keys, pick in zip(keys, picks, strict=True))
    files = SourceFiles(store)
    sources = tuple(
        source_of(number, chunk.passage, files, score=chunk.score, warm=key in warm)
        for number, ((chunk, _), key) in enumerate(zip(chosen, read_keys, strict=True), start=1)
    )
    rungs = tuple(usable[pick] for usable, pick in zip(variants, picks, strict=True))
    return Context(sources, tuple(ids for _, ids in chosen), read_keys, rungs)


def place_of(index: int, num_chunks: int) -> int:
    """Place in the context of the chunk at `index`, best first.

    The best one goes last, next to the question.
    """
    return num_chunks - 1 - index


def timings(
    stages: Sequence[tuple[str, float]],
    context_tokens: int = 0,
    load: LoadStats | None = None,
    recompute: RecomputeStats | None = None,
) -> Timings:
    """Sum up the stages so far by name.

    Of the prefill, waiting for loading counts as loading, and selecting tokens to recompute as choosing.
    """
    seconds: dict[str, float] = {}
    for name, duration in stages:
        seconds[name] = seconds.get(name, 0.0) + duration
    waited = min(load.waited(), seconds["prefill"]) if load is not None else 0.0
    if waited:
        seconds["prefill"] -= waited
        seconds["load"] += waited
    if recompute is not None:
        choosing = min(recompute.choosing(waited), seconds["prefill"])
        seconds["prefill"] -= choosing
        seconds["choose"] = seconds.get("choose", 0.0) + choosing
    summed = tuple(Stage(name, duration) for name, duration in seconds.items())
    nbytes, ratio = load.nbytes if load is not None else 0, recompute.ratio if recompute is not None else 0.0
    return Timings(summed, context_tokens, nbytes, recompute_ratio=ratio)


def nothing_to_read(question: str, mode: AnswerMode, model: str, timings_so_far: Timings) -> Answer:
    """The refusal that answers a question for which no chunk was retrieved."""
    return Answer(
        question=question,
        text=NO_ANSWER,
        found=False,
        citations=(),
        dropped_quotes=(),
        sources=(),
        timings=timings_so_far,
        warm_chunks=0,
        cold_chunks=0,
        mode=mode,
        model=model,
        raw="",
    )


class SourceFiles:
    """Compares the files of one answer with the index.

    Folders are only checked if a file is missing.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def state(self, passage: Passage) -> tuple[bool, Absence | None]:
        """Return whether a passage's file is stale, and the reason if it is missing."""
        stamp = passage.stamp
        try:
            status = passage.path.stat()
            if (status.st_size, status.st_mtime_ns) == (stamp.size, stamp.mtime_ns):
                return False, None
            exists = True
        except OSError:
            exists = False
        folder_away = covers(self._absent, passage.path)
        if exists and not folder_away:
            return True, None
        row = self._store.document(passage.path)
        why = Missing.FOLDER_AWAY if folder_away else Missing.FILE_GONE
        return True, None if row is None else Absence(why, row.indexed_at)

    @cached_property
    def _absent(self) -> list[AbsentFolder]:
        return absent_folders(self._store)


def source_of(number: int, passage: Passage, files: SourceFiles, *, score: float = 0.0, warm: bool = False) -> Source:
    """The passage as a numbered source."""
    stale, absence = files.state(passage)
    return Source(
        number=number,
        chunk_id=passage.chunk.chunk_id,
        path=passage.path,
        title=passage.title,
        location=passage.chunk.location,
        text=passage.chunk.text,
        score=score,
        warm=warm,
        stale=stale,
        absence=absence,
        digest=passage.digest,
        file=(passage.stamp.size, passage.stamp.mtime_ns, passage.stamp.inode),
        indexed_at=passage.indexed_at,
    )
