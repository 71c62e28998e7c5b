"""Measure the machine that a model has to fit into."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from desk_rag.config import GIB, Settings
from desk_rag.model import packed_linear
from desk_rag.model.library.fit import Machine
from desk_rag.model.loading import set_threads
from desk_rag.model.memory.plan import ON_CPU, cpu_has_bf16
from desk_rag.model.on_cpu import placing

_INNER, _OUTER, _MATRICES, _ROUNDS = 2048, 2048, 16, 8
"""Matrices of a size that models have, which together lie in no cache of a processor, and how often each is multiplied.

One product takes less than a millisecond, so that among eight there is one that no other process has interrupted; of
products ten times as large, on a busy computer, all were."""
_NF4_SHARE, _NF4_BYTES = 0.2, 0.53
"""Share of an H100's memory rate at which nf4 weights were read while decoding (bench/LOG.md), and bytes of one."""


def measure(settings: Settings, text_characters: int) -> Machine:
    """Return memory and disk as they are now; `text_characters` is the text whose caches are wanted."""
    import psutil

    total, free = (0, 0) if settings.model.device == "cpu" else gpu_bytes()
    return Machine(
        gpu_bytes=total,
        gpu_free_bytes=free,
        ram_bytes=int(psutil.virtual_memory().available),
        budget_bytes=int(settings.store.budget_gib * GIB),
        text_characters=text_characters,
        computes_in_bf16=cpu_has_bf16(),
        packs=packed_linear.available(),
        coded_forms=tuple(form for form in ON_CPU if placing.is_available(form)),
    )


def with_rates(machine: Machine, settings: Settings) -> Machine:
    """Return `machine` with the weights it reads a second while it decodes; takes about a second on a CPU."""
    if machine.gpu_bytes:
        return replace(machine, weights_per_second={"nf4": _NF4_SHARE * _gpu_rate() / _NF4_BYTES})
    set_threads(settings.model)
    small = _weights_per_second(torch.float32)
    rates = {"small": small, "none": _weights_per_second(torch.bfloat16) if machine.computes_in_bf16 else small}
    rates |= {form: _weights_per_second(torch.float32, form) for form in machine.coded_forms}
    return replace(machine, weights_per_second=rates)


def _weights_per_second(dtype: torch.dtype, form: str = "none") -> float:
    """Weights that a row is multiplied by in a second, in the form in which a model of this dtype is held."""
    row = torch.full((1, _INNER), 0.5, dtype=dtype)
    matrices = torch.nn.ModuleList(
        torch.nn.Linear(_INNER, _OUTER, bias=False, dtype=row.dtype, device="meta").to_empty(device="cpu")
        for _ in range(_MATRICES)
    )
    for weight in matrices.parameters():
        torch.nn.init.constant_(weight, 0.01)  # random numbers would take longer than the products
    if form != "none":
        placer = placing.MatrixPlacer(matrices, matrices, form)
        for name, weight in list(matrices.named_parameters()):
            placer.add(name, weight)
    elif dtype is torch.float32:
        packed_linear.pack_linears(matrices)
    best = [float("inf")] * _MATRICES
    with torch.inference_mode():
        for _ in range(_ROUNDS + 1):
            for number, matrix in enumerate(matrices):
                start = time.perf_counter()
                matrix(row)
                best[number] = min(best[number], time.perf_counter() - start)
    return _MATRICES * _INNER * _OUTER / sum(best)


def _gpu_rate() -> float:
    """Bytes a second of the first GPU's memory, by its clock and width; 0 if they are not known."""
    import pynvml

    try:
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        clock = pynvml.nvmlDeviceGetMaxClockInfo(device, pynvml.NVML_CLOCK_MEM)
        width = pynvml.nvmlDeviceGetMemoryBusWidth(device)
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return 0.0
    return 2e6 * float(clock) * float(width) / 8


def gpu_bytes() -> tuple[int, int]:
    """Return the memory of the first NVIDIA GPU and what is free of it; zeros without one."""
    import pynvml

    try:
        pynvml.nvmlInit()
        memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return 0, 0
    return int(memory.total), int(memory.free)
