"""Settle how an engine answers: attention path, selective recompute and decoding."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from desk_rag.answering import generation
from desk_rag.answering.context import Context, LivePrefill
from desk_rag.answering.events import Source, Timings
from desk_rag.answering.evidence.selection import EvidenceDecoding, EvidenceSelector
from desk_rag.answering.evidence.span_scorer import SpanScorer, load_span_scorer
from desk_rag.answering.requirements.places import place_of_source
from desk_rag.answering.stream import AnswerStream
from desk_rag.answering.writing.length import length_for, longest
from desk_rag.config import AnswerSettings
from desk_rag.documents.chunking import ChunkId, chunk_id_of
from desk_rag.errors import ConfigError, OutOfMemory, UnsupportedModel
from desk_rag.kv.forward.runner import ModelRunner, Pass
from desk_rag.kv.identity import kv_key
from desk_rag.kv.lazy import cache
from desk_rag.kv.lazy.memory import AttentionPath, choose_attention
from desk_rag.kv.positions import StitchPlan
from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel
from desk_rag.kv.recompute.policy import RecomputeChoice, SelectorName
from desk_rag.kv.recompute.step import PrefillResult, RecomputeHandle, Recomputer, RecomputeRequest
from desk_rag.kv.rope import RotaryTables
from desk_rag.kv.shift import PlaceShift
from desk_rag.kv.types import KVKey, Namespace, QuantizedKV
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.memory import device as device_memory
from desk_rag.retrieval.embedding import Embedder, EmbedderLike
from desk_rag.timing import Stopwatch

if TYPE_CHECKING:
    from desk_rag.answering.writing.stream import WrittenStream

_log = logging.getLogger(__name__)


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

    @property
    def read_anew(self) -> set[ChunkId]:
        """Chunks that were not loaded."""
        return {source.chunk_id for source in (*self.whole, *(one.chunk.source for one in self.live_prefills))}

    @property
    def by_choice(self) -> int:
        """Number of chunks that were not loaded although their KV is on disk."""
        return len(self.whole) + sum(one.is_choice for one in self.live_prefills)


class TimedRecompute:
    """One answer's first pass with selective recompute.

    Replaces the plain pass over the question.
    """

    def __init__(self, recomputing: RecomputeHandle, selector: SelectorName) -> None:
        self._recomputing, self._selector = recomputing, selector
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
        self.choice, self._slab = RecomputeChoice.of(settings), slab
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

        `choice` overrides the settings. Raises ConfigError with lazy attention.
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
            recomputing = self._recomputer.begin(request, choice)
        return TimedRecompute(recomputing, choice.selector) if recomputing.ratio else None

    def rehearse(self) -> None:
        """Call `Recomputer.rehearse`; the slab's contents are lost."""
        if self._recomputer is not None and self._slab is not None:
            self._slab.forget_prefix()
            self._recomputer.rehearse()

    def take_auxiliary_prefills(self, namespace: Namespace) -> list[tuple[KVKey, QuantizedKV, list[ChunkId], float]]:
        """Return the chunk KVs that the auxiliary model prefilled since the last call, as `Store.put_kv` takes them."""
        auxiliary = None if self._recomputer is None else self._recomputer.auxiliary
        live = [] if auxiliary is None else auxiliary.take_live()
        return [(kv_key(namespace, one.token_ids), one.kv, [chunk_id_of(one.text)], one.seconds) for one in live]

    def close(self) -> None:
        """End the auxiliary model's thread."""
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
        self.span_scorer = load_span_scorer(embedder) if reads_spans else None
        """Also used to verify the evidence, and to check what a model wrote in its own words; None without either."""
        self._selector: EvidenceSelector | None = None
        if selects_quotes and self.span_scorer is not None:
            self._selector = EvidenceSelector(model.prompt, self.span_scorer)

    @property
    def quote_scorer(self) -> SpanScorer | None:
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
