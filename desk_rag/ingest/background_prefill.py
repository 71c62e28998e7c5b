"""Prefill chunks that have no KV on disk, one after the other, giving way to answers.

The store gives the order: wanted, most used, most recent; prefix variant after prefix variant, so that every chunk is
fast before some are better.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from desk_rag.documents.chunking import ChunkId
from desk_rag.documents.status import IndexStage
from desk_rag.errors import Cancelled, StoreError, StoreFull
from desk_rag.ingest.events import StageProgress
from desk_rag.ingest.progress import Meter
from desk_rag.store.types import PendingChunk

if TYPE_CHECKING:
    from desk_rag.device_lock import Turn
    from desk_rag.kv.prefill import PrefixKV
    from desk_rag.kv.prefix_variants.variants import PrefixVariant
    from desk_rag.kv.quant import QuantScheme
    from desk_rag.kv.types import Namespace
    from desk_rag.model.language_model import LanguageModel
    from desk_rag.store.store import Store

_log = logging.getLogger(__name__)

_BATCH = 8
"""Chunks taken from the catalog at a time; the order is asked for anew after so many."""
_GIVE_UP = 3
"""Chunks in a row that could not be made warm before the stage ends."""


@dataclass(frozen=True, slots=True)
class Task:
    """One chunk on one rung."""

    chunk: PendingChunk
    rung: PrefixVariant

_WAIT_POLL = 0.5
"""Seconds between two questions whether background work may run again."""


class Warmer:
    """The state of one `warm_pending`: what is next, what did not work."""

    def __init__(
        self,
        store: Store,
        model: LanguageModel,
        rungs: Sequence[PrefixVariant],
        scheme: QuantScheme,
        turn: Turn,
        stop: Callable[[], bool],
    ) -> None:
        self._store, self._model, self._rungs = store, model, tuple(rungs)
        self._scheme, self._turn, self._stop = scheme, turn, stop
        self._queue: list[Task] = []
        self._passed_over: dict[Namespace, set[ChunkId]] = {rung.namespace: set() for rung in rungs}
        self._in_a_row = 0
        self.disk_full = False
        """True once `warm` ended because the disk has no room."""

    def next(self) -> Task | None:
        """The most urgent chunk of the lowest rung that has one to do.

        Asked anew every few chunks, so that what somebody asks about now, and what is new, comes forward.
        """
        if not self._queue:
            self._queue = next(filter(None, map(self._pending, self._rungs)), [])
        return self._queue[-1] if self._queue else None

    def _pending(self, rung: PrefixVariant) -> list[Task]:
        """The next few on this rung, the most urgent last."""
        passed_over = self._passed_over[rung.namespace]
        pending = self._store.chunks_without_kv(rung.namespace, _BATCH + len(passed_over))
        return [Task(chunk, rung) for chunk in pending if chunk.chunk_id not in passed_over][:_BATCH][::-1]

    def warm(self, task: Task) -> str | None:
        """'' when the chunk is dealt with, None when it was given up and is to be begun again, else why to end."""
        try:
            admitted = self._prefill(task)
        except Cancelled:
            return None
        except StoreFull as error:
            self.disk_full = True
            return error.message
        except StoreError:
            raise
        except Exception as error:
            _log.warning("chunk %s cannot be prefilled (%s)", task.chunk.chunk_id, type(error).__name__)
            return self._pass_over(task, f"prefill fails ({type(error).__name__}); the log has more")
        if not admitted:
            # The store offers it again once it was asked for often enough; what else is offered is worth a try.
            self._leave(task)
        self._queue.pop()
        self._in_a_row = 0
        return ""

    def _prefill(self, task: Task) -> bool:
        from desk_rag.kv.identity import kv_key
        from desk_rag.kv.prefill import prefill_chunk
        from desk_rag.kv.quant import quantize

        token_ids = self._model.prompt.chunk_ids(task.chunk.text)
        began = time.monotonic()
        with self._turn.prefilling():
            chunk_kv = prefill_chunk(self._model, task.rung.prefix, token_ids, stop=self._give_way)
        seconds = time.monotonic() - began
        quantized = quantize(chunk_kv, self._scheme)
        key = kv_key(task.rung.namespace, token_ids)
        return self._store.put_kv(key, quantized, [task.chunk.chunk_id], seconds)

    def _give_way(self) -> bool:
        return self._turn.answer_waits() or self._stop()

    def _pass_over(self, task: Task, reason: str) -> str:
        self._leave(task)
        self._queue.pop()
        self._in_a_row += 1
        return reason if self._in_a_row >= _GIVE_UP else ""

    def _leave(self, task: Task) -> None:
        """Not this chunk for now, on this rung and on those above, where it would fare no better."""
        at = self._rungs.index(task.rung)
        for rung in self._rungs[at:]:
            self._passed_over[rung.namespace].add(task.chunk.chunk_id)


def warm_pending(
    store: Store,
    model: LanguageModel,
    prefix: PrefixKV,
    namespace: Namespace,
    scheme: QuantScheme,
    turn: Turn,
    stop: Callable[[], bool],
    may_run: Callable[[], str],
    later: Sequence[PrefixVariant] = (),
) -> Iterator[StageProgress]:
    """Prefill chunks that have no KV, one at a time; one event per chunk, and two a second in a wait.

    `later` are the rungs above the plain one (kv/prefix_variants/variants.py): every chunk gets its plain KV first,
    then theirs. Progress counts them all; with the first a chunk is warm.

    Gives way to an answer, and to `stop`, within one layer; the chunk that was given up is begun again. Before every
    chunk `may_run` answers '' or the reason to wait. Ends with a reason in `waiting` when the disk has no room or
    several chunks in a row fail. Raises StoreError when the catalog cannot be written.
    """
    from desk_rag.kv.prefix_variants.variants import PrefixVariant

    rungs = (PrefixVariant(0, prefix, namespace), *later)
    store.hold_together([rung.namespace for rung in rungs])
    warmer = Warmer(store, model, rungs, scheme, turn, stop)
    done, total, meter, unit = 0, _missing(store, rungs), Meter(), "chunk KVs" if later else "chunks"
    while not stop():
        task = warmer.next()
        if task is None:
            counts = store.counts()
            if counts.kv_bytes >= counts.budget_bytes and _missing(store, rungs):
                yield meter.progress(IndexStage.WARM, done, total, unit, "there is no room for more chunk KV")
            return
        while reason := _reason_to_wait(turn, may_run):
            yield meter.progress(IndexStage.WARM, done, total, unit, reason)
            if _sleep(_WAIT_POLL, stop):
                return
        problem = warmer.warm(task)
        if problem is None:
            continue
        if problem:
            yield replace(meter.progress(IndexStage.WARM, done, total, unit, problem), disk_full=warmer.disk_full)
            return
        done += 1
        total = max(total, done)
        yield replace(meter.progress(IndexStage.WARM, done, total, unit), upper=task.rung.count > 0)


def _missing(store: Store, rungs: Sequence[PrefixVariant]) -> int:
    """Chunk KVs that are still to be made."""
    each = [store.counts(rung.namespace, None) for rung in rungs]
    return sum(counts.chunks - counts.warm for counts in each)


def _reason_to_wait(turn: Turn, may_run: Callable[[], str]) -> str:
    return "an answer is being made" if turn.answer_waits() else may_run()


def _sleep(seconds: float, stop: Callable[[], bool]) -> bool:
    """Sleep in short steps; True as soon as `stop` asks for the end."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if stop():
            return True
        time.sleep(min(left, 0.1))
    return stop()
