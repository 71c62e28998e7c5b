"""Read several KV files in parallel."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from desk_rag.errors import CorruptKV, UnknownFormat
from desk_rag.kv.types import KVKey, QuantizedKV
from desk_rag.store.kv import chunk_file
from desk_rag.store.kv.buffer_pool import BufferPool
from desk_rag.store.layout import start_readahead

ReadOutcome = QuantizedKV | CorruptKV | UnknownFormat | OSError | None
"""The chunk KV; why the file must not be used or could not be read; or None if it does not exist."""
IDLE_BYTES = 64 << 20
_THREADS_FROM = 16 << 20
"""Bytes from which threads pay; below that, handing over costs more than reading what was read ahead."""


class KVReader:
    """Reads KV files with a few threads into reused buffers. Safe to use from several threads."""

    def __init__(self, threads: int = 4) -> None:
        self._threads = threads
        self._pool = BufferPool(IDLE_BYTES)
        self._verified: chunk_file.Verified = set()
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._bytes = 0
        self._seconds = 0.0

    def load(self, files: Sequence[tuple[Path, KVKey]]) -> list[ReadOutcome]:
        """Return one outcome per file, in order; never raises for a single file."""
        start = time.perf_counter()
        if start_readahead(path for path, _ in files) < _THREADS_FROM:
            outcomes = [self._load_one(file) for file in files]
        else:
            outcomes = list(self._workers().map(self._load_one, files))
        with self._lock:
            self._seconds += time.perf_counter() - start
            self._bytes += sum(outcome.nbytes for outcome in outcomes if isinstance(outcome, QuantizedKV))
        return outcomes

    def bytes_per_second(self) -> float | None:
        """Return the rate measured so far, including checks; None before the first megabyte."""
        with self._lock:
            return self._bytes / self._seconds if self._bytes >= 1 << 20 else None

    def forget_verified(self) -> None:
        """Check every file again at its next use."""
        self._verified = set()

    def close(self) -> None:
        """End the threads."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True)

    def _load_one(self, file: tuple[Path, KVKey]) -> ReadOutcome:
        path, key = file
        try:
            return chunk_file.read(path, key, self._pool, self._verified)
        except FileNotFoundError:
            return None
        except (CorruptKV, UnknownFormat, OSError) as error:
            return error

    def _workers(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix="kv-read")
            return self._executor
