"""From question to answer, read straight down: retrieve, load, stitch, prefill the question, decode, cite.

Knows the rooms and their order; each room knows its own trade. One iterator of events serves the TUI, the CLI and the
benchmarks, so what is measured is what ships; full prefill is one more value of the mode, through the same code.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from desk_rag.answering import context as answer_context
from desk_rag.answering import generation
from desk_rag.answering.auxiliary import open_auxiliary, prepare_auxiliary
from desk_rag.answering.context import Context, timings
from desk_rag.answering.events import Answer, AnswerEvent, AnswerMode, Finished, FirstToken, Retrieved, Timings
from desk_rag.answering.evidence.citation_check import CitationCheck
from desk_rag.answering.kv_connector import ContextLoader, Reading, Site, load_as_fits
from desk_rag.answering.prefetch import LookAhead
from desk_rag.answering.serving_model import Prepared, prepare
from desk_rag.answering.strategy import Decoding, Recompute, attention_path, wants_auxiliary
from desk_rag.answering.stream import AnswerStream
from desk_rag.config import Settings
from desk_rag.device_lock import Turn
from desk_rag.documents.chunking import ChunkId
from desk_rag.errors import ConfigError, UnsupportedModel
from desk_rag.ingest import damage, unread
from desk_rag.kv.calibration.gate import GateReport
from desk_rag.kv.calibration.texts import PROBE
from desk_rag.kv.forward.runner import Slab
from desk_rag.kv.lazy.memory import AttentionPath
from desk_rag.kv.loading.load import ChunksLost
from desk_rag.kv.positions import plan
from desk_rag.kv.prefill import PrefixKV, prefill_chunk
from desk_rag.kv.quant import QuantScheme, quantize
from desk_rag.kv.recompute.auxiliary_model import Auxiliary
from desk_rag.kv.recompute.policy import RecomputeChoice
from desk_rag.kv.rope import RotaryTables, build_tables
from desk_rag.kv.types import KVKey, Namespace, QuantizedKV
from desk_rag.retrieval.embedding import Embedder, OneQuestion, load_embedder
from desk_rag.retrieval.search import RetrievedChunk, retrieve
from desk_rag.store.store import Store
from desk_rag.timing import Stopwatch

_QUESTION_ROOM = 256
"""Slots for a question and the frame around it."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """A chunk KV that had to be computed for the answer."""

    index: int
    """Of the chunk in its context."""
    kv: QuantizedKV
    seconds: float
    """Of prefill."""


@dataclass(frozen=True, slots=True)
class Begun:
    """An answer whose first token is there."""

    first: generation.Token
    rest: Iterator[generation.Token]
    timings: Timings
    fresh: tuple[Fresh, ...]


class AnswerEngine:
    """Answers questions from one store with one model. `ask` may be called from any thread; answers run one at a
    time."""

    def __init__(
        self,
        prepared: Prepared,
        embedder: Embedder,
        store: Store,
        turn: Turn,
        settings: Settings,
        loading: Callable[[Store, Site], ContextLoader] | None = None,
        *,
        lean: bool | None = None,
        auxiliary: Auxiliary | None = None,
    ) -> None:
        """`loading` brings chunk KVs, `lean` is the lean pass instead of the model's own; by default each is what is
        fastest on the model's device. `auxiliary` chooses what is computed anew, where settings say so."""
        self.model = model = prepared.model
        self.prefix: PrefixKV = prepared.prefix
        self.scheme: QuantScheme = prepared.gate.scheme
        self.namespace: Namespace = prepared.namespace
        self.ladder = prepared.ladder
        self.gate: GateReport = prepared.gate
        self.embedder, self.store, self.turn, self.settings = embedder, store, turn, settings
        store.hold_together([rung.namespace for rung in self.ladder.rungs])
        self.top_k = settings.answer.top_k or model.prompt.top_k
        wanted = settings.answer.context_tokens or model.prompt.context_tokens
        asked_and_told = _QUESTION_ROOM + settings.answer.max_new_tokens
        room = self.prefix.num_tokens + asked_and_told
        self.context_tokens, largest = min(wanted, model.spec.max_context - room), model.prompt.chunk_size.largest
        if 0 < settings.answer.context_tokens < largest:
            raise ConfigError(
                f"context_tokens = {wanted} under [answer] is less than one chunk may have ({largest} tokens).",
                remedy=f"Set it to {largest} or more, or to 0 to follow the model.",
            )
        if self.context_tokens < largest:
            raise UnsupportedModel(
                f"'{model.spec.name}' has {model.spec.max_context} positions: too few for a chunk beside the question.",
                remedy="Take a model with a longer context, or lower [answer] max_new_tokens.",
            )
        capacity = self.context_tokens + room
        self._tables: RotaryTables = build_tables(model, capacity)
        self._new_slab = partial(Slab, model, self.prefix, self._tables, capacity, lean=lean)
        most = plan(self.prefix.num_tokens, [self.context_tokens])
        self.attention = attention_path(settings.answer, model, most, asked_and_told)
        self._slab = self._new_slab() if self.attention is AttentionPath.MATERIALIZE else None
        self._ways: dict[int, str] = {}
        self._recompute = Recompute(settings.answer, model, self._slab, self._tables, auxiliary)
        self._decoding = Decoding(settings.answer, model, embedder)
        self._site = site = Site(model, self.prefix, self._tables, self._slab, asked_and_told)
        made = loading(store, site) if loading is not None else load_as_fits(settings, store, site, self.namespace)
        self._loading: ContextLoader = made
        self._look_ahead = LookAhead(made.ahead, made.call_off)
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="write-back")
        try:
            self._rehearse()
        except BaseException:
            self._recompute.close()
            made.close()
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

        What a model cannot read of a long question is left out of retrieval too. `under` limits that to these folders
        or files; `stop`, asked between tokens, keeps the partial text; `recompute` goes before the settings' own.
        """
        watch = Stopwatch(self._sync)
        waiting = time.perf_counter()
        self._look_ahead.asked(question)
        with self._look_ahead.held_back() as go_ahead, self.turn.answering(), ExitStack() as reads:
            watch.stages.append(("queue", time.perf_counter() - waiting))
            with watch.stage("retrieve"):
                read, cut_at = self.model.prompt.readable(question, _QUESTION_ROOM)
                embedder = OneQuestion(self.embedder)
                found = retrieve(self.store, embedder, read, top_k or self.top_k, under)
                if mended := damage.read_damaged(self.store, self.model.prompt, self.settings.index):
                    found = retrieve(self.store, embedder, read, top_k or self.top_k, under)
                context, reading = self._settle_context(found, reads, mode)
            yield Retrieved(context.sources)
            if not context.sources:
                # A model without documents makes something up, so nothing is run.
                empty = answer_context.nothing_to_read(question, mode, self.model.spec.name, timings(watch.stages))
                told, not_read = damage.notices(self.store, mended, under), unread.may_hold_answer(self.store, under)
                yield Finished(replace(empty, question_cut_at=cut_at, notices=told, not_read=not_read))
                return
            if reading is None:
                begun = self._full(context, read, watch, stop)
            else:
                begun = self._cached(context, reading, read, watch, stop, recompute)
            yield FirstToken(begun.timings)
            self._look_ahead.beside(partial(self._beside, context))
            go_ahead()
            token = begun.first
            doubt = token.refusal_probability if self.model.is_embedded else None
            stream = AnswerStream(read, context.sources, embedder, doubt, self._decoding.pointer)
            check = CitationCheck(context.sources)
            first_at, raw, count = token.at, token.text, 1
            yield from map(check.event, stream.feed(token.text))
            for token in begun.rest:
                raw, count = raw + token.text, count + token.count
                yield from map(check.event, stream.feed(token.text))
                if stream.refused:
                    break
            decoding = token.at - first_at
        stopped = stop() and not stream.refused
        parsed, rest = stream.finish(stopped=stopped)
        yield from map(check.event, rest)
        self._write_back(context, begun.fresh)
        warm = sum(source.warm for source in context.sources)
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
                mode=mode, model=self.model.spec.name,
                raw=raw,
                stopped=stopped,
                question_cut_at=cut_at,
                notices=damage.notices(self.store, mended, under),
                not_read=None if parsed.found or stopped else unread.may_hold_answer(self.store, under),
            )
        )

    def prefetch(self, question: str, *, top_k: int | None = None, under: Sequence[Path] = ()) -> None:
        """Bring nearer what `question` will need, as it will be asked next; returns at once.

        Runs once no answer waits for its first token. A later call replaces an earlier one.
        """
        self._look_ahead.question(question, partial(self._needed, question, top_k or self.top_k, tuple(under)))

    def forget_prefetch(self) -> None:
        """The next question will not be asked after all."""
        self._look_ahead.forget()

    def forget_loaded(self) -> None:
        """Give up chunk KVs that this process holds in memory, as after a restart (for measurements)."""
        self._look_ahead.forget()
        self._loading.forget()

    def forget_read(self) -> None:
        """A question that was asked before is read beside its chunks anew (for measurements)."""
        if self._decoding.pointer is not None:
            self._decoding.pointer.forget()

    def settle(self) -> None:
        """Return once everything prefilled live so far has been written back (or was not admitted), and what is read
        ahead was asked for."""
        self._writer.submit(lambda: None).result()
        self._look_ahead.settle()

    def close(self) -> None:
        """Finish write-backs, end the loader's threads and close the store."""
        self._writer.shutdown(wait=True)
        self._look_ahead.close()
        self._recompute.close()
        self._loading.close()
        self.store.close()

    def _settle_context(
        self, found: Sequence[RetrievedChunk], reads: ExitStack, mode: AnswerMode
    ) -> tuple[Context, Reading | None]:
        """What the answer reads, and the reading of it, under way; none for full prefill.

        Reading starts by the catalog's word, while the token ids that decide are still being made. Where there are
        several rungs the choice among them waits for how many chunks there are, so reading waits for it too.
        """
        cached, early = mode is AnswerMode.CACHED, self.ladder.is_plain
        reading = None
        if cached and early:
            reading = reads.enter_context(closing(self._loading.begin(partial(self._kv_of, found))))
        context = answer_context.build(found, self.model, self.ladder, self.store, self.context_tokens)
        if cached and not early:
            there = [key for key, source in zip(context.keys, context.sources, strict=True) if source.warm]
            reading = reads.enter_context(closing(self._loading.begin(lambda: there)))
        if reading is not None:
            reading.keep(context.keys)
        return context, reading

    def _cached(
        self,
        context: Context,
        reading: Reading,
        question: str,
        watch: Stopwatch,
        stop: Callable[[], bool],
        recompute: RecomputeChoice | None,
    ) -> Begun:
        """Prefill the question over loaded chunk KVs. A miss is prefilled live: the same type, only slower.

        The best chunk is laid last, next to the question: the embedded reader then quotes the right chunk in 71 % of
        questions instead of 58 % (5 retrieved chunks, 120 questions, CPU). Full prefill uses the same order.
        """
        question_ids = self.model.prompt.question_ids(question, _QUESTION_ROOM)
        where = plan(self.prefix.num_tokens, [len(ids) for ids in reversed(context.token_ids)])
        anew = self._recompute.begin(recompute, where, context, question, question_ids, watch)
        prefill, about = anew.prefill if anew is not None else None, (question, context.sources)
        fresh: list[Fresh] = []
        while True:
            with watch.stage("load"):
                missing = reading.missing()
            if missing:
                with watch.stage("live prefill"):
                    fresh += [self._prefill_live(context, reading, index) for index in missing]
            with watch.stage("stitch"):
                laid = reading.lay(where, by_layers=anew is not None)
            try:
                with watch.stage("prefill"), laid as run:
                    tokens = self._decoding.tokens(run, question_ids, where.next_position, stop, prefill, about)
                    first = next(tokens)
            except ChunksLost:
                continue  # damage is found while the pass runs; it begins anew with what is then known to be missing
            told = timings(watch.stages, where.next_position + len(question_ids), reading, anew)
            reading.laid()
            return Begun(first, tokens, told, tuple(fresh))

    def _full(self, context: Context, question: str, watch: Stopwatch, stop: Callable[[], bool]) -> Begun:
        """Prefill everything, the baseline."""
        with watch.stage("stitch"):
            chunk_ids = [token_id for ids in reversed(context.token_ids) for token_id in ids]
            question_ids = self.model.prompt.question_ids(question, _QUESTION_ROOM)
            prompt_ids = [*self.model.prompt.prefix_ids, *chunk_ids, *question_ids]
        # No stage of the answer: finding the fastest way for this length, once, is not prefill.
        slab = self._slab or self._new_slab(graphs=False, known=self._ways)
        prefill = slab.whole(prompt_ids)
        with watch.stage("prefill"):
            tokens = self._decoding.tokens(slab.run(), prompt_ids, 0, stop, prefill, (question, context.sources))
            first = next(tokens)
        return Begun(first, tokens, timings(watch.stages, len(prompt_ids)), ())

    def _prefill_live(self, context: Context, reading: Reading, index: int) -> Fresh:
        began = time.perf_counter()
        before = context.rungs[index].prefix
        kv = quantize(prefill_chunk(self.model, before, context.token_ids[index]), self.scheme)
        self._sync()
        reading.replace(index, kv)
        return Fresh(index, kv, time.perf_counter() - began)

    def _beside(self, context: Context) -> Sequence[KVKey]:
        """What the next question is likely to be about when nobody has said it yet; nothing where it would have to be
        known at which place, too."""
        if not self.ladder.is_plain:
            return ()
        return self.store.kv_keys(self.namespace, [source.chunk_id for source in context.sources], beside=True)

    def _needed(self, question: str, limit: int, under: Sequence[Path]) -> Sequence[KVKey]:
        read, _ = self.model.prompt.readable(question, _QUESTION_ROOM)
        return self._kv_of(retrieve(self.store, self.embedder, read, limit, under))

    def _kv_of(self, found: Sequence[RetrievedChunk]) -> Sequence[KVKey]:
        """By the catalog, as `answering.context.build` will choose if all of them fit."""
        chunk_ids = [chunk.passage.chunk.chunk_id for chunk in found]
        if self.ladder.is_plain:
            return self.store.kv_keys(self.namespace, chunk_ids)
        keys: list[KVKey] = []
        for index, chunk_id in enumerate(chunk_ids):
            serving = self.ladder.serving(answer_context.place_of(index, len(chunk_ids)))
            there = (self.store.kv_keys(rung.namespace, [chunk_id]) for rung in serving)
            keys += next(filter(None, there), [])
        return keys

    def _rehearse(self) -> None:
        """Pay one-off costs before the first question: on a GPU compiling the kernel alone takes half a second."""
        with self.turn.prefilling():
            question_ids = self.model.prompt.question_ids("When?", _QUESTION_ROOM)
            if self._slab is not None:  # first: a lean pass that this machine cannot run must not be run before
                self._slab.prepare(question_ids)
            ids = self.model.prompt.chunk_ids(PROBE)
            chunk = quantize(prefill_chunk(self.model, self.prefix, ids), self.scheme)
            where = plan(self.prefix.num_tokens, [chunk.num_tokens])
            run = self._site.lay(where, [chunk])
            next(self._decoding.tokens(run, question_ids, where.next_position, lambda: True))
            if self._decoding.pointer is not None:
                self._decoding.pointer.read("When?", [PROBE])
            self._recompute.rehearse()
            self._sync()

    def _write_back(self, context: Context, fresh: Sequence[Fresh]) -> None:
        """Keep what was prefilled live, off the answer's path; a process that may not write asks the writer instead."""
        chunk_ids: list[ChunkId] = [source.chunk_id for source in context.sources]
        self.store.note_use(chunk_ids)  # before the write-back: a full cache admits what was retrieved before
        if not self.store.writer:
            if fresh:
                self.store.want_kv([chunk_ids[one.index] for one in fresh])
            return
        for one in fresh:
            key, chunk_id = context.keys[one.index], chunk_ids[one.index]
            self._writer.submit(self.store.put_kv, key, one.kv, [chunk_id], one.seconds)

    def _sync(self) -> None:
        # This thread's stream only: what the loader copies meanwhile on its own must not be waited for here.
        if self.model.device.type == "cuda":
            torch.cuda.current_stream(self.model.device).synchronize()


def open_engine(settings: Settings, *, writer: bool) -> AnswerEngine:
    """Open the store and load embedder and model. Raises StoreLocked, ModelError subclasses, ConfigError."""
    store = Store.open(settings.data_dir, settings.store, writer=writer)
    try:
        prepared, embedder = prepare(settings), load_embedder(settings.model)
        asked, auxiliary = settings.answer, None
        if wants_auxiliary(asked):
            auxiliary = open_auxiliary(prepare_auxiliary(settings, asked.auxiliary), store)
        turn = Turn(settings.data_dir / "run")
        return AnswerEngine(prepared, embedder, store, turn, settings, auxiliary=auxiliary)
    except BaseException:
        store.close()
        raise
