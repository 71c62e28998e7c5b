"""How a drive likes to be read: threads and waves measured once, remembered in the data directory per drive.

Knows loads of real KV files and a small JSON file; knows no question and never runs while one is answered. A file that
is missing, unreadable or of another drive means: measure again. Deleting `drives.json` is the way to redo it.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from desk_rag.errors import CorruptKV
from desk_rag.kv.loader import Loader, LoaderSettings
from desk_rag.kv.payload import ChunkFile
from desk_rag.store.layout import forget_cached, write_private

_log = logging.getLogger(__name__)

FILE = "drives.json"
SAMPLE = 64
"""KV files that are read to measure."""
SAMPLE_BYTES = 96 << 20
SMALLEST_SAMPLE = 16 << 20
"""Less than this says more about threads than about the drive; the defaults stay until there is more."""
THREADS = (4, 8, 16, 32)
WAVES = (1, 2, 4, 8)
_WAVES_MEANWHILE = 2
"""While threads are compared."""
_ENOUGH = 0.95
"""More waves let computing begin earlier, so the most that still reach this share of the best rate are taken. A slow
drive is best read in long runs: on one of 1.7 GB/s four waves took an eighth longer than one."""
_VERSION = 2


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was found for one drive."""

    threads: int
    waves: int
    bytes_per_second: float
    """Of a cold load of several files with these settings."""

    def applied(self, settings: LoaderSettings) -> LoaderSettings:
        """The settings with what was found."""
        return replace(settings, threads=self.threads, waves=self.waves)


def drive_of(place: Path) -> str:
    """A name for the drive that holds `place`, the same after a restart where the file system has an identity."""
    fsid = os.statvfs(place).f_fsid if hasattr(os, "statvfs") else 0
    return f"fs-{fsid:x}" if fsid else f"dev-{place.stat().st_dev:x}"


def remembered(data_dir: Path) -> Tuned | None:
    """What is known of the data directory's drive; None if nothing is, or what is written makes no sense."""
    try:
        found = _read(data_dir)[drive_of(data_dir)]
        tuned = Tuned(**found)  # type: ignore[arg-type]
        numbers = (tuned.threads, tuned.waves)
        whole = all(type(number) is int and 1 <= number <= 256 for number in numbers)
        return tuned if whole and float(tuned.bytes_per_second) > 0 else None
    except (OSError, KeyError, TypeError, ValueError):
        return None


def remember(data_dir: Path, tuned: Tuned) -> None:
    """Write it down for the data directory's drive; what is known of others stays. A full disk costs nothing."""
    try:
        known = _read(data_dir)
    except (OSError, ValueError, TypeError, KeyError):
        known = {}
    try:
        known[drive_of(data_dir)] = asdict(tuned)
        text = json.dumps({"version": _VERSION, "drives": known}, indent=1)
        write_private(data_dir / FILE, text.encode())
    except OSError as error:
        _log.warning("what was measured of the drive could not be kept (%s)", error.strerror)


def measure(files: Iterable[ChunkFile], device: torch.device) -> Tuned | None:
    """Load some of these files (of one model) cold with each setting; None where there is too little to read.

    Reads at most SAMPLE_BYTES for each of eight settings, twice: half a second at 3 GB/s.
    """
    sample: list[ChunkFile] = []
    for file in files:
        if sum(one.payload for one in sample) >= SAMPLE_BYTES:
            break
        sample.append(file)
    total = sum(file.payload for file in sample)
    if total < SMALLEST_SAMPLE:
        return None
    by_threads = {number: _rate(sample, device, number, _WAVES_MEANWHILE, total) for number in THREADS}
    best = max(THREADS, key=lambda number: by_threads[number])
    by_waves = {waves: _rate(sample, device, best, waves, total) for waves in WAVES}
    most = max(waves for waves in WAVES if by_waves[waves] >= _ENOUGH * max(by_waves.values()))
    return Tuned(best, most, by_waves[most])


def settle(data_dir: Path, files: Sequence[ChunkFile], device: torch.device) -> LoaderSettings:
    """Settings for the data directory's drive: remembered, or measured now and remembered, or the defaults.

    For starting up, not for answering. Nothing that can go wrong with it keeps anybody from starting.
    """
    known = remembered(data_dir)
    if known is None:
        try:
            known = measure(files, device)
        except (OSError, CorruptKV, RuntimeError) as error:  # a file went away or is damaged, the GPU is full
            _log.info("the drive was not measured (%s)", error)
        if known is not None:
            remember(data_dir, known)
    return known.applied(LoaderSettings()) if known is not None else LoaderSettings()


def _rate(sample: Sequence[ChunkFile], device: torch.device, threads: int, waves: int, total: int) -> float:
    """Bytes per second, the better of two loads."""
    room = total + (len(sample) << 20)
    settings = LoaderSettings(threads=threads, waves=waves, staging_bytes=room, resident_bytes=room)
    best = 0.0
    with Loader(device, settings) as loader:
        for _ in range(2):
            loader.forget()
            forget_cached(file.path for file in sample)
            began = time.perf_counter()
            load = loader.start(sample)
            try:
                load.wait_all()
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                best = max(best, total / (time.perf_counter() - began))
            finally:
                load.close()
    return best


def _read(data_dir: Path) -> dict[str, dict[str, float]]:
    content = json.loads((data_dir / FILE).read_text(encoding="utf-8"))
    if content["version"] != _VERSION or not isinstance(content["drives"], dict):
        raise ValueError("another version")
    return dict(content["drives"])
