"""Build what one answer reads: numbered sources with their token ids and KV keys.

Sum up its stages. Sources are also numbered where no model is loaded: importing this loads no torch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from desk_rag.answering.events import READ_BY_WORDS, Absence, Answer, AnswerMode, Missing, Source, Stage, Timings
from desk_rag.config import AnswerSettings
from desk_rag.documents.chunking import ChunkId
from desk_rag.documents.status import plural
from desk_rag.errors import ConfigError, UnsupportedModel
from desk_rag.retrieval.search import RetrievedChunk
from desk_rag.store.presence import AbsentFolder, absent_folders, covers
from desk_rag.store.store import Store
from desk_rag.store.types import Passage

if TYPE_CHECKING:
    from desk_rag.kv.prefix_variants.variants import PrefixVariant
    from desk_rag.kv.serving import ServingModel
    from desk_rag.kv.types import KVKey, QuantizedKV
    from desk_rag.model.prompt import PromptFormat

_QUESTION_ROOM = 256
"""Maximum tokens of a question and the prompt around it."""
_QUESTION_SHARE = 8
"""A question takes at most one part in this many of a model's window."""


@dataclass(frozen=True, slots=True)
class ContextChunk:
    """One chunk as the model reads it."""

    source: Source
    token_ids: tuple[int, ...]
    """Including the tokens around the chunk."""
    key: KVKey
    variant: PrefixVariant
    """The prefix variant whose chunk KV is read, or prefilled live if it is lost."""


@dataclass(frozen=True, slots=True)
class Context:
    """The passages of one answer."""

    sources: tuple[Source, ...]
    """As they are numbered: best first."""
    chunks: tuple[ContextChunk, ...]
    """The same in the order in which they stand in the cache, see `place_of`."""
    left_out: int = 0
    """Number of retrieved passages for which there was no room."""

    @property
    def warm_keys_and_lengths(self) -> tuple[list[KVKey], list[int]]:
        """Keys of the chunks whose KV is on disk, and the tokens of all chunks."""
        warm = [chunk.key for chunk in self.chunks if chunk.source.warm]
        return warm, [len(chunk.token_ids) for chunk in self.chunks]

    def as_read(self, prefilled: Collection[ChunkId]) -> Context:
        """Return it with its sources as they were read: warm if loaded, cold if prefilled live."""
        sources = tuple(replace(source, warm=source.chunk_id not in prefilled) for source in self.sources)
        return replace(self, sources=sources)


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

    @property
    def selector(self) -> str:
        """Name of the selector that selected them."""

    def choosing(self, waited: float) -> float:
        """Seconds of token selection within the pass, without the `waited` seconds for loading."""


@dataclass(frozen=True, slots=True)
class LivePrefill:
    """Chunk KV that had to be prefilled for the answer."""

    chunk: ContextChunk
    kv: QuantizedKV
    seconds: float
    """Duration of the prefill."""
    is_choice: bool = False
    """Its KV is on disk, but prefilling was faster than loading."""


