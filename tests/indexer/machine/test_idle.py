from __future__ import annotations

import math
import multiprocessing
import os
import time
from types import SimpleNamespace

import psutil
import pytest

from desk_rag.config import IdleSettings
from desk_rag.indexer.machine import load as machine_load
from desk_rag.indexer.machine.idle import IdleGate, Reading, decide, describe_pause, lower_priority
from desk_rag.indexer.machine.load import CpuLoad, GpuLoad, cpu_hot_celsius, on_battery

SETTINGS = IdleSettings()


@pytest.mark.parametrize(
    ("reading", "reason"),
    [
        (Reading(), ""),
        (Reading(cpu_others_percent=71.4), "other programs use the CPU (71 %)"),
        (Reading(cpu_others_percent=40.0), ""),
        (Reading(gpu_busy_percent=43, gpu_free_mib=9000), "the GPU is busy (43 %)"),
        (Reading(gpu_busy_percent=43, gpu_program="ga\x07me"), "the GPU is busy (43 %, game)"),
        (Reading(hot="GPU, 84 °C"), "the computer is hot (GPU, 84 °C)"),
        (Reading(gpu_busy_percent=20, gpu_free_mib=9000), ""),
        (Reading(gpu_busy_percent=0, gpu_free_mib=512), "little GPU memory is free (512 MiB)"),
        # with a GPU it is the GPU that decides: prefill hardly needs the CPU then
        (Reading(gpu_busy_percent=0, gpu_free_mib=9000, cpu_others_percent=95), ""),
        (Reading(on_battery=True), "on battery"),
        (Reading(answering=True, on_battery=True), "an answer is being made"),
        (Reading(paused_seconds=52 * 60, answering=True), "paused for 52 min"),
        (Reading(paused_seconds=math.inf), "paused"),
    ],
)
def test_decide(reading: Reading, reason: str) -> None:
    assert decide(reading, SETTINGS) == reason


def test_battery_is_allowed_when_the_settings_say_so() -> None:
    assert decide(Reading(on_battery=True), IdleSettings(on_battery=True)) == ""


def test_describe_pause() -> None:
    assert describe_pause(40) == "paused for 40 s"
    assert describe_pause(0.2) == "paused for 1 s"
    assert describe_pause(3600) == "paused for 60 min"


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_cpu_load_leaves_own_work_out_and_counts_that_of_others() -> None:
    """Measured on the real machine, so other programs get in the way: a few tries, and none on a saturated machine."""
    cores = psutil.cpu_count() or 1
    for _ in range(4):
        own, others = _loads()
        # Other programs may run as well; what this process did alone must not show as a whole core of load.
        if own <= 100 * (cores - 1) / cores + 40 / cores and others >= 40 / cores:
            return
    if psutil.cpu_percent(1.0) > 60:
        pytest.skip("the machine is saturated by other programs")
    pytest.fail(f"own work showed as {own:.0f} % of other programs' load, another process as {others:.0f} %")


def _loads() -> tuple[float, float]:
    """Return the load that CpuLoad reports after own work, and while another process computes, in percent."""
    load = CpuLoad()
    spin(1.0)
    own = load.percent()
    process = multiprocessing.get_context("spawn").Process(target=spin, args=(30,))
    process.start()
    try:
        time.sleep(1.0)  # the child imports its modules
        load.percent()
        time.sleep(1.5)
        return own, load.percent()
    finally:
        process.kill()
        process.join()


def test_the_gate_waits_until_the_machine_was_quiet_for_a_while() -> None:
    now = 1000.0
    answering = False
    gate = IdleGate(
        IdleSettings(quiet_seconds=10, cpu_busy_percent=100, gpu_busy_percent=100, gpu_free_mib=0, on_battery=True),
        answering=lambda: answering,
        clock=lambda: now,
    )
    assert gate.may_run() == "the computer is not idle yet (0 of 10 s)"
    now += 9
    assert gate.may_run() == "the computer is not idle yet (9 of 10 s)"
    now += 2
    assert gate.may_run() == ""
    answering = True
    now += 1
    assert gate.may_run() == "an answer is being made"
    answering = False
    now += 1
    assert gate.may_run() == "the computer is not idle yet (0 of 10 s)"
    now += 10
    assert gate.may_run() == ""
    gate.after_sleep()
    assert gate.may_run() == "the computer is not idle yet (0 of 10 s)"
    gate.close()


