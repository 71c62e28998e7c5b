"""Decide whether background prefill may run now, from readings of the computer's load.

With NVML, the GPU load of other processes decides; without it (no driver, no NVIDIA GPU), their CPU load. The load of
this process never counts, or prefill would stop itself.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from desk_rag.config import IdleSettings
from desk_rag.indexer.machine.load import CpuLoad, GpuLoad, GpuReading, cpu_hot_celsius, on_battery
from desk_rag.sanitize import clean

_SAMPLE_EVERY = 0.5
"""Seconds between readings; the CPU load of shorter windows is erratic."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Load of the computer at one moment, without that of this process."""

    gpu_busy_percent: int | None = None
    """GPU load of other processes; None without NVML."""
    gpu_free_mib: int | None = None
    gpu_program: str = ""
    """Name of the program that uses the GPU most."""
    hot: str = ""
    """Chip that is nearly so hot that it slows down, such as 'GPU, 84 °C'; empty if none is."""
    cpu_others_percent: float = 0.0
    """CPU load of other processes, over all cores."""
    on_battery: bool = False
    answering: bool = False
    paused_seconds: float = 0.0
    """Seconds left of a pause; 0 when not paused, inf until resumed."""


def decide(reading: Reading, settings: IdleSettings) -> str:
    """Return '' if prefill may run, or else the reason to wait, as the user reads it."""
    if reading.paused_seconds > 0:
        return describe_pause(reading.paused_seconds)
    if reading.answering:
        return "an answer is being made"
    if reading.on_battery and not settings.on_battery:
        return "on battery"
    if reading.hot:
        return f"the computer is hot ({reading.hot})"
    if reading.gpu_busy_percent is None:
        if reading.cpu_others_percent > settings.cpu_busy_percent:
            return f"other programs use the CPU ({reading.cpu_others_percent:.0f} %)"
        return ""
    if reading.gpu_busy_percent > settings.gpu_busy_percent:
        program = f", {clean(reading.gpu_program, single_line=True)}" if reading.gpu_program else ""
        return f"the GPU is busy ({reading.gpu_busy_percent} %{program})"
    if reading.gpu_free_mib is not None and reading.gpu_free_mib < settings.gpu_free_mib:
        return f"little GPU memory is free ({reading.gpu_free_mib} MiB)"
    return ""


def describe_pause(seconds: float) -> str:
    """Return 'paused for 52 min', 'paused for 40 s', or 'paused' if no end is set."""
    if seconds > 365 * 86400:
        return "paused"
    return f"paused for {seconds / 60:.0f} min" if seconds >= 90 else f"paused for {max(seconds, 1):.0f} s"


def _hot_chip(gpu: GpuReading | None) -> str:
    if gpu is not None and gpu.hot_celsius is not None:
        return f"GPU, {gpu.hot_celsius} °C"
    celsius = cpu_hot_celsius()
    return "" if celsius is None else f"processor, {celsius} °C"


def _uses_gpu() -> bool:
    """Return whether this process has begun to use a GPU, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


class IdleGate:
    """Decides `may_run` from readings at most every half second; the computer must have been idle for a while."""

    def __init__(
        self,
        settings: IdleSettings,
        *,
        answering: Callable[[], bool] = lambda: False,
        paused_until: Callable[[], float | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._answering = answering
        self._paused_until = paused_until
        self._clock = clock
        self._cpu = CpuLoad()
        self._gpu = GpuLoad()
        self._looked: float | None = None
        self._quiet_since: float | None = None
        self._ran: float | None = None
        self._reason = ""
        self._full_speed = False

    def full_speed(self, wanted: bool) -> None:
        """Run although the computer is busy or on battery, or no longer."""
        self._full_speed = wanted

    def may_run(self) -> str:
        """Return '' or the reason to wait: 'the GPU is busy (43 %)', 'on battery', 'paused for 52 min'."""
        now = self._clock()
        if self._full_speed:
            self._ran = now
            return ""
        if self._looked is None or now - self._looked >= _SAMPLE_EVERY:
            self._looked = now
            self._reason = self._judge(now, self.sample(now))
        if not self._reason:
            self._ran = now
        return self._reason

    def sample(self, now: float) -> Reading:
        """Take a reading; `now` is in the gate's clock."""
        working = self._ran is not None and now - self._ran < 2.0 and _uses_gpu()
        gpu = self._gpu.look(working)
        until = self._paused_until()
        return Reading(
            gpu_busy_percent=None if gpu is None else gpu.busy_percent,
            gpu_free_mib=None if gpu is None else gpu.free_mib,
            gpu_program="" if gpu is None else gpu.program,
            hot=_hot_chip(gpu),
            cpu_others_percent=self._cpu.percent(),
            on_battery=on_battery(),
            answering=self._answering(),
            paused_seconds=0.0 if until is None else max(0.0, until - time.time()),
        )

    def after_sleep(self) -> None:
        """Start over after a suspend: GPU handles are stale and the idle time is meaningless."""
        self._gpu.start()
        self._quiet_since = self._looked = None

    def close(self) -> None:
        """Close NVML."""
        self._gpu.stop()

    def _judge(self, now: float, reading: Reading) -> str:
        reason = decide(reading, self._settings)
        if reason:
            self._quiet_since = None
            return reason
        if self._quiet_since is None:
            self._quiet_since = now
        quiet, needed = now - self._quiet_since, self._settings.quiet_seconds
        return "" if quiet >= needed else f"the computer is not idle yet ({quiet:.0f} of {needed:.0f} s)"


def lower_priority() -> None:
    """Lower this process's priority: nice 10 (below normal on Windows) and idle disk access. Never raises."""
    process = psutil.Process()
    with contextlib.suppress(psutil.Error, OSError, ValueError):
        if sys.platform == "win32":
            process.nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)
        elif process.nice() < 10:
            process.nice(10)
    if hasattr(process, "ionice"):
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            if sys.platform == "win32":
                process.ionice(psutil.IOPRIO_LOW)
            else:
                process.ionice(psutil.IOPRIO_CLASS_IDLE)
