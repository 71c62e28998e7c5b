"""Spread the prefill of chunks over the workers of a Ray cluster; this process stores what they compute.

Names, order and content are those of prefill in one process, because the store decides the order and writes the files.
The chunks of a worker that dies are prefilled again by the others, and by the worker that is started in its place.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from desk_rag.answering.auxiliary import model_settings
from desk_rag.config import ModelSettings, Settings
from desk_rag.documents.chunking import ChunkId
from desk_rag.documents.status import IndexStage
from desk_rag.errors import ConfigError, DeskRagError, StoreFull
from desk_rag.indexer.bulk.worker import ModelSetup, Prefilled, Worker
from desk_rag.ingest.events import StageProgress
from desk_rag.ingest.progress import ProgressRate
from desk_rag.kv.calibration.gate import probe_kv
from desk_rag.kv.identity import kv_key
from desk_rag.store.types import PendingChunk

if TYPE_CHECKING:
    from desk_rag.device_lock import DeviceLock
    from desk_rag.kv.serving import ServingModel
    from desk_rag.kv.types import Namespace
    from desk_rag.store.store import Store

_log = logging.getLogger(__name__)

LOCAL = "local"
"""Address that starts workers on this machine alone."""
_TOGETHER = 8
"""Chunks of one task: few, because they are all computed again if their worker dies."""
_AHEAD = 2
"""Tasks per worker, so that the next one is there when one ends."""
_POLL = 0.5
_CORE_BYTES = 1 << 30
"""Memory of a worker on a processor core, beside twice its weights."""
_MOST_DEATHS = 3
"""Workers that may die in a row, without any task being done in between."""


def require_ray() -> Any:
    """Return the module. Raises ConfigError if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ConfigError("Ray is not installed.", remedy='Install the extra: pip install ".[ray]"') from error
    return ray


@dataclass(frozen=True, slots=True)
class _Task:
    """Chunks that a worker was given; none while it starts."""

    worker: Any
    namespace: Namespace | None
    chunks: tuple[PendingChunk, ...]


class RayPrefill:
    """Takes the place of `ingest.background_prefill.warm_pending`."""

    def __init__(self, settings: Settings, address: str) -> None:
        """`address`: `LOCAL`, 'auto' for the cluster that this machine belongs to, or HOST:PORT."""
        self._settings, self._address, self._ray = settings, address, require_ray()

    def warm_pending(
        self, store: Store, serving: ServingModel, turn: DeviceLock, stop: Callable[[], bool]
    ) -> Iterator[StageProgress]:
        """Prefill chunks that have no KV; yields one event per chunk, and two per second while waiting.

        Raises StoreError if the catalog cannot be written, DeskRagError if no worker stays alive.
        """
        namespaces = [*serving.prefix_variants.namespaces, *filter(None, [serving.auxiliary_namespace])]
        store.register_model(serving.prefix_variants.namespaces, serving.auxiliary_namespace)
        with _connected(self._ray, self._address):
            chunks = sum(store.missing_kv(namespace) for namespace in namespaces)
            most = -(-chunks // _TOGETHER)
            core_bytes = _CORE_BYTES + 2 * model_bytes(serving.model.module)
            pool = _WorkerPool(self._ray, self._setups(serving), most, core_bytes)
            try:
                yield from _Pass(store, namespaces, pool, stop).run()
            finally:
                pool.end()

    def _setups(self, serving: ServingModel) -> list[ModelSetup]:
        settings = self._settings
        setups = [_setup(settings.model, serving)]
        if serving.auxiliary is not None and serving.auxiliary_namespace is not None:
            setups.append(_setup(model_settings(settings, settings.answer.auxiliary), serving.auxiliary))
        return setups


def model_bytes(module: Any) -> int:
    """Return the bytes of a module's weights."""
    return sum(weight.numel() * weight.element_size() for weight in [*module.parameters(), *module.buffers()])


def _setup(settings: ModelSettings, serving: ServingModel) -> ModelSetup:
    probe = probe_kv(serving.model, serving.prefix)
    namespaces = tuple(serving.prefix_variants.namespaces)
    return ModelSetup(settings, serving.scheme, serving.drift_epoch, probe, namespaces)


@contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    """Join a cluster, or start one on this machine; one that this process has joined already is used as it is."""
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        options |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"There is no Ray cluster at '{address}': {str(error).splitlines()[0]}",
            remedy=f"Start one with `ray start --head`, or give --ray {LOCAL}.",
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


class _WorkerPool:
    """The workers of a cluster and their tasks."""

    def __init__(self, ray: Any, setups: Sequence[ModelSetup], most: int, core_bytes: int) -> None:
        """Start at most `most` workers; `core_bytes` is the memory that one on a processor core reserves."""
        self._ray = ray
        resources = ray.cluster_resources()
        gpus, cores = int(resources.get("GPU", 0)), int(resources.get("CPU", 0))
        if gpus:
            options = {"num_gpus": 1}
        else:  # one thread each, or they would take each other's cores
            options = {"num_cpus": 1, "memory": core_bytes}
            setups = [replace(each, settings=each.settings.model_copy(update={"threads": 1})) for each in setups]
        self._class = ray.remote(Worker).options(**options)
        self._setups = ray.put(list(setups))
        self._tasks: dict[Any, _Task] = {}
        self._ready: list[Any] = []
        self._deaths = 0
        for _ in range(max(1, min(gpus or cores, most))):
            self._start()

    @property
    def is_ready(self) -> bool:
        """True once a worker has loaded its models."""
        return bool(self._ready)

    def free(self) -> Any | None:
        """Return a worker that can be given another task."""
        load = {id(worker): 0 for worker in self._ready}
        for task in self._tasks.values():
            if id(task.worker) in load:
                load[id(task.worker)] += 1
        least = min(self._ready, key=lambda worker: load[id(worker)], default=None)
        return None if least is None or load[id(least)] >= _AHEAD else least

    def give(self, worker: Any, namespace: Namespace, chunks: tuple[PendingChunk, ...]) -> None:
        """Have a worker prefill these chunks."""
        result = worker.prefill.remote(namespace, [chunk.text for chunk in chunks])
        self._tasks[result] = _Task(worker, namespace, chunks)

    @property
    def in_progress(self) -> dict[Namespace, set[ChunkId]]:
        """Chunks that workers have, by namespace."""
        chunks: dict[Namespace, set[ChunkId]] = {}
        for task in self._tasks.values():
            if task.namespace is not None:
                chunks.setdefault(task.namespace, set()).update(chunk.chunk_id for chunk in task.chunks)
        return chunks

    def done(self) -> list[tuple[Namespace, PendingChunk, Prefilled]]:
        """Wait a moment for a task to end; chunks of a worker that died are nobody's again.

        Raises DeskRagError if workers die one after the other, or what a worker raised.
        """
        ready, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=_POLL)
        finished: list[tuple[Namespace, PendingChunk, Prefilled]] = []
        for result in ready:
            task = self._tasks.pop(result)
            try:
                outcome = self._ray.get(result)
            except self._ray.exceptions.RayActorError as error:
                # Each of its tasks ends so; the first one has another worker started.
                if task.namespace is None or any(task.worker is one for one in self._ready):
                    self._replace(task.worker, error)
                continue
            except self._ray.exceptions.RayTaskError as error:
                raise _raised(error) from error
            if task.namespace is None:
                self._ready.append(task.worker)
                continue
            self._deaths = 0
            finished += [(task.namespace, *pair) for pair in zip(task.chunks, outcome, strict=True)]
        return finished

    def end(self) -> None:
        """End all workers; what they have begun is dropped."""
        workers = {id(worker): worker for worker in [*self._ready, *(task.worker for task in self._tasks.values())]}
        for worker in workers.values():
            with suppress(self._ray.exceptions.RayError):
                self._ray.kill(worker)

    def _start(self) -> None:
        worker = self._class.remote()
        self._tasks[worker.load.remote(self._setups)] = _Task(worker, None, ())

    def _replace(self, worker: Any, error: Exception) -> None:
        """Start another worker for one that died. Raises DeskRagError if that does not help."""
        self._ready = [one for one in self._ready if one is not worker]
        _log.warning("a Ray worker died: %s", error)
        self._deaths += 1
        if self._deaths > _MOST_DEATHS:
            raise DeskRagError(
                f"{self._deaths} Ray workers died one after the other: {str(error).splitlines()[0]}",
                remedy="The logs of Ray (`ray logs`) say why; often there is too little memory.",
            )
        self._start()


