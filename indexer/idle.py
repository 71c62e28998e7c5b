"""Decide whether background prefill may run now, from readings of the computer's load.

With NVML, the GPU load of other processes decides; without it (no driver, no NVIDIA GPU), their CPU load. The load of
this process never counts, or prefill would stop itself.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil

from desk_rag.config import IdleSettings

_SAMPLE_EVERY = 0.5
"""Seconds between readings; the CPU load of shorter windows is erratic."""
_SHORTEST_WINDOW = 0.2
"""Core-seconds that a CPU reading must cover: the kernel counts in steps of 10 ms."""
_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Reading:
    """Load of the computer at one moment, without that of this process."""

    gpu_busy_percent: int | None = None
    """GPU load of other processes; None without NVML."""
    gpu_free_mib: int | None = None
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
    if reading.gpu_busy_percent is None:
        if reading.cpu_others_percent > settings.cpu_busy_percent:
            return f"other programs use the CPU ({reading.cpu_others_percent:.0f} %)"
        return ""
    if reading.gpu_busy_percent > settings.gpu_busy_percent:
        return f"the GPU is busy ({reading.gpu_busy_percent} %)"
    if reading.gpu_free_mib is not None and reading.gpu_free_mib < settings.gpu_free_mib:
        return f"little GPU memory is free ({reading.gpu_free_mib} MiB)"
    return ""


def describe_pause(seconds: float) -> str:
    """Return 'paused for 52 min', 'paused for 40 s', or 'paused' if no end is set."""
    if seconds > 365 * 86400:
        return "paused"
    return f"paused for {seconds / 60:.0f} min" if seconds >= 90 else f"paused for {max(seconds, 1):.0f} s"


class CpuLoad:
    """Measures the CPU load of other processes between two calls."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._last = self._look()
        self._percent = 0.0

    def percent(self) -> float:
        """Return the load over all cores since the last call, 0 to 100, without this process and its ended children."""
        now = self._look()
        total, busy, own = (b - a for a, b in zip(self._last, now, strict=True))
        if total >= _SHORTEST_WINDOW:
            self._last = now
            self._percent = min(100.0, max(0.0, (busy - own) / total * 100))
        return self._percent

    def _look(self) -> tuple[float, float, float]:
        times, own = psutil.cpu_times(), self._own.cpu_times()
        # guest time is already part of user time
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        idle = times.idle + getattr(times, "iowait", 0.0)
        mine = own.user + own.system + getattr(own, "children_user", 0.0) + getattr(own, "children_system", 0.0)
        return total, total - idle, mine


class GpuLoad:
    """Reads load and free memory of the NVIDIA GPUs through NVML."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._seen_us = 0
        self.start()

    def start(self) -> None:
        """Open NVML again; handles do not survive a suspend or a driver reset."""
        self.stop()
        try:
            import pynvml

            pynvml.nvmlInit()
        except (ImportError, OSError):
            return
        except Exception as error:
            # pynvml raises its NVMLError for an absent driver; the class is only there once the import has worked.
            if type(error).__module__ != "pynvml":
                raise
            return
        self._nvml = pynvml

    def stop(self) -> None:
        """Close NVML."""
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
        self._nvml = None

    def look(self, working: bool) -> tuple[int, int] | None:
        """Return (percent used by other processes, free MiB) of the busiest GPU; None without NVML.

        `working` says that this process used the GPU recently. If the load is not known by process, it then counts as
        our own, 0 for others; free memory still shows what others use.
        """
        nvml = self._nvml
        if nvml is None:
            return None
        try:
            handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
            if not handles:
                return None
            busy = max(self._busy(nvml, handle, working) for handle in handles)
            free = min(int(nvml.nvmlDeviceGetMemoryInfo(handle).free) // _MIB for handle in handles)
        except nvml.NVMLError:
            self.start()
            return None
        self._seen_us = time.time_ns() // 1000
        return busy, free

    def _busy(self, nvml: Any, handle: Any, working: bool) -> int:
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, self._seen_us)
        except nvml.NVMLError_NotFound:  # no process used the GPU since the last reading
            return 0
        except nvml.NVMLError:
            return 0 if working else int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        loads = {int(sample.pid): int(sample.smUtil) for sample in samples if sample.smUtil <= 100}
        # In a container NVML reports process ids of the host, so our own cannot be identified.
        if working and os.getpid() not in loads:
            return 0
        return min(100, sum(load for pid, load in loads.items() if pid != os.getpid()))


def _uses_gpu() -> bool:
    """Return whether this process has begun to use a GPU, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def on_battery() -> bool:
    """Return whether the computer has a battery and is not plugged in."""
    try:
        battery = psutil.sensors_battery()
    except (AttributeError, OSError, NotImplementedError, RuntimeError):
        return False
    return battery is not None and battery.power_plugged is False


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
            gpu_busy_percent=None if gpu is None else gpu[0],
            gpu_free_mib=None if gpu is None else gpu[1],
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
