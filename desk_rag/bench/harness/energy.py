"""Joules of the GPU per piece of work, from the driver's own counter.

The counter moves in steps of some tens of milliseconds, so the same work is done again and again for seconds and the
total is divided; what the idle GPU draws is measured beside it and not subtracted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch

_log = logging.getLogger(__name__)


class Meter(Protocol):
    """Anything that counts joules."""

    def joules(self) -> float:
        """Joules since some moment that does not change."""


class NvmlMeter:
    """The total energy counter of one NVIDIA GPU (Volta and later)."""

    def __init__(self, device: torch.device) -> None:
        """Raises pynvml.NVMLError where there is no driver or no such counter."""
        import pynvml

        pynvml.nvmlInit()
        index = torch.cuda.current_device() if device.index is None else device.index
        # torch counts only the GPUs it may see; the identifier is the same on both sides.
        uuid = f"GPU-{torch.cuda.get_device_properties(index).uuid}"
        self._nvml: Any = pynvml
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        self.joules()

    def joules(self) -> float:
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3


def meter_of(device: torch.device) -> Meter | None:
    """The device's meter, or None (and a line in the log) where there is none."""
    if device.type != "cuda":
        return None
    try:
        return NvmlMeter(device)
    except Exception as error:  # pynvml's errors, and ImportError where it is not installed
        _log.warning("no energy: %s: %s", type(error).__name__, error)
        return None


@dataclass(frozen=True, slots=True)
class Energy:
    """Time and energy of one piece of work."""

    joules: float
    """Joules per run, idle draw included."""
    seconds: float
    """Seconds per run, its preparation included."""
    watts: float
    runs: int

    def json(self) -> dict[str, float]:
        """Rounded."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


def measure(
    meter: Meter, work: Callable[[], object], before: Callable[[], object] = lambda: None, *, seconds: float
) -> Energy:
    """Repeat `before` and `work` for at least `seconds`, at least twice, and divide. Both must wait for the device."""
    before()
    work()
    joules, began, runs = meter.joules(), time.perf_counter(), 0
    while runs < 2 or time.perf_counter() - began < seconds:
        before()
        work()
        runs += 1
    took = time.perf_counter() - began
    used = meter.joules() - joules
    return Energy(used / runs, took / runs, used / took, runs)


def idle_watts(meter: Meter, seconds: float) -> float:
    """Watts that the device draws while idle, with its memory as full as it is."""
    time.sleep(0.5)
    joules, began = meter.joules(), time.perf_counter()
    time.sleep(seconds)
    return (meter.joules() - joules) / (time.perf_counter() - began)
