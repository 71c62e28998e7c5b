"""Measure the machine that a model has to fit into."""

from __future__ import annotations

from desk_rag.config import GIB, Settings
from desk_rag.model.embedded import int8_linear
from desk_rag.model.library.fit import Machine
from desk_rag.model.memory.plan import cpu_has_bf16


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
        multiplies_int8=int8_linear.available(),
    )


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