def _raised(error: Any) -> Exception:
    """Return what a worker raised, as it is raised in one process."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, Exception) else error


class _Pass:
    """One walk over all chunks without KV."""

    def __init__(
        self, store: Store, namespaces: Sequence[Namespace], pool: _WorkerPool, stop: Callable[[], bool]
    ) -> None:
        self._store, self._namespaces, self._pool, self._stop = store, namespaces, pool, stop
        self._passed_over: dict[Namespace, set[ChunkId]] = {namespace: set() for namespace in namespaces}

    def run(self) -> Iterator[StageProgress]:
        """Give out chunks and store what comes back; yields as `RayPrefill.warm_pending` does."""
        done, total, meter = 0, self._missing(), ProgressRate()
        unit = "chunks" if len(self._namespaces) == 1 else "caches"
        while not self._stop():
            self._give_out()
            if not self._pool.in_progress and not self._next():
                break
            finished = self._pool.done()
            if not self._pool.is_ready:
                yield meter.progress(IndexStage.WARM, done, total, unit, "the workers are starting")
            for namespace, chunk, prefilled in finished:
                try:
                    self._keep(namespace, chunk, prefilled)
                except StoreFull as error:
                    yield replace(meter.progress(IndexStage.WARM, done, total, unit, error.message), disk_full=True)
                    return
                done += 1
                event = meter.progress(IndexStage.WARM, done, max(total, done), unit)
                yield replace(event, upper=namespace != self._namespaces[0])
        counts = self._store.counts()
        if not self._stop() and counts.kv_bytes >= counts.budget_bytes and self._missing():
            yield meter.progress(IndexStage.WARM, done, total, unit, "there is no room for more caches")

    def _give_out(self) -> None:
        while (worker := self._pool.free()) is not None and (chosen := self._next()) is not None:
            self._pool.give(worker, *chosen)

    def _next(self) -> tuple[Namespace, tuple[PendingChunk, ...]] | None:
        """Return the most urgent chunks of the lowest prefix variant that has some which no worker has."""
        in_progress = self._pool.in_progress
        for namespace in self._namespaces:
            excluded = self._passed_over[namespace] | in_progress.get(namespace, set())
            pending = self._store.chunks_without_kv(namespace, _TOGETHER + len(excluded))
            fresh = [chunk for chunk in pending if chunk.chunk_id not in excluded][:_TOGETHER]
            if fresh:
                return namespace, tuple(fresh)
        return None

    def _keep(self, namespace: Namespace, chunk: PendingChunk, prefilled: Prefilled) -> None:
        key = kv_key(namespace, prefilled.token_ids)
        if not self._store.put_kv(key, prefilled.kv, [chunk.chunk_id], prefilled.seconds):
            for other in self._namespaces[self._namespaces.index(namespace) :]:
                self._passed_over[other].add(chunk.chunk_id)

    def _missing(self) -> int:
        return sum(self._store.missing_kv(namespace) for namespace in self._namespaces)