def test_the_gate_tells_of_a_pause() -> None:
    until: float | None = time.time() + 3000
    settings = IdleSettings(
        quiet_seconds=0, cpu_busy_percent=100, gpu_busy_percent=100, gpu_free_mib=0, on_battery=True
    )
    now = 0.0
    gate = IdleGate(settings, paused_until=lambda: until, clock=lambda: now)
    assert gate.may_run() == "paused for 50 min"
    until = None
    now = 1.0
    assert gate.may_run() == ""


def test_the_machine_can_be_read() -> None:
    gate = IdleGate(SETTINGS)
    time.sleep(0.3)
    reading = gate.sample(time.monotonic())
    assert 0 <= reading.cpu_others_percent <= 100
    assert isinstance(on_battery(), bool)
    assert (reading.gpu_busy_percent is None) == (reading.gpu_free_mib is None)
    gate.close()


def test_without_a_driver_there_is_no_gpu_load() -> None:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        assert GpuLoad().look(working=False) is None
    else:
        pynvml.nvmlShutdown()
        load = GpuLoad().look(working=False)
        assert load is not None
        assert 0 <= load.busy_percent <= 100
        assert load.free_mib > 0


class FakeNvml:
    """The functions of NVML that are used, for one GPU of a given temperature with one busy process."""

    NVML_TEMPERATURE_GPU, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 0, 1

    class NVMLError(Exception):
        pass

    class NVMLError_NotFound(NVMLError):
        pass

    def __init__(self, celsius: int, pid: int) -> None:
        self.celsius, self.pid = celsius, pid

    def __getattr__(self, name: str) -> object:
        answers = {
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": 0,
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(free=8 << 30),
            "nvmlDeviceGetTemperature": self.celsius,
            "nvmlDeviceGetTemperatureThreshold": 90,
            "nvmlDeviceGetProcessUtilization": [SimpleNamespace(pid=self.pid, smUtil=61)],
            "nvmlShutdown": None,
        }
        return lambda *_: answers[name]


@pytest.mark.parametrize(("celsius", "hot"), [(84, None), (85, 85), (91, 91)])
def test_a_gpu_near_its_slowdown_is_hot_and_the_program_that_uses_it_is_named(celsius: int, hot: int | None) -> None:
    gpu = GpuLoad()
    gpu._nvml = FakeNvml(celsius, os.getppid())
    reading = gpu.look(working=False)
    assert reading is not None and (reading.busy_percent, reading.free_mib) == (61, 8192)
    assert reading.hot_celsius == hot
    assert reading.program == psutil.Process(os.getppid()).name()


@pytest.mark.parametrize(
    ("sensors", "hot"),
    [
        ({}, None),
        ({"coretemp": [(71.0, 80.0, 100.0), (60.0, 80.0, 100.0)]}, None),
        ({"coretemp": [(71.0, 80.0, 100.0), (96.5, 80.0, 100.0)]}, 96),
        ({"nvme": [(96.0, 80.0, 85.0)]}, None),
        ({"k10temp": [(70.0, None, None)], "acpitz": [(70.0, 0.0, 0.0)]}, None),
    ],
)
def test_a_processor_near_its_limit_is_hot(
    monkeypatch: pytest.MonkeyPatch, sensors: dict[str, list[tuple[float, float, float]]], hot: int | None
) -> None:
    named = {
        name: [SimpleNamespace(current=current, high=high, critical=critical) for current, high, critical in values]
        for name, values in sensors.items()
    }
    monkeypatch.setattr(machine_load.psutil, "sensors_temperatures", lambda: named, raising=False)
    assert cpu_hot_celsius() == hot


def _niceness(queue: multiprocessing.Queue[tuple[int, int]]) -> None:
    lower_priority()
    lower_priority()
    process = psutil.Process(os.getpid())
    queue.put((process.nice(), int(process.ionice().ioclass) if hasattr(process, "ionice") else -1))


@pytest.mark.skipif(not hasattr(os, "nice"), reason="POSIX")
def test_lower_priority() -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_niceness, args=(queue,))
    process.start()
    nice, io_class = queue.get(timeout=30)
    process.join()
    assert nice >= 10
    if io_class != -1:
        assert io_class == psutil.IOPRIO_CLASS_IDLE
