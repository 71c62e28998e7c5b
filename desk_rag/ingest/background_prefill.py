"""Prefill chunks that have no KV on disk, giving way to answers: one after the other on a CPU, several on a GPU.

A thread stores them. A GPU prefills the next chunks meanwhile, which takes about as long; a CPU waits for it.

The store decides the order: requested, most used, most recent. Prefix variants follow one after the other, so that
every chunk has one KV before any gets a second. The auxiliary model's chunk KV comes last.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.documents.chunking import ChunkId
from desk_rag.documents.status import IndexStage
from desk_rag.errors import Cancelled, StoreError, StoreFull
from desk_rag.ingest.events import StageProgress
from desk_rag.ingest.progress import ProgressRate
from desk_rag.store.types import PendingChunk

if TYPE_CHECKING:
    from desk_rag.device_lock import DeviceLock
    from desk_rag.kv.prefix_variants.variants import PrefixVariant
    from desk_rag.kv.serving import ServingModel
    from desk_rag.kv.types import KVKey, Namespace, QuantizedKV
    from desk_rag.model.language_model import LanguageModel
    from desk_rag.store.store import Store

_log = logging.getLogger(__name__)

_BATCH = 8
"""Chunks taken from the catalog at a time, after which their order is queried again."""
_GIVE_UP = 3
"""Consecutive chunks that may fail before the stage ends."""
_LAYER_SECONDS = 0.02
"""Seconds that a layer may take for chunks prefilled together; a waiting answer begins after at most three layers."""
_WAIT_POLL = 0.5
"""Seconds between two checks whether background work may run again."""


@dataclass(frozen=True, slots=True)
class PrefillTask:
    """One chunk to prefill behind one prefix variant."""

    chunk: PendingChunk
    variant: PrefixVariant
    serving: ServingModel
    """The model that reads it."""



@dataclass(frozen=True, slots=True)
class _Prefilled:
    """Chunk KV that is to be stored."""

    task: PrefillTask
    key: KVKey
    kv: QuantizedKV
    seconds: float
    """Duration of its prefill."""


class ChunkPrefiller:
    """Prefills chunks for `warm_pending`; remembers the queue and the chunks that failed."""

    def __init__(
        self,
        store: Store,
        serving: ServingModel,
        turn: DeviceLock,
        stop: Callable[[], bool],
        under: Sequence[Path] = (),
    ) -> None:
        self._store, self._turn, self._stop, self._under = store, turn, stop, under
        self._variants = [(serving, variant) for variant in serving.prefix_variants.variants]
        if serving.auxiliary is not None and serving.auxiliary_namespace is not None:
            self._variants.append((serving.auxiliary, serving.auxiliary.prefix_variants.variants[0]))
        self._queue: list[PrefillTask] = []
        self._passed_over: dict[Namespace, set[ChunkId]] = {each.namespace: set() for _, each in self._variants}
        self._in_a_row = 0
        self._at_once, self._most = 1, _BATCH
        self._storing: list[tuple[PrefillTask, Future[bool]]] = []
        self._thread = ThreadPoolExecutor(1, "kv-store")  # starts with the first chunk
        self.done = 0
        """Chunks that are done with: stored, refused by the store or passed over."""
        self.disk_full = False
        """True once `warm` ended because the disk has no room."""

    def next(self) -> list[PrefillTask]:
        """Return the most urgent chunks of the first variant that lacks some, as many as are prefilled together.

        The catalog is queried again every few chunks, so that new chunks and those just asked about come first.
        """
        if not self._queue:
            self._queue = next(filter(None, (self._pending(*each) for each in self._variants)), [])
        return self._queue[: -self._at_once - 1 : -1]

    @property
    def is_storing(self) -> bool:
        """True if `warm` has left chunks to the thread that stores them."""
        return bool(self._storing)

    def _pending(self, serving: ServingModel, variant: PrefixVariant) -> list[PrefillTask]:
        """Return the next few tasks of one variant, the most urgent last."""
        excluded = self._passed_over[variant.namespace] | {
            task.chunk.chunk_id for task, _ in self._storing if task.variant.namespace == variant.namespace
        }
        pending = self._store.chunks_without_kv(variant.namespace, _BATCH + len(excluded), self._under)
        fresh = [chunk for chunk in pending if chunk.chunk_id not in excluded][:_BATCH]
        return [PrefillTask(chunk, variant, serving) for chunk in reversed(fresh)]

    def warm(self, tasks: Sequence[PrefillTask]) -> str | None:
        """Prefill the chunks that `next` returned, and store them; a GPU's by the next call, with no tasks if need be.

        Returns '' if they are done, None if they were interrupted or must start again one by one, or the reason to end
        the stage.
        """
        try:
            prefilled = self._prefill(tasks) if tasks else []
        except Cancelled:
            return None
        except Exception as error:
            if len(tasks) > 1:
                _log.info("%d chunks cannot be prefilled together (%s)", len(tasks), type(error).__name__)
                self._at_once = self._most = 1
                return None
            return self._failed(self._queue.pop(), error)
        try:
            problem = self._stored()
            for one in prefilled:
                self._queue.pop()
                self._storing.append((one.task, self._thread.submit(self._put, one)))
            if tasks and not _is_beside(tasks[0].serving.model):
                problem = problem or self._stored()
        except StoreFull as error:
            self.disk_full = True
            return error.message
        return problem

    def prefill(self, task: PrefillTask) -> bool:
        """Prefill and store one chunk, in the queue or not; True if its KV is on disk afterwards."""
        (one,) = self._prefill([task])
        return self._put(one)

    def close(self) -> None:
        """Wait until all that was prefilled is stored, or has failed."""
        self._thread.shutdown()

    def _prefill(self, tasks: Sequence[PrefillTask]) -> list[_Prefilled]:
        """Prefill and quantize chunks of one variant, together as far as memory allows; the results are on the CPU."""
        from desk_rag.kv.identity import kv_key
        from desk_rag.kv.prefill import chunks_at_once, prefill_chunks
        from desk_rag.kv.quant import quantize, to_host

        serving, variant = tasks[0].serving, tasks[0].variant
        model = serving.model
        ids_of_chunks = [model.prompt.chunk_ids(task.chunk.text) for task in tasks]
        prefilled: list[_Prefilled] = []
        while len(prefilled) < len(tasks):
            rest = ids_of_chunks[len(prefilled) :]
            part = rest[: chunks_at_once(model, variant.prefix, [len(ids) for ids in rest])]
            began = time.monotonic()
            with self._turn.prefilling():
                kvs = prefill_chunks(model, variant.prefix, part, stop=self._give_way)
            seconds = time.monotonic() - began
            self._adapt(model, len(part), seconds)
            coded = [quantize(kv, serving.scheme) for kv in kvs]
            if _is_beside(model):  # copied here: in another thread the copies would wait for the next chunks
                coded = [to_host(kv) for kv in coded]
            tasks_of_part = tasks[len(prefilled) : len(prefilled) + len(part)]
            prefilled += [
                _Prefilled(task, kv_key(variant.namespace, ids), kv, seconds / len(part))
                for task, ids, kv in zip(tasks_of_part, part, coded, strict=True)
            ]
        return prefilled

    def _put(self, one: _Prefilled) -> bool:
        return self._store.put_kv(one.key, one.kv, [one.task.chunk.chunk_id], one.seconds)

    def _stored(self) -> str:
        """Wait until the chunks before are stored; returns '' or the reason to end the stage. Raises StoreError."""
        problem = ""
        storing, self._storing = self._storing, []
        for task, outcome in storing:
            try:
                if not outcome.result():
                    # The store offers it again once it has been retrieved often enough.
                    self._leave(task)
                self.done += 1
                self._in_a_row = 0
            except StoreError:
                raise
            except Exception as error:
                problem = problem or self._failed(task, error)
        return problem

    def _adapt(self, model: LanguageModel, count: int, seconds: float) -> None:
        """Change the number of chunks prefilled together by the time that `count` chunks took in a layer."""
        if not _is_beside(model) or count < self._at_once:
            return
        of_layer = seconds / model.spec.num_layers
        if of_layer > _LAYER_SECONDS:
            self._at_once = max(1, count // 2)
        elif of_layer <= _LAYER_SECONDS / 2:
            self._at_once = min(self._most, 2 * count)

    def _failed(self, task: PrefillTask, error: Exception) -> str:
        """Pass over a chunk; returns '' or the reason to end the stage."""
        from desk_rag.model.memory.device import is_out_of_memory

        self._leave(task)
        self.done += 1
        self._in_a_row += 1
        if is_out_of_memory(error):
            _log.warning("no memory to prefill chunk %s", task.chunk.chunk_id)
            reason = "there is not enough memory free for the model's work"
        else:
            _log.warning("chunk %s cannot be prefilled (%s)", task.chunk.chunk_id, type(error).__name__)
            reason = f"prefill fails ({type(error).__name__}); the log has more"
        return reason if self._in_a_row >= _GIVE_UP else ""

    def _give_way(self) -> bool:
        return self._turn.answer_waits() or self._stop()

    def _leave(self, task: PrefillTask) -> None:
        """Pass over this chunk for now, for this variant and all that follow."""
        namespaces = [variant.namespace for _, variant in self._variants]
        for namespace in namespaces[namespaces.index(task.variant.namespace) :]:
            self._passed_over[namespace].add(task.chunk.chunk_id)


def warm_pending(
    store: Store,
    serving: ServingModel,
    turn: DeviceLock,
    stop: Callable[[], bool],
    may_run: Callable[[], str] = lambda: "",
    under: Sequence[Path] = (),
) -> Iterator[StageProgress]:
    """Prefill chunks in scope that have no KV; yields an event per chunk or few chunks, two per second while waiting.

    Every chunk gets its plain KV first and is warm from then on; progress counts the KVs of all prefix variants. The
    same chunks follow for an auxiliary model, as far as the budget has room left. Gives way to an answer, and to
    `stop`, within one layer; interrupted chunks start again. Ends with a reason in `waiting` if the disk is full or
    several chunks in a row fail. `may_run` is asked before every chunk and returns '' or the reason to wait. Raises
    StoreError if the catalog cannot be written.
    """
    variants, auxiliary = serving.prefix_variants, serving.auxiliary_namespace
    store.register_model(variants.namespaces, auxiliary)
    namespaces = [*variants.namespaces, *([auxiliary] if auxiliary else [])]
    warmer = ChunkPrefiller(store, serving, turn, stop, under)
    total, meter = _missing(store, namespaces, under), ProgressRate()
    unit = "chunks" if len(namespaces) == 1 else "caches"
    is_upper = False
    try:
        while not stop():
            tasks = warmer.next()
            if not tasks and not warmer.is_storing:
                counts = store.counts()
                if counts.kv_bytes >= counts.budget_bytes and _missing(store, namespaces, under):
                    yield meter.progress(IndexStage.WARM, warmer.done, total, unit, "there is no room for more caches")
                return
            while reason := _reason_to_wait(turn, may_run):
                yield meter.progress(IndexStage.WARM, warmer.done, total, unit, reason)
                if _sleep(_WAIT_POLL, stop):
                    return
            before = warmer.done
            problem = warmer.warm(tasks)
            total = max(total, warmer.done)
            if problem:
                progress = meter.progress(IndexStage.WARM, warmer.done, total, unit, problem)
                yield replace(progress, disk_full=warmer.disk_full)
                return
            if tasks:
                is_upper = tasks[0].variant.count > 0 or tasks[0].serving is not serving
            if warmer.done > before:
                yield replace(meter.progress(IndexStage.WARM, warmer.done, total, unit), upper=is_upper)
    finally:
        warmer.close()


def _is_beside(model: LanguageModel) -> bool:
    """True if the model runs beside the processor, which is then free to store chunk KV meanwhile."""
    return model.device.type != "cpu"


def _missing(store: Store, namespaces: Sequence[Namespace], under: Sequence[Path]) -> int:
    """Return how many chunk KVs are still missing."""
    return sum(store.missing_kv(namespace, under) for namespace in namespaces)


def _reason_to_wait(turn: DeviceLock, may_run: Callable[[], str]) -> str:
    return "an answer is being made" if turn.answer_waits() else may_run()


def _sleep(seconds: float, stop: Callable[[], bool]) -> bool:
    """Sleep in short steps; return True as soon as `stop` does."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if stop():
            return True
        time.sleep(min(left, 0.1))
    return stop()