def question_room(window: int) -> int:
    """Most tokens of a question and the prompt around it; a short window leaves less."""
    return min(_QUESTION_ROOM, window // _QUESTION_SHARE)


def answer_room(settings: AnswerSettings, prompt: PromptFormat, window: int) -> int:
    """Most tokens behind the last passage: the question, what stands around it, and the answer."""
    from desk_rag.answering.writing.length import longest

    return question_room(window) + prompt.legend_tokens + longest(settings, prompt, window)


@dataclass(frozen=True, slots=True)
class PassageLimit:
    """Most tokens that the passages of an answer may have together."""

    tokens: int
    reason: str
    """Sentence part that says where the limit comes from."""

    def notice(self, left_out: int, passages: int) -> str:
        """Sentence about `left_out` of the nearest `passages`, which were not read; empty if all were."""
        if not left_out:
            return ""
        were = "was" if left_out == 1 else "were"
        return f"{left_out} of the {plural(passages, 'nearest passage')} {were} not read: {self.reason}."

    def within_memory(self, tokens: int) -> PassageLimit:
        """Return the limit after memory was found for `tokens` tokens of passages."""
        if tokens == self.tokens:
            return self
        return PassageLimit(tokens, f"there is memory for {tokens:,} tokens of passages")

    def usual_passages(self, prompt: PromptFormat, top_k: int) -> int:
        """Number of passages of the usual length that fit, at most as many as an answer takes."""
        return min(self.tokens // prompt.chunk_size.target, top_k or prompt.top_k)


def passage_limit(settings: AnswerSettings, prompt: PromptFormat, window: int, name: str) -> PassageLimit:
    """Return the limit for a model of this name, whose context has `window` tokens.

    Raises ConfigError or UnsupportedModel if a passage may not fit.
    """
    largest, room = prompt.chunk_size.largest, len(prompt.prefix_ids) + answer_room(settings, prompt, window)
    if 0 < settings.context_tokens < largest:
        raise ConfigError(
            f"context_tokens = {settings.context_tokens} under [answer] is less than the largest chunk "
            f"({largest} tokens).",
            remedy=f"Set it to {largest} or more, or to 0 to follow the model.",
        )
    tokens = window - room
    if tokens < largest:
        answer_takes_it = tokens + settings.max_new_tokens >= largest
        raise UnsupportedModel(
            f"'{name}' reads at most {window:,} tokens, as its files say. Instructions,"
            f" question and answer take {room:,} of them, and a passage takes up to {largest:,}.",
            remedy="Lower max_new_tokens under [answer]." if answer_takes_it else "Use a model with a longer context.",
        )
    if (wanted := settings.context_tokens or prompt.context_tokens) <= tokens:
        reason = f"answers take at most {wanted:,} tokens of passages (`context_tokens` under [answer])"
        return PassageLimit(wanted, reason)
    return PassageLimit(tokens, f"'{name}' reads at most {window:,} tokens, of which {tokens:,} are left for passages")


def build(chunks: Sequence[RetrievedChunk], serving: ServingModel, store: Store, max_tokens: int) -> Context:
    """Select the best chunks that fit into `max_tokens` together, numbered from 1.

    The chunks stand in the cache as `place_of` says. Each takes the prefix variant for its place. If that is not on
    disk, it takes the nearest lower variant that is, which answers slightly worse but at once; if none is, the right
    variant is prefilled live. A source counts as warm if any of them is on disk.
    """
    from desk_rag.kv.identity import kv_key

    chosen: list[tuple[RetrievedChunk, tuple[int, ...]]] = []
    left = max_tokens
    for chunk in chunks:
        ids = tuple(serving.model.prompt.chunk_ids(chunk.passage.chunk.text))
        if len(ids) <= left:
            left -= len(ids)
            chosen.append((chunk, ids))
    variants = serving.prefix_variants
    candidates = [
        [(kv_key(variant.namespace, ids), variant) for variant in variants.candidates_for(place_of(rank, len(chosen)))]
        for rank, (_, ids) in enumerate(chosen)
    ]
    warm = store.has_kv([key for usable in candidates for key, _ in usable])
    files = SourceFiles(store)
    best_first = []
    for number, ((chunk, ids), usable) in enumerate(zip(chosen, candidates, strict=True), start=1):
        key, variant = next((pair for pair in usable if pair[0] in warm), usable[0])
        source = source_of(number, chunk.passage, files, score=chunk.score, warm=key in warm)
        source = replace(source, closely=chunk.closely)
        best_first.append(ContextChunk(source, ids, key, variant))
    in_place = sorted(best_first, key=lambda chunk: place_of(chunk.source.number - 1, len(chosen)))
    return Context(tuple(chunk.source for chunk in best_first), tuple(in_place), len(chunks) - len(chosen))


def expected_keys(chunks: Sequence[RetrievedChunk], serving: ServingModel, store: Store) -> Sequence[KVKey]:
    """Keys in the catalog that `build` will choose if all chunks fit."""
    chunk_ids = [chunk.passage.chunk.chunk_id for chunk in chunks]
    if serving.prefix_variants.is_plain:
        return store.kv_keys(serving.namespace, chunk_ids)
    keys: list[KVKey] = []
    for rank, chunk_id in enumerate(chunk_ids):
        usable = serving.prefix_variants.candidates_for(place_of(rank, len(chunk_ids)))
        stored_keys = (store.kv_keys(variant.namespace, [chunk_id]) for variant in usable)
        keys += next(filter(None, stored_keys), [])
    return keys


def place_of(rank: int, num_chunks: int) -> int:
    """Place in the cache of the chunk that retrieval ranked `rank`, from 0.

    The best one stands last, next to the question, where the embedded reader quotes it most often (bench/LOG.md,
    "Answering and retrieval: constants"). Full prefill uses the same order.
    """
    return num_chunks - 1 - rank


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
    nbytes = load.nbytes if load is not None else 0
    if recompute is None:
        return Timings(summed, context_tokens, nbytes)
    return Timings(summed, context_tokens, nbytes, recompute_ratio=recompute.ratio, selector=recompute.selector)


def answer_without_sources(
    question: str,
    text: str,
    timings_so_far: Timings,
    *,
    found: bool = False,
    model: str = READ_BY_WORDS,
    mode: AnswerMode = AnswerMode.CACHED,
) -> Answer:
    """An answer for which no model read a passage, such as a refusal where no chunk was retrieved."""
    return Answer(
        question=question,
        text=text,
        found=found,
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


def sources_of(chunks: Sequence[RetrievedChunk], store: Store) -> tuple[Source, ...]:
    """Number retrieved chunks as sources that no model has read, and compare their files with the index."""
    files = SourceFiles(store)
    numbered = enumerate(chunks, start=1)
    return tuple(source_of(number, chunk.passage, files, score=chunk.score) for number, chunk in numbered)


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
        return True, Absence(why, passage.indexed_at if row is None else row.indexed_at)

    @cached_property
    def _absent(self) -> list[AbsentFolder]:
        return absent_folders(self._store)


def source_of(
    number: int, passage: Passage, files: SourceFiles, *, score: float = 0.0, warm: bool | None = None
) -> Source:
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
        copies=passage.copies,
    )
