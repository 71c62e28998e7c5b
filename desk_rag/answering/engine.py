"""Answer a question: retrieve, load, stitch, prefill the question, decode, cite.

One iterator of events serves the TUI, the CLI and the benchmarks. Full prefill, the baseline, is a mode of this code.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from desk_rag.answering import context as answer_context
from desk_rag.answering import generation
from desk_rag.answering.context import Context, ContextChunk, LivePrefill, passage_limit, timings
from desk_rag.answering.events import Answer, AnswerEvent, AnswerMode, Finished, FirstToken, Retrieved
from desk_rag.answering.evidence.citation_check import CitationCheck
from desk_rag.answering.kv_connector import CacheTarget, KVConnector, KVLoadHandle, open_connector
from desk_rag.answering.load_costs import known_or_measured
from desk_rag.answering.prefetch import Prefetcher
from desk_rag.answering.questions.asking import ChooseChunks, Reader, answer
from desk_rag.answering.questions.less_memory import with_less_memory
from desk_rag.answering.questions.nearest import nearest
from desk_rag.answering.strategy import BegunAnswer, Decoding, Recompute, allocate, attention_path
from desk_rag.config import Settings
from desk_rag.device_lock import DeviceLock
from desk_rag.ingest import damage, unread
from desk_rag.kv.calibration.texts import PROBE
from desk_rag.kv.forward.fused_decoder import FusedDecoder
from desk_rag.kv.forward.runner import ModelRunner
from desk_rag.kv.loading.load import ChunksLost
from desk_rag.kv.positions import plan
from desk_rag.kv.prefill import prefill_chunk
from desk_rag.kv.quant import quantize
from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel
from desk_rag.kv.recompute.policy import RecomputeChoice
from desk_rag.kv.rope import RotaryTables, build_tables
from desk_rag.kv.serving import ServingModel
from desk_rag.kv.types import KVKey
from desk_rag.model.memory.device import memory_errors
from desk_rag.model.prompt import NO_ANSWER
from desk_rag.retrieval.embedding import Embedder, QuestionCache
from desk_rag.retrieval.search import RetrievedChunk
from desk_rag.store.store import Store
from desk_rag.timing import Stopwatch


class AnswerEngine:
    """Answers questions from one store with one model, one at a time; `ask` may be called from any thread."""

    def __init__(
        self,
        serving: ServingModel,
        embedder: Embedder,
        store: Store,
        turn: DeviceLock,
        settings: Settings,
        loading: Callable[[Store, CacheTarget], KVConnector] | None = None,
        *,
        lean: bool | None = None,
        auxiliary: AuxiliaryModel | None = None,
    ) -> None:
        """Allocate the cache, start the loader and run one pass to warm up.

        Args:
            loading: opens the connector; by default with as much memory as the settings say.
            lean: whether to use the fused forward pass; by default if it is the fastest on the device.
            auxiliary: the model that selects tokens to recompute, if the settings ask for one.
        Raises ConfigError or UnsupportedModel if no chunk fits into the context.
        """
        self.serving, self.prefix, self.namespace = serving, serving.prefix, serving.namespace
        self.model = model = serving.model
        self.embedder, self.store, self.turn, self.settings = embedder, store, turn, settings
        self._former_store: Store | None = None
        store.register_model(self.serving.prefix_variants.namespaces, self.serving.auxiliary_namespace)
        self.top_k = settings.answer.top_k or model.prompt.top_k
        self._decoding = Decoding(settings.answer, model, embedder)
        self._question_room = answer_context.question_room(model.spec.max_context)
        answer_room = answer_context.answer_room(settings.answer, model.prompt, model.spec.max_context)
        room = self.prefix.num_tokens + answer_room
        limit = passage_limit(settings.answer, model.prompt, model.spec.max_context, model.spec.name)
        self._tables: RotaryTables = build_tables(model, limit.tokens + room)
        self._new_slab = partial(ModelRunner, model, self.prefix, self._tables, fused=lean, shift=serving.shift)
        largest = plan(self.prefix.num_tokens, [limit.tokens])
        self.attention = attention_path(settings.answer, model, largest, answer_room, serving.shift)
        self._slab, self.context_tokens = allocate(self.attention, self._new_slab, model, limit.tokens, room)
        self._limit = limit.within_memory(self.context_tokens)
        self._ways: dict[int, str] = {}
        self._recompute = Recompute(settings.answer, model, self._slab, self._tables, auxiliary)
        self._target = target = CacheTarget(model, self.prefix, self._tables, self._slab, answer_room)
        self._connector = (loading or partial(open_connector, settings.answer))(store, target)
        self._prefetcher = Prefetcher(self._connector.prefetch, self._connector.cancel_prefetch)
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="write-back")
        try:
            self._rehearse()
            if loading is None:
                self._connector.rates = known_or_measured(store, serving, self._connector.loader, self._slab)
        except BaseException:
            self.release()
            raise

    def ask(
        self,
        question: str,
        *,
        mode: AnswerMode = AnswerMode.CACHED,
        top_k: int | None = None,
        under: Sequence[Path] = (),
        stop: Callable[[], bool] = lambda: False,
        recompute: RecomputeChoice | None = None,
    ) -> Iterator[AnswerEvent]:
        """Yield Retrieved, FirstToken, then Evidence and AnswerText as they come, and Finished last.

        `under` limits retrieval to folders or files, `stop` is checked between tokens (the partial text is kept),
        `recompute` overrides the settings. A question longer than the model can read is cut, for retrieval too.
        """
        once = partial(self._ask_once, embedder=QuestionCache(self.embedder), mode=mode, stop=stop, recompute=recompute)
        frugal = with_less_memory(once, self.forget_loaded, self.model.device)
        reader = Reader(self.store, self.embedder, self._decoding.quote_scorer, top_k or self.top_k, stop, frugal)
        return answer(reader, question, under)

    def _ask_once(
        self,
        question: str,
        choose: ChooseChunks,
        under: Sequence[Path],
        *,
        embedder: QuestionCache,
        mode: AnswerMode,
        stop: Callable[[], bool],
        recompute: RecomputeChoice | None,
    ) -> Iterator[AnswerEvent]:
        """Answer from the chunks that `choose` returns for the question."""
        watch, asked_at = Stopwatch(self._sync), time.perf_counter()
        self._prefetcher.question_asked(question)
        with self._prefetcher.paused() as go_ahead, self.turn.answering(), ExitStack() as loads:
            watch.stages.append(("queue", time.perf_counter() - asked_at))
            with watch.stage("retrieve"):
                readable, cut_at = self.model.prompt.readable(question, self._question_room)
                chunks = choose(embedder, readable)
                if mended := damage.read_damaged(self.store, self.model.prompt, self.settings.index):
                    chunks = choose(embedder, readable)
                context, load = self._settle_context(chunks, loads, mode)
            notices = tuple(filter(None, [self._limit.notice(context.left_out, len(chunks))]))
            lacking = None if any(chunk.vector_rank for chunk in chunks) else embedder.fingerprint
            yield Retrieved(context.sources)
            if not context.sources:
                # Without documents a model makes something up, so it is not run.
                name, stages = self.model.spec.name, timings(watch.stages)
                empty = answer_context.answer_without_sources(question, NO_ANSWER, stages, model=name, mode=mode)
                notices += damage.notices(self.store, mended, under, lacking)
                empty = replace(empty, question_cut_at=cut_at, notices=notices, left_out_passages=context.left_out)
                yield Finished(replace(empty, not_read=unread.may_hold_answer(self.store, under)))
                return
            if load is None or load.whole_is_faster:
                begun = self._full(context, readable, watch, stop)
            else:
                begun = self._cached(context, load, readable, watch, stop, recompute)
            context, notices = context if load is None else context.as_read(begun.read_anew), notices + begun.notices
            yield FirstToken(begun.timings)
            self._prefetcher.prefetch_neighbours(partial(self._neighbours, context))
            go_ahead()
            token, check = begun.first, CitationCheck(context.sources)
            stream = self._decoding.open_stream(readable, context.sources, embedder, token.refusal_probability)
            first_at, raw, count = token.sampled_at, token.text, 1
            yield from map(check.event, stream.feed(token.text, token.count))
            for token in begun.later_tokens:
                raw, count = raw + token.text, count + token.count
                yield from map(check.event, stream.feed(token.text, token.count, ends_quotes=token.ends_quotes))
                if stream.ended:
                    break
            decoding = token.sampled_at - first_at
        stopped = stop() and not stream.ended
        parsed, last_events = stream.finish(stopped=stopped)
        yield from map(check.event, last_events)
        self._write_back(context, begun)
        warm = sum(bool(source.warm) for source in context.sources)
        yield Finished(
            Answer(
                question=question,
                text=parsed.text,
                found=parsed.found,
                citations=tuple(map(check.citation, parsed.citations)),
                dropped_quotes=parsed.dropped_quotes,
                sources=context.sources,
                timings=replace(begun.timings, decode_seconds=decoding, decoded_tokens=count - 1),
                warm_chunks=warm,
                cold_chunks=len(context.sources) - warm,
                read_anew_chunks=0 if load is None else begun.by_choice,
                mode=mode,
                model=self.model.spec.name,
                raw=raw,
                stopped=stopped,
                question_cut_at=cut_at,
                left_out_passages=context.left_out,
                notices=(*notices, *parsed.notices, *damage.notices(self.store, mended, under, lacking)),
                sentences=tuple(map(check.sentence, parsed.sentences)),
                reasoning=parsed.reasoning,
                not_read=None if parsed.found or stopped else unread.may_hold_answer(self.store, under),
                support=stream.support,
                unmet=stream.unmet,
            )
        )

    def prefetch(self, question: str, *, top_k: int | None = None, under: Sequence[Path] = ()) -> None:
        """Prefetch chunk KV for `question`, which is expected next; returns at once.

        Runs while no answer waits for its first token. A later call replaces an earlier one.
        """
        self._prefetcher.prefetch_question(question, partial(self._needed, question, top_k or self.top_k, tuple(under)))

    def forget_loaded(self) -> None:
        """Drop chunk KV that this process holds in memory, as after a restart (for measurements)."""
        self._prefetcher.clear()
        self._connector.forget()

    def forget_read(self) -> None:
        """Drop remembered span scores (for measurements)."""
        if self._decoding.span_scorer is not None:
            self._decoding.span_scorer.forget()

    def settle(self) -> None:
        """Wait until live prefills are written back or rejected, and prefetches are started."""
        self._writer.submit(lambda: None).result()
        self._prefetcher.settle()

    @property
    def loading(self) -> tuple[CacheTarget, KVConnector, FusedDecoder | None]:
        """Where chunk KV goes, what loads it, and the fused pass; None if an answer is more than plain passes."""
        plain = None if self._recompute.choice.ratio else self._slab
        return self._target, self._connector, None if plain is None else plain.fused

    def beside(self, target: CacheTarget, connector: KVConnector, turn: DeviceLock) -> AnswerEngine:
        """Return an engine that answers into another cache and shares all else; one of them runs at a time."""
        other = copy(self)
        other._target, other._connector, other.turn = target, connector, turn
        return other

    def become_writer(self, store: Store) -> None:
        """Write through `store` from now on; it is a writer over the same data directory, and closed by `close`.

        An answer in progress may use either store, because both are views of the same catalog and files. What loads
        chunk KV keeps the one it was created with. If this raises, `store` is closed and nothing has changed.
        """
        try:
            store.register_model(self.serving.prefix_variants.namespaces, self.serving.auxiliary_namespace)
        except BaseException:
            store.close()
            raise
        self._former_store, self.store = self.store, store

    def close(self) -> None:
        """Finish write-backs, end all threads and close the store."""
        self.release()
        self.store.close()
        if self._former_store is not None:
            self._former_store.close()

    def release(self) -> None:
        """Close as `close` does, but leave the store open."""
        self._recompute.close()
        self._writer.shutdown(wait=True, cancel_futures=not self.store.writer)
        self._prefetcher.close()
        self._decoding.close()
        self._connector.close()

    def _settle_context(
        self, chunks: Sequence[RetrievedChunk], loads: ExitStack, mode: AnswerMode
    ) -> tuple[Context, KVLoadHandle | None]:
        """Settle what the answer reads, and start loading it; no load for full prefill.

        Loading starts with the keys in the catalog, while the token ids that decide are still being computed; later
        where the number of chunks decides among prefix variants, or the length between loading and full prefill.
        """
        cached, connector = mode is AnswerMode.CACHED, self._connector
        early = self.serving.prefix_variants.is_plain and not connector.prefers_full([1] * len(chunks))
        load = None
        if cached and early:
            load = loads.enter_context(closing(connector.start_load(partial(self._kv_of, chunks))))
        context = answer_context.build(chunks, self.serving, self.store, self.context_tokens)
        if cached and not early:
            load = loads.enter_context(closing(connector.start_settled(*context.warm_keys_and_lengths)))
        if load is not None and not load.whole_is_faster:
            load.select([chunk.key for chunk in context.chunks])
        return context, load

    def _cached(
        self,
        context: Context,
        load: KVLoadHandle,
        question: str,
        watch: Stopwatch,
        stop: Callable[[], bool],
        recompute: RecomputeChoice | None,
    ) -> BegunAnswer:
        """Prefill the question over loaded chunk KV; missing chunks are prefilled live first."""
        question_ids = self._decoding.question_ids(question, context, self._question_room)
        stitch_plan = plan(self.prefix.num_tokens, [len(chunk.token_ids) for chunk in context.chunks])
        recomputing = self._recompute.begin(recompute, stitch_plan, context, question, question_ids, watch)
        strategy = self._decoding.strategy(question, context.sources)
        start, end = stitch_plan.next_position, stitch_plan.next_position + len(question_ids)
        live_prefills: list[LivePrefill] = []
        while True:
            with watch.stage("load"):
                missing = load.missing()
            if missing:
                with watch.stage("live prefill"):
                    live_prefills += [self._prefill_live(context.chunks[index], load, index) for index in missing]
            with watch.stage("stitch"):
                attached = load.attach(stitch_plan, by_layers=recomputing is not None)
            try:
                with watch.stage("prefill"), attached as run:
                    logits = run.forward(question_ids, start) if recomputing is None else recomputing.prefill()
                    tokens = self._decoding.tokens(run, logits, end, stop, strategy)
                    first = next(tokens)
            except ChunksLost:
                continue  # a damaged file was discovered during the pass and counts as missing from now on
            spent = timings(watch.stages, end, load, recomputing)
            load.release()
            return BegunAnswer(first, tokens, spent, tuple(live_prefills), recompute=recomputing)

    def _full(self, context: Context, question: str, watch: Stopwatch, stop: Callable[[], bool]) -> BegunAnswer:
        """Prefill prefix, chunks and question as one prompt: the baseline."""
        with watch.stage("stitch"):
            chunk_ids = [token_id for chunk in context.chunks for token_id in chunk.token_ids]
            question_ids = self._decoding.question_ids(question, context, self._question_room)
            prompt_ids = [*self.model.prompt.prefix_ids, *chunk_ids, *question_ids]
        # Outside of all stages: finding the fastest pass for this length, once, is not prefill.
        slab = self._slab or self._new_slab(self._tables.num_positions, graphs=False, known=self._ways)
        prefill = slab.whole(prompt_ids)
        with watch.stage("prefill"):
            strategy = self._decoding.strategy(question, context.sources)
            tokens = self._decoding.tokens(slab.run(), prefill(), len(prompt_ids), stop, strategy)
            first = next(tokens)
        return BegunAnswer(first, tokens, timings(watch.stages, len(prompt_ids)), whole=context.sources)

    def _prefill_live(self, chunk: ContextChunk, load: KVLoadHandle, index: int) -> LivePrefill:
        began = time.perf_counter()
        kv = quantize(prefill_chunk(self.model, chunk.variant.prefix, chunk.token_ids), self.serving.scheme)
        self._sync()
        load.replace(index, kv)
        return LivePrefill(chunk, kv, time.perf_counter() - began, index in load.faster_anew)

    def _neighbours(self, context: Context) -> Sequence[KVKey]:
        """Keys of the chunks next to the sources, which a follow-up question may need.

        Empty with several prefix variants, because the place in the next context is not known.
        """
        if not self.serving.prefix_variants.is_plain:
            return ()
        return self.store.kv_keys(self.namespace, [source.chunk_id for source in context.sources], beside=True)

    def _needed(self, question: str, limit: int, under: Sequence[Path]) -> Sequence[KVKey]:
        readable, _ = self.model.prompt.readable(question, self._question_room)
        return self._kv_of(nearest(self.store, self.embedder, readable, limit, under))

    def _kv_of(self, chunks: Sequence[RetrievedChunk]) -> Sequence[KVKey]:
        return answer_context.expected_keys(chunks, self.serving, self.store)

    @memory_errors()
    def _rehearse(self) -> None:
        """Run one pass, so that the first question does not wait for kernels to be compiled."""
        with self.turn.prefilling():
            question_ids = self.model.prompt.question_ids("When?", self._question_room)
            if self._slab is not None:  # first, since it finds out whether this machine can run the fused pass
                self._slab.prepare(question_ids)
            ids = self.model.prompt.chunk_ids(PROBE)
            chunk = quantize(prefill_chunk(self.model, self.prefix, ids), self.serving.scheme)
            stitch_plan = plan(self.prefix.num_tokens, [chunk.num_tokens])
            run, start = self._target.fill(stitch_plan, [chunk]), stitch_plan.next_position
            logits, end = run.forward(question_ids, start), start + len(question_ids)
            next(self._decoding.tokens(run, logits, end, lambda: True, generation.Greedy()))
            if self._decoding.span_scorer is not None:
                self._decoding.span_scorer.read("When?", [PROBE])
            self._recompute.rehearse()
            self._sync()

    def _write_back(self, context: Context, begun: BegunAnswer) -> None:
        """Store what was prefilled live, off the answer's path; without write access, ask the writer for it."""
        # Before the write-back: a full cache admits what was retrieved before.
        self.store.note_use([source.chunk_id for source in context.sources])
        unstored = [one for one in begun.live_prefills if not one.is_choice]
        if self.store.writer:
            for one in unstored:
                self._writer.submit(self.store.put_kv, one.chunk.key, one.kv, [one.chunk.source.chunk_id], one.seconds)
        elif missing := [*(one.chunk for one in unstored), *begun.unseen]:
            self.store.want_kv([chunk.source.chunk_id for chunk in missing])
        for chunk in begun.unseen:
            self._writer.submit(self._recompute.fill, chunk, self.store, self.turn, self.serving)

    def _sync(self) -> None:
        # Only this thread's stream: copies on the loader's stream must not be waited for.
        if self.model.device.type == "cuda":
            torch.cuda.current_stream(self.model.device).synchronize()
