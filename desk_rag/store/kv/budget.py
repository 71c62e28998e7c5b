"""Limit the bytes of KV files, and estimate them before a corpus is indexed.

The limit is min(user cap, used + free space - reserve). Bytes are reserved before they are written, so that used plus
reserved never exceeds the limit, even with several threads.
"""

from __future__ import annotations

import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

from desk_rag.config import GIB, StoreSettings
from desk_rag.documents.status import foreseen

EAGER_BELOW = 0.8
"""Share of the limit that is filled with any chunk; the rest is for chunks that are used repeatedly."""
GPU_PRICE, CPU_PRICE = 400.0, 200.0
"""Prices of a modest desktop GPU and of a desktop processor, in any currency."""
DISK_PRICE_PER_GB = 0.08
"""Price of a consumer NVMe drive per GB, in the same currency."""
_SECONDS_PER_DAY = 86_400


class Budget:
    """Counts used and reserved bytes. Safe to use from several threads."""

    def __init__(self, root: Path, settings: StoreSettings, used: int) -> None:
        self._root = root
        self._cap = int(settings.budget_gib * GIB)
        self._reserve = int(settings.reserve_gib * GIB)
        self._lock = threading.Lock()
        self._used = used
        self._reserved = 0

    @property
    def used(self) -> int:
        """Bytes on disk."""
        return self._used

    @property
    def taken(self) -> int:
        """Bytes on disk plus bytes reserved for writes in progress."""
        with self._lock:
            return self._used + self._reserved

    def has_room_to_spare(self, place: Path) -> bool:
        """Return whether the drive of `place` has more free than is to stay free."""
        return shutil.disk_usage(place).free > self._reserve

    def limit(self, used: int | None = None) -> int:
        """Return the most bytes that may be taken now; `used` are those on disk where another process writes."""
        return max(0, min(self._cap, self.disk_limit(used)))

    def disk_limit(self, used: int | None = None) -> int:
        """Return the limit from free space alone, without the cap; negative once the reserve is used up."""
        existing = next(path for path in (self._root, *self._root.parents) if path.exists())
        return (self._used if used is None else used) + shutil.disk_usage(existing).free - self._reserve

    def excess(self, size: int) -> int:
        """Return how many bytes must be evicted before `size` more fit; 0 or less if they fit."""
        return self.taken + size - self.limit()

    def reserve(self, size: int) -> bool:
        """Reserve `size` bytes for a write; False, with nothing reserved, if they do not fit."""
        limit = self.limit()
        with self._lock:
            if self._used + self._reserved + size > limit:
                return False
            self._reserved += size
            return True

    def release(self, size: int) -> None:
        """Give reserved bytes back after a failed write."""
        with self._lock:
            self._reserved -= size

    def written(self, size: int) -> None:
        """Turn reserved bytes into used bytes after a write."""
        with self._lock:
            self._reserved -= size
            self._used += size

    def freed(self, size: int) -> None:
        """Subtract the bytes of a removed file."""
        with self._lock:
            self._used = max(0, self._used - size)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Space and time that caching a corpus would take."""

    kv_bytes: int
    limit_bytes: int
    seconds: float | None
    """Prefill time; None while the rate of this machine is unknown."""
    sentence: str


def estimate(
    num_tokens: int,
    bytes_per_token: float,
    limit_bytes: int,
    prefill_seconds_per_token: float | None = None,
    present_bytes: int = 0,
) -> Estimate:
    """Estimate what `num_tokens` more would take, in addition to the model's `present_bytes`."""
    size = present_bytes + int(num_tokens * bytes_per_token)
    seconds = None if prefill_seconds_per_token is None else num_tokens * prefill_seconds_per_token
    sentence = f"The chunk caches would take about {readable(size)} of the {readable(limit_bytes)} they may take"
    if limit_bytes <= 0:
        sentence = f"The chunk caches would take about {readable(size)}, and there is no room for any."
        return Estimate(size, limit_bytes, seconds, sentence)
    if size < EAGER_BELOW * limit_bytes:
        sentence += "; all of them fit."
    else:
        share = min(1.0, limit_bytes / max(1, size))
        sentence += f"; {share:.0%} of them fit: the most recent first, then those used a second time."
    if seconds is not None and seconds >= 1:
        sentence += f" Making them takes about {foreseen(seconds)} of idle time."
    return Estimate(size, limit_bytes, seconds, sentence)


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Break-even point of keeping chunk KV."""

    speedup: float
    """Prefill time over load time of the same tokens."""
    days: float
    """Longest time between two uses at which the space still costs less than the GPU time saved."""
    sentence: str


def break_even(
    prefill_seconds_per_token: float,
    load_bytes_per_second: float,
    bytes_per_token: float,
    *,
    on_gpu: bool = False,
) -> BreakEven:
    """Apply MatKV's "ten-day rule" to rates measured on this machine.

    The rule is Gray and Putzolu's five-minute rule with flash in place of memory and the device that prefills, a GPU or
    a processor, in place of the disk. Keeping a token costs `bytes_per_token` x disk price; computing it again every x
    seconds occupies `prefill_seconds_per_token` / x of the device. The costs are equal at
    x = device price x seconds / (bytes x disk price).
    """
    load_seconds = bytes_per_token / load_bytes_per_second
    speedup = prefill_seconds_per_token / load_seconds
    saved = max(0.0, prefill_seconds_per_token - load_seconds)
    device_price, device = (GPU_PRICE, "GPU") if on_gpu else (CPU_PRICE, "processor")
    days = device_price * saved / (bytes_per_token * DISK_PRICE_PER_GB / 1e9) / _SECONDS_PER_DAY
    rates = (
        f"(1,000 tokens take {_duration(1000 * prefill_seconds_per_token)} to read"
        f" and {_duration(1000 * load_seconds)} to load)"
    )
    if speedup <= 1:
        sentence = "on this machine, loading the caches of passages takes no less time than reading the passages"
        return BreakEven(speedup, 0.0, f"{sentence} {rates}")
    interval = "a day" if days < 1.5 else f"{days:,.0f} days"
    times = f"{speedup:.0f}" if speedup >= 10 else f"{speedup:.1f}"
    sentence = (
        f"a passage with a cache is ready {times} times sooner {rates}. Keeping a cache is worth its disk space if it"
        f" is used at least once in {interval} (reckoned with {device_price:.0f} euros for a {device} and"
        f" {DISK_PRICE_PER_GB} euros for a GB of the drive)"
    )
    return BreakEven(speedup, days, sentence)


def readable(size: float) -> str:
    """Format a number of bytes: '812 KiB', '3.4 GiB'."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
