"""Settle how an engine answers: attention path, selective recompute and decoding."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from desk_rag.answering import generation
from desk_rag.answering.context import Context, ContextChunk, LivePrefill
from desk_rag.answering.events import Source, Timings
from desk_rag.answering.evidence.deeper import Pointers, load_pointers
from desk_rag.answering.evidence.selection import EvidenceDecoding, EvidenceSelector
from desk_rag.answering.requirements.places import place_of_source
from desk_rag.answering.stream import AnswerStream
from desk_rag.answering.writing.length import length_for, longest
from desk_rag.config import AnswerSettings
from desk_rag.device_lock import DeviceLock
from desk_rag.documents.chunking import ChunkId
from desk_rag.documents.status import plural
from desk_rag.errors import Cancelled, ConfigError, OutOfMemory, UnsupportedModel
from desk_rag.kv.forward.runner import ModelRunner, Pass
from desk_rag.kv.identity import kv_key
from desk_rag.kv.lazy import cache
from desk_rag.kv.lazy.memory import AttentionPath, choose_attention
from desk_rag.kv.positions import StitchPlan
from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel
from desk_rag.kv.recompute.policy import RecomputeChoice, SelectorName
from desk_rag.kv.recompute.step import PrefillResult, RecomputeHandle, Recomputer, RecomputeRequest
from desk_rag.kv.rope import RotaryTables
from desk_rag.kv.serving import ServingModel
from desk_rag.kv.shift import PlaceShift
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.memory import device as device_memory
from desk_rag.retrieval.embedding import Embedder, EmbedderLike
from desk_rag.store.store import Store
from desk_rag.timing import Stopwatch

if TYPE_CHECKING:
    from desk_rag.answering.writing.stream import WrittenStream

_log = logging.getLogger(__name__)

_WAIT_SECONDS = 0.1
"""Seconds between two checks whether an answer has ended."""


def attention_path(
    settings: AnswerSettings, model: LanguageModel, largest_plan: StitchPlan, room: int, shift: PlaceShift | None = None
) -> AttentionPath:
    """Choose the attention path: as set, else lazy attention if a slab does not fit the GPU.

    The slab must hold `largest_plan`; `room` is the number of tokens of question and answer. Call it before the slab is
    allocated. On a CPU 'auto' always materialises, because lazy attention is slow there; so it does for an adapted
    model, whose chunks are shifted in the slab. Raises ConfigError if lazy attention is combined with recompute or an
    adapted model, UnsupportedModel for models that lazy attention does not cover.
    """
    if settings.attention == "lazy":
        if settings.recompute:
            raise _recompute_needs_slab(f"'{settings.recompute}'")
        if shift is not None:
            raise ConfigError(
                f"'{model.spec.name}' was adapted to this folder, which lazy attention cannot apply.",
                remedy='Set `attention = "materialize"` under [answer], or take it back: desk-rag adapt --undo',
            )
        if not cache.supports(model):
            raise UnsupportedModel(
                f"'{model.spec.name}' has sliding-window or soft-capped layers, which lazy attention does not cover.",
                remedy='Set `attention = "materialize"` under [answer].',
            )
        return AttentionPath.LAZY
    free_to_choose = settings.attention == "auto" and not settings.recompute and model.device.type == "cuda"
    if not free_to_choose or shift is not None or not cache.supports(model):
        return AttentionPath.MATERIALIZE
    free = device_memory.free_gpu_bytes(model.device)
    return choose_attention(free, model.spec, largest_plan, room=room)


def allocate(
    attention: AttentionPath,
    new_slab: Callable[[int], ModelRunner],
    model: LanguageModel,
    context_tokens: int,
    others: int,
) -> tuple[ModelRunner | None, int]:
    """Allocate a slab for `context_tokens` of passages beside `others`, or for as many as memory allows.

    Their number, which is returned, is halved as often as needed, down to the largest chunk; lazy attention needs no
    slab. Raises OutOfMemory if one chunk does not fit.
    """
    if attention is AttentionPath.LAZY:
        return None, context_tokens
    while True:
        try:
            return new_slab(context_tokens + others), context_tokens
        except OutOfMemory:
            if context_tokens <= model.prompt.chunk_size.largest:
                raise
        context_tokens = max(model.prompt.chunk_size.largest, context_tokens // 2)
        _log.warning("Not enough memory for all passages of an answer; at most %d tokens are read", context_tokens)
        device_memory.release_unused(model.device)


@dataclass(frozen=True, slots=True)
class BegunAnswer:
    """First token of an answer and the tokens to come."""

    first: generation.Token
    later_tokens: Iterator[generation.Token]
    timings: Timings
    live_prefills: tuple[LivePrefill, ...] = ()
    whole: tuple[Source, ...] = ()
    """Sources that full prefill has read."""
    recompute: TimedRecompute | None = None

    @property
    def unseen(self) -> tuple[ContextChunk, ...]:
        """Chunks without chunk KV of the auxiliary model, which therefore did not select."""
        return () if self.recompute is None else self.recompute.unseen

    @property
    def notices(self) -> tuple[str, ...]:
        """Sentence for the user if another selector than the one asked for was used."""
        if not self.unseen:
            return ()
        missing = f"The auxiliary model has no cache of {plural(len(self.unseen), 'passage')} yet"
        them = "it is" if len(self.unseen) == 1 else "they are"
        return (f"{missing}, so `{INSTEAD.value}` selected what was recomputed; {them} made after this answer.",)

    @property
    def read_anew(self) -> set[ChunkId]:
        """Chunks that were not loaded."""
        return {source.chunk_id for source in (*self.whole, *(one.chunk.source for one in self.live_prefills))}

    @property
    def by_choice(self) -> int:
        """Number of chunks that were not loaded although their KV is on disk."""
        return len(self.whole) + sum(one.is_choice for one in self.live_prefills)


INSTEAD = SelectorName.EDGE_QUERY
"""Selects where chunk KV of the auxiliary model is missing: prefilling it would take longer than this selection."""


class TimedRecompute:
    """One answer's first pass with selective recompute.

    Replaces the plain pass over the question.
    """

    def __init__(
        self, recomputing: RecomputeHandle, selector: SelectorName, unseen: tuple[ContextChunk, ...] = ()
    ) -> None:
        """`unseen` are the chunks for which `selector` is `INSTEAD`."""
        self._recomputing, self._selector, self.unseen = recomputing, selector, unseen
        self._result: PrefillResult | None = None

    def prefill(self) -> torch.Tensor:
        """Logits [vocab] of the question's last token.

        Call it again if the chunks had to be stitched again.
        """
        self._result = self._recomputing.prefill()
        return self._result.logits

    @property
    def ratio(self) -> float:
        """Share of chunk tokens that were recomputed."""
        return self._result.selection.ratio if self._result is not None else 0.0

    @property
    def selector(self) -> str:
        """Name of the selector that selected them."""
        return self._selector.value

    def choosing(self, waited: float) -> float:
        """Seconds of token selection within the pass, which waited `waited` seconds for loading.

        A selector that reads the cache does that waiting itself; it is already counted as loading.
        """
        seconds = self._result.choosing_seconds if self._result is not None else 0.0
        return max(0.0, seconds - waited) if self._selector.needs_cache else seconds


class Recompute:
    """Selective recompute over one engine's slab."""

    def __init__(
        self,
        settings: AnswerSettings,
        model: LanguageModel,
        slab: ModelRunner | None,
        tables: RotaryTables,
        auxiliary: AuxiliaryModel | None,
    ) -> None:
        """`slab` is None with lazy attention, which has no place for recomputed keys and values."""
        self.choice, self._slab, self._auxiliary = RecomputeChoice.of(settings), slab, auxiliary
        self._closing = threading.Event()
        self._recomputer = Recomputer(model, slab.cache, tables, self.choice, auxiliary) if slab is not None else None

    def begin(
        self,
        choice: RecomputeChoice | None,
        plan: StitchPlan,
        context: Context,
        question: str,
        question_ids: Sequence[int],
        watch: Stopwatch,
    ) -> TimedRecompute | None:
        """Start selecting the tokens to recompute; None if nothing is recomputed.

        `choice` overrides the settings. `INSTEAD` selects if a chunk has no chunk KV of the auxiliary model. Raises
        ConfigError with lazy attention.
        """
        choice = choice or self.choice
        if not choice.ratio:
            return None
        if self._recomputer is None or self._slab is None:
            raise _recompute_needs_slab(f"'{choice.ratio}'")
        self._slab.forget_prefix()
        texts = [chunk.source.text for chunk in context.chunks]
        request = RecomputeRequest(plan, texts, [chunk.token_ids for chunk in context.chunks], question, question_ids)
        with watch.stage("choose"):
            unseen = self._unseen(choice, context, texts)
            choice = replace(choice, selector=INSTEAD) if unseen else choice
            recomputing = self._recomputer.begin(request, choice)
        return TimedRecompute(recomputing, choice.selector, unseen) if recomputing.ratio else None

    def _unseen(self, choice: RecomputeChoice, context: Context, texts: Sequence[str]) -> tuple[ContextChunk, ...]:
        if self._auxiliary is None or not choice.needs_auxiliary or choice.ratio == 1:
            return ()
        return tuple(chunk for chunk, has in zip(context.chunks, self._auxiliary.has(texts), strict=True) if not has)

    def rehearse(self) -> None:
        """Call `Recomputer.rehearse`; the slab's contents are lost."""
        if self._recomputer is not None and self._slab is not None:
            self._slab.forget_prefix()
            self._recomputer.rehearse()

    def fill(self, chunk: ContextChunk, store: Store, turn: DeviceLock, serving: ServingModel) -> None:
        """Prefill the auxiliary model's KV of one chunk, giving way to answers, for the next answer that reads it.

        It is kept in memory, and in `store` if that is a writer and has room for it. After `close` it no longer waits.
        """
        text, auxiliary = chunk.source.text, self._auxiliary
        assert auxiliary is not None, "an answer has missed its chunk KV"
        while not all(auxiliary.has([text])):
            if turn.answer_waits():
                if self._closing.wait(_WAIT_SECONDS):
                    return
                continue
            try:
                with turn.prefilling():
                    began = time.perf_counter()
                    (kv,) = auxiliary.prefill([text], turn.answer_waits)
            except Cancelled:
                continue
            if store.writer:
                (ids,) = auxiliary.chunk_ids([text])
                key = kv_key(serving.auxiliary_namespace or serving.namespace, ids)
                store.put_kv(key, kv, [chunk.source.chunk_id], time.perf_counter() - began)
            return

    def close(self) -> None:
        """End the auxiliary model's thread, and the waiting of `fill`."""
        self._closing.set()
        if self._recomputer is not None:
            self._recomputer.close()


