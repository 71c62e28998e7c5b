"""Read the computer's sensors: load of CPU and GPU by other programs, temperatures, battery."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import Any

import psutil

_SHORTEST_WINDOW = 0.2
"""Core-seconds that a CPU reading must cover: the kernel counts in steps of 10 ms."""
_MIB = 1024**2
_HEAT_MARGIN = 5
"""Degrees below the temperature at which a chip slows down from which it counts as hot."""
_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "acpitz")


@dataclass(frozen=True, slots=True)
class GpuReading:
    """Load of the NVIDIA GPUs at one moment, without that of this process."""

    busy_percent: int
    free_mib: int
    program: str = ""
    """Name of the program that uses it most; empty if none does or it is unknown."""
    hot_celsius: int | None = None
    """Temperature if it is near the one at which the GPU slows itself down."""


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

    def look(self, working: bool) -> GpuReading | None:
        """Return the load by other processes of the busiest GPU, and the least free memory; None without NVML.

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
            busy, pid = max(self._busy(nvml, handle, working) for handle in handles)
            heat = max(filter(None, (self._heat(nvml, handle) for handle in handles)), key=_excess, default=None)
            free = min(int(nvml.nvmlDeviceGetMemoryInfo(handle).free) // _MIB for handle in handles)
        except nvml.NVMLError:
            self.start()
            return None
        self._seen_us = time.time_ns() // 1000
        return GpuReading(busy, free, _name_of(pid), None if heat is None or _excess(heat) < 0 else heat[0])

    def _heat(self, nvml: Any, handle: Any) -> tuple[int, int] | None:
        """Return temperature and the one at which the GPU slows itself down, in °C; None where it does not say."""
        try:
            celsius = int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
            limit = int(nvml.nvmlDeviceGetTemperatureThreshold(handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN))
        except nvml.NVMLError:
            return None
        return (celsius, limit) if limit > 0 else None

    def _busy(self, nvml: Any, handle: Any, working: bool) -> tuple[int, int]:
        """Return the load in percent by other processes, and the process that causes most of it (0: unknown)."""
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, self._seen_us)
        except nvml.NVMLError_NotFound:  # no process used the GPU since the last reading
            return 0, 0
        except nvml.NVMLError:
            return 0 if working else int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu), 0
        loads = {int(sample.pid): int(sample.smUtil) for sample in samples if sample.smUtil <= 100}
        # In a container NVML reports process ids of the host, so our own cannot be identified.
        if working and os.getpid() not in loads:
            return 0, 0
        others = {pid: load for pid, load in loads.items() if pid != os.getpid()}
        return min(100, sum(others.values())), max(others, key=lambda pid: others[pid], default=0)


def on_battery() -> bool:
    """Return whether the computer has a battery and is not plugged in."""
    try:
        battery = psutil.sensors_battery()
    except (AttributeError, OSError, NotImplementedError, RuntimeError):
        return False
    return battery is not None and battery.power_plugged is False


def cpu_hot_celsius() -> int | None:
    """Return the processor's temperature if it is near the limit its sensor names; None if not, or unknown."""
    try:
        sensors = psutil.sensors_temperatures()
    except (AttributeError, OSError, NotImplementedError, RuntimeError):
        return None
    readings = [reading for name in _CPU_SENSORS for reading in sensors.get(name, ())]
    hot = [
        int(reading.current)
        for reading in readings
        if (limit := reading.critical or reading.high) and 40 < limit < 130 and reading.current >= limit - _HEAT_MARGIN
    ]
    return max(hot, default=None)


def _excess(heat: tuple[int, int]) -> int:
    """Return by how much a temperature is above the one that counts as hot."""
    celsius, limit = heat
    return celsius - (limit - _HEAT_MARGIN)


def _name_of(pid: int) -> str:
    try:
        return psutil.Process(pid).name() if pid else ""
    except (psutil.Error, OSError, ValueError):
        return ""
