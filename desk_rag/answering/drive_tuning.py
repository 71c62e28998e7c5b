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
"""KV files that are read to measure."""
SAMPLE_BYTES = 96 << 20
SMALLEST_SAMPLE = 16 << 20
"""Less than this says more about threads than about the drive; the defaults stay until there is more."""
THREADS = (4, 8, 16, 32)
WAVES = (1, 2, 4, 8)
_WAVES_MEANWHILE = 2
"""While threads are compared: the sample has fewer files than an answer, and so as many reads."""
_ROUNDS = 3
_PASS_RATE = 40e9
"""Bytes of chunk KV per second that a question's pass keeps pace with on a large GPU: 6.0 ms for the 238 MB of 8,192
tokens of Qwen2-7B on an H200."""
_PASS_RATE_SMALL = 4e9
"""Elsewhere, an estimate: their memory is about a tenth as fast. On a CPU a pass takes so much longer that its waves
hardly matter."""
_NEAR = 1.05
"""What is expected to take no longer than this times the best is as good: drives differ by more from load to load."""
_VERSION = 3
"""Of the rule too: what an older one chose is not believed."""


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


def remembered(data_dir: Path, kv_dir: Path | None = None) -> Tuned | None:
    """What is known of the drive of the chunk KV; None if nothing is, or what is written makes no sense.

    `kv_dir` is the setting of that name; without it that is the data directory's drive.
    """
    try:
        found = _read(data_dir)[drive_of(kv_dir or data_dir)]
        tuned = Tuned(**found)  # type: ignore[arg-type]
        numbers = (tuned.threads, tuned.waves)
        whole = all(type(number) is int and 1 <= number <= 256 for number in numbers)
        return tuned if whole and float(tuned.bytes_per_second) > 0 else None
    except (OSError, KeyError, TypeError, ValueError):
        return None


def remember(data_dir: Path, tuned: Tuned, kv_dir: Path | None = None) -> None:
    """Write it down for the drive of the chunk KV; what is known of others stays. A full disk costs nothing."""
    try:
        known = _read(data_dir)
    except (OSError, ValueError, TypeError, KeyError):
        known = {}
    try:
        known[drive_of(kv_dir or data_dir)] = asdict(tuned)
        text = json.dumps({"version": _VERSION, "drives": known}, indent=1)
        OwnedDirectory(data_dir).write(data_dir / FILE, text.encode())
    except (OSError, ForeignPlace) as error:
        _log.warning("what was measured of the drive could not be kept (%s)", error)


def measure(files: Iterable[ChunkFile], device: torch.device) -> Tuned | None:
    """Load some of these files (of one model) cold with each setting; None where there is too little to read.

    Reads at most SAMPLE_BYTES for each of eight settings, three times: a second at 3 GB/s.
    """
    sample: list[ChunkFile] = []
    for file in files:
        if sum(one.payload for one in sample) >= SAMPLE_BYTES:
            break
        sample.append(file)
    total = sum(file.payload for file in sample)
    if total < SMALLEST_SAMPLE:
        return None
    by_threads = _rates(sample, device, [(number, _WAVES_MEANWHILE) for number in THREADS], total)
    best = max(zip(by_threads, THREADS, strict=True))[1]
    rates = _rates(sample, device, [(best, waves) for waves in WAVES], total)
    waves = fewest_waves(rates, _PASS_RATE if is_large(device) else _PASS_RATE_SMALL)
    return Tuned(best, waves, rates[WAVES.index(waves)])


def fewest_waves(rates: Sequence[float], pass_rate: float) -> int:
    """The fewest of WAVES with which the first token is expected about as early as it can be.

    `rates` are bytes per second of a load in each number of waves, `pass_rate` what the question's pass over them would
    keep pace with. Of a load and a pass in n equal waves one has to wait for the other but for a last or a first wave:
    a slow drive leaves an nth of the pass to do behind its last byte, a fast one an nth of the load before the pass.
    So more waves pay where a pass takes a fair share of the time of its load and shorter reads cost less than that. On
    a drive of 1.7 GB/s and an H200 a pass is a twentieth of its load, and two to eight waves took 8 to 25 % longer.
    """
    expected = [
        max(1 / rate + 1 / pass_rate / waves, 1 / rate / waves + 1 / pass_rate)
        for rate, waves in zip(rates, WAVES, strict=True)
    ]
    return next(waves for waves, time in zip(WAVES, expected, strict=True) if time <= _NEAR * min(expected))


def settle(
    data_dir: Path, files: Sequence[ChunkFile], device: torch.device, kv_dir: Path | None = None
) -> LoaderSettings:
    """Settings for the drive of the chunk KV: remembered, or measured now and remembered, or the defaults.

    For starting up, not for answering. Nothing that can go wrong with it keeps anybody from starting.
    """
    known = remembered(data_dir, kv_dir)
    if known is None:
        try:
            known = measure(files, device)
        except (OSError, CorruptKV, RuntimeError) as error:  # a file went away or is damaged, the GPU is full
            _log.info("the drive was not measured (%s)", error)
        if known is not None:
            remember(data_dir, known, kv_dir)
    return known.applied(LoaderSettings()) if known is not None else LoaderSettings()


def _rates(
    sample: Sequence[ChunkFile], device: torch.device, choices: Sequence[tuple[int, int]], total: int
) -> list[float]:
    """Bytes per second with each (threads, waves), the best of three loads; in turns, since a drive's rate wanders."""
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
    """Of one cold load; nothing stays in the tiers."""
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
        raise ValueError("another version")
    return dict(content["drives"])
