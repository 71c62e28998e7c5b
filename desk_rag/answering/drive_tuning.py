"""Measure once per drive how many threads and waves load chunk KV fastest, and remember it.

Never runs while a question is answered. If `drives.json` is missing, unreadable or written for another drive, the drive
is measured again; delete the file to force that.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from desk_rag.errors import CorruptKV, ForeignPlace
from desk_rag.kv.kernels.availability import is_large
from desk_rag.kv.loading.loader import Loader, LoaderSettings
from desk_rag.kv.payload import ChunkFile
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.store.layout import drop_page_cache

_log = logging.getLogger(__name__)

FILE = "drives.json"
SAMPLE = 64
"""Number of KV files that are read to measure."""
SAMPLE_BYTES = 96 << 20
SMALLEST_SAMPLE = 16 << 20
"""Smaller samples measure threads rather than the drive; until there is more, the defaults are used."""
THREADS = (4, 8, 16, 32)
WAVES = (1, 2, 4, 8)
_WAVES_FOR_THREADS = 2
"""Waves while threads are compared: the sample has fewer files than an answer, so this makes as many reads."""
_ROUNDS = 3
_PASS_RATE = 40e9
"""Bytes of chunk KV per second that a question's pass consumes on a large GPU (bench/LOG.md, "Answering and retrieval:
constants")."""
_PASS_RATE_SMALL = 4e9
"""The same on other devices, estimated: their memory is about a tenth as fast."""
_TOLERANCE = 1.05
"""Times within this factor of the best count as equal: loads from one drive vary by more."""
_VERSION = 3
"""Version of `drives.json`, including the rule by which its values were chosen."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """Settings measured for one drive."""

    threads: int
    waves: int
    bytes_per_second: float
    """Rate of a cold load of several files with these settings."""

    def applied(self, settings: LoaderSettings) -> LoaderSettings:
        """`settings` with these threads and waves."""
        return replace(settings, threads=self.threads, waves=self.waves)


def drive_of(path: Path) -> str:
    """Name the drive that holds `path`; stable across restarts if the file system has an id."""
    fsid = os.statvfs(path).f_fsid if hasattr(os, "statvfs") else 0
    return f"fs-{fsid:x}" if fsid else f"dev-{path.stat().st_dev:x}"


def remembered(data_dir: Path, kv_dir: Path | None = None) -> Tuned | None:
    """Return what was measured for the drive of the chunk KV; None if nothing valid is recorded.

    `kv_dir` is the setting of that name; by default chunk KV is in the data directory.
    """
    try:
        fields = _read(data_dir)[drive_of(kv_dir or data_dir)]
        tuned = Tuned(**fields)  # type: ignore[arg-type]
        numbers = (tuned.threads, tuned.waves)
        in_range = all(type(number) is int and 1 <= number <= 256 for number in numbers)
        return tuned if in_range and float(tuned.bytes_per_second) > 0 else None
    except (OSError, KeyError, TypeError, ValueError):
        return None


def remember(data_dir: Path, tuned: Tuned, kv_dir: Path | None = None) -> None:
    """Record `tuned` for the drive of the chunk KV.

    Other drives' entries stay. A full disk is only logged.
    """
    try:
        known = _read(data_dir)
    except (OSError, ValueError, TypeError, KeyError):
        known = {}
    try:
        known[drive_of(kv_dir or data_dir)] = asdict(tuned)
        text = json.dumps({"version": _VERSION, "drives": known}, indent=1)
        OwnedDirectory(data_dir).write(data_dir / FILE, text.encode())
    except (OSError, ForeignPlace) as error:
        _log.warning("the measurement of the drive could not be saved: %s", error)


def measure(files: Iterable[ChunkFile], device: torch.device) -> Tuned | None:
    """Load some of one model's `files` cold with each setting; None if they are too small.

    Reads at most SAMPLE_BYTES for each of eight settings, three times: about a second at 3 GB/s.
    """
    sample: list[ChunkFile] = []
    for file in files:
        if sum(taken.payload for taken in sample) >= SAMPLE_BYTES:
            break
        sample.append(file)
    total = sum(file.payload for file in sample)
    if total < SMALLEST_SAMPLE:
        return None
    by_threads = _rates(sample, device, [(number, _WAVES_FOR_THREADS) for number in THREADS], total)
    best = max(zip(by_threads, THREADS, strict=True))[1]
    rates = _rates(sample, device, [(best, waves) for waves in WAVES], total)
    waves = fewest_waves(rates, _PASS_RATE if is_large(device) else _PASS_RATE_SMALL)
    return Tuned(best, waves, rates[WAVES.index(waves)])


def fewest_waves(rates: Sequence[float], pass_rate: float) -> int:
    """Return the smallest of WAVES with which the first token is about as early as possible.

    `rates` are bytes per second of a load in each number of waves, `pass_rate` those that the question's pass consumes.
    With n equal waves, load and pass overlap except for one wave: on a slow drive an nth of the pass remains after the
    last byte, on a fast one an nth of the load comes before the pass.
    """
    expected = [
        max(1 / rate + 1 / pass_rate / waves, 1 / rate / waves + 1 / pass_rate)
        for rate, waves in zip(rates, WAVES, strict=True)
    ]
    return next(waves for waves, time in zip(WAVES, expected, strict=True) if time <= _TOLERANCE * min(expected))


def settle(
    data_dir: Path, files: Sequence[ChunkFile], device: torch.device, kv_dir: Path | None = None
) -> LoaderSettings:
    """Return loader settings for the chunk KV's drive: recorded, measured now, or the defaults.

    Call it at start, not while answering. Failures to measure are logged and otherwise ignored.
    """
    known = remembered(data_dir, kv_dir)
    if known is None:
        try:
            known = measure(files, device)
        except (OSError, CorruptKV, RuntimeError) as error:  # a file went away or is damaged, the GPU is full
            _log.info("the drive was not measured: %s", error)
        if known is not None:
            remember(data_dir, known, kv_dir)
    return known.applied(LoaderSettings()) if known is not None else LoaderSettings()


def _rates(
    sample: Sequence[ChunkFile], device: torch.device, choices: Sequence[tuple[int, int]], total: int
) -> list[float]:
    """Bytes per second with each (threads, waves): the best of three loads, taken in turns."""
    room = total + (len(sample) << 20)
    rates = [0.0] * len(choices)
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(
                Loader(device, LoaderSettings(threads=threads, waves=waves, staging_bytes=room, resident_bytes=room))
            )
            for threads, waves in choices
        ]
        for _ in range(_ROUNDS):
            for index, loader in enumerate(loaders):
                rates[index] = max(rates[index], total / _seconds(sample, device, loader))
    return rates


def _seconds(sample: Sequence[ChunkFile], device: torch.device, loader: Loader) -> float:
    """Duration of one cold load; empties the loader's memory before and after."""
    loader.forget()
    drop_page_cache(file.path for file in sample)
    began = time.perf_counter()
    load = loader.start(sample)
    try:
        load.wait_all()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        took = time.perf_counter() - began
    finally:
        load.close()
    loader.forget()
    return took


def _read(data_dir: Path) -> dict[str, dict[str, float]]:
    content = json.loads((data_dir / FILE).read_text(encoding="utf-8"))
    if content["version"] != _VERSION or not isinstance(content["drives"], dict):
        raise ValueError("drives.json has another version")
    return dict(content["drives"])