class Decoding:
    """Decoding by one engine's settings: with or without selected quotes."""

    def __init__(self, settings: AnswerSettings, model: LanguageModel, embedder: Embedder) -> None:
        """Quotes are selected with the embedded reader and embedder, unless the settings forbid it."""
        self._prompt, self._settings, self._is_embedded = model.prompt, settings, model.is_embedded
        self._window = model.spec.max_context
        self.longest = longest(settings, model.prompt, self._window)
        """Most tokens of an answer, reasoning included."""
        selects_quotes = settings.choose_quote and model.is_embedded
        reads_spans = (selects_quotes or model.prompt.writes) and embedder.is_embedded
        self.span_scorer = load_pointers(embedder, looks_twice=selects_quotes) if reads_spans else None
        """Also used to verify the evidence, and to check what a model wrote in its own words; None without either."""
        self._selector: EvidenceSelector | None = None
        if selects_quotes and self.span_scorer is not None:
            self._selector = EvidenceSelector(model.prompt, self.span_scorer)

    @property
    def quote_scorer(self) -> Pointers | None:
        """The span scorer that selects quotes; None for a model that has none selected, such as one that writes."""
        return self.span_scorer if self._selector is not None else None

    def question_ids(self, question: str, context: Context, most: int) -> list[int]:
        """Token ids behind the last chunk: the question of at most `most` tokens, and what stands around it."""
        sources = [chunk.source for chunk in context.chunks]
        titles = [(one.number, f"{one.path.name}: {one.location.heading or one.title}") for one in sources]
        return self._prompt.question_ids(question, most, titles)

    def open_stream(
        self, question: str, sources: Sequence[Source], embedder: EmbedderLike, refusal: float | None
    ) -> AnswerStream | WrittenStream:
        """Open the stream that fits the model's way to answer.

        `refusal` is the probability that its first token begins a refusal. Only the model that the judge of evidence
        was fitted on has answers withheld.
        """
        if not self._prompt.writes:
            own = self._is_embedded
            known = refusal if own else None
            return AnswerStream(question, sources, embedder, known, self.span_scorer, withholds=own, extractive=own)
        # Not needed by the embedded reader; the patterns in these modules are a third of all that are compiled.
        from desk_rag.answering.writing.stream import WrittenStream
        from desk_rag.answering.writing.support import SupportChecker

        checker = SupportChecker(question, sources, embedder, self.span_scorer)
        length = length_for(question, self._settings, self._prompt, self._window)
        return WrittenStream(question, sources, checker, self._prompt.reasoning, length)

    def tokens(
        self,
        run: Pass,
        logits: torch.Tensor,
        position: int,
        stop: Callable[[], bool],
        strategy: generation.DecodingStrategy,
    ) -> Iterator[generation.Token]:
        """Call `generation.decode`."""
        return generation.decode(
            self._prompt, run, logits, position, max_new_tokens=self.longest, stop=stop, strategy=strategy
        )

    def strategy(self, question: str, sources: Sequence[Source]) -> generation.DecodingStrategy:
        """The strategy for one answer from `sources`."""
        if self._selector is None:
            return generation.Greedy()
        places = [place_of_source(source) for source in sources]
        if self.span_scorer is not None:
            self.span_scorer.read_ahead(question, places)
        return EvidenceDecoding(self._selector, question, places)

    def close(self) -> None:
        """End the span scorer's thread."""
        if self.span_scorer is not None:
            self.span_scorer.close()


def _recompute_needs_slab(recompute: str) -> ConfigError:
    return ConfigError(
        f"recompute = {recompute} cannot be combined with lazy attention (`attention` under [answer]).",
        remedy='Set `attention = "materialize"` under [answer], or `recompute = 0`.',
    )
