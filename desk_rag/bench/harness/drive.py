"""Measure the bounds of `load`: raw reads of one large file, one large copy to the GPU."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from desk_rag.bench.harness import report
from desk_rag.kv.loading.host_memory import Arena

_BLOCK = 4 << 20
_COPIED = 256 << 20


def write_noise(path: Path, nbytes: int) -> None:
    """A file of at least 16 MiB that no drive can compress, out of the page cache."""
    block = np.random.default_rng(0).integers(0, 256, 1 << 24, dtype=np.uint8).tobytes()
    with path.open("wb") as file:
        for _ in range(max(1, nbytes >> 24)):
            file.write(block)
    drop([path])


def drop(paths: Sequence[Path]) -> None:
    """Out of the page cache, as far as it can be done without privileges."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def rates(big: Path, threads: Sequence[int], repeat: int) -> dict[str, report.Spread]:
    """Bytes per second of raw sequential reads of one large file, by way ('direct x4'): what this drive gives."""
    rates_by_way: dict[str, report.Spread] = {}
    for direct in (True, False) if hasattr(os, "O_DIRECT") else (False,):
        for number in sorted({1, *threads}):
            try:
                sample = [raw_read(big, number, direct=direct) for _ in range(repeat)]
            except OSError:
                continue
            rates_by_way[f"{'direct' if direct else 'buffered'} x{number}"] = report.Spread.of(sample)
    return rates_by_way


def raw_read(big: Path, threads: int, *, direct: bool) -> float:
    """Bytes per second; each thread reads every n-th block of 4 MiB into memory that was touched before."""
    drop([big])
    size = big.stat().st_size
    arena = Arena(threads * _BLOCK, pinned=False)
    arena.memory.fill_(1)
    descriptor = os.open(big, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    failures: list[OSError] = []

    def read(first: int) -> None:
        view = arena.memory[first * _BLOCK : (first + 1) * _BLOCK].numpy().data
        try:
            for offset in range(first * _BLOCK, size, threads * _BLOCK):
                os.preadv(descriptor, [view], offset)
        except OSError as error:
            failures.append(error)

    try:
        workers = [threading.Thread(target=read, args=(index,)) for index in range(threads)]
        began = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        took = time.perf_counter() - began
    finally:
        os.close(descriptor)
    if failures:
        raise failures[0]
    return size / took


def host_to_device(device: torch.device, repeat: int) -> report.Spread:
    """Bytes per second of one large page-locked copy; of a copy in memory where there is no GPU."""
    on_gpu = device.type == "cuda"
    source = torch.zeros(_COPIED, dtype=torch.uint8, pin_memory=on_gpu)
    target = torch.zeros(_COPIED, dtype=torch.uint8, device=device)
    sample = []
    for _ in range(repeat + 1):
        began = time.perf_counter()
        target.copy_(source, non_blocking=True)
        if on_gpu:
            torch.cuda.synchronize(device)
        sample.append(_COPIED / (time.perf_counter() - began))
    return report.Spread.of(sample[1:])
