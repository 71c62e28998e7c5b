"""Measure the machine that a model has to fit into."""

from __future__ import annotations

from desk_rag.config import GIB, Settings
from desk_rag.model.library.fit import Machine


def measure(settings: Settings, text_characters: int) -> Machine:
    """Return memory and disk as they are now; `text_characters` is the text whose caches are wanted."""
    import psutil

    return Machine(
        gpu_bytes=0 if settings.model.device == "cpu" else gpu_bytes(),
        ram_bytes=int(psutil.virtual_memory().available),
        budget_bytes=int(settings.store.budget_gib * GIB),
        text_characters=text_characters,
    )


def gpu_bytes() -> int:
    """Return the memory of the first NVIDIA GPU; 0 without one."""
    import pynvml

    try:
        pynvml.nvmlInit()
        total = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return 0
    return int(total)
