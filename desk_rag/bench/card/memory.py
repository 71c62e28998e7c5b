"""Cap the GPU memory of this process, and record which part of a served model takes how much of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from desk_rag.config import GIB
from desk_rag.errors import ConfigError
from desk_rag.model.memory.device import release_unused


@contextlib.contextmanager
def capped(device: torch.device, gib: float) -> Iterator[int]:
    """Let this process take at most `gib` GiB of the GPU, the CUDA context included; yields the bytes for tensors.

    Without a GPU, or for 0 GiB, nothing is capped and 0 is yielded. Raises ConfigError if the GPU has less.
    """
    if device.type != "cuda" or not gib:
        yield 0
        return
    torch.zeros(1, device=device)  # creates the context
    free, total = torch.cuda.mem_get_info(device)
    context = total - free - torch.cuda.memory_reserved(device)
    tensors = int(gib * GIB) - context
    if not 0 < tensors <= free:
        raise ConfigError(
            f"{gib:g} GiB of GPU memory cannot be had: {free / GIB:.1f} GiB are free and {context / GIB:.1f} GiB are "
            "taken by the CUDA context and other programs.",
            remedy="Give a smaller or larger --gib.",
        )
    torch.cuda.set_per_process_memory_fraction(tensors / total, device.index or 0)
    try:
        yield tensors
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device.index or 0)


@dataclass(slots=True)
class Ledger:
    """Bytes that each part took, in the order in which the parts were made."""

    device: torch.device
    parts: dict[str, int] = field(default_factory=dict)

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add what stays allocated after the block to the part `name`."""
        before = self._taken()
        yield
        self.parts[name] = self.parts.get(name, 0) + self._taken() - before

    def peak_of(self, work: Callable[[], object]) -> int:
        """Run `work` and return the most bytes that were allocated at once meanwhile; 0 without a GPU."""
        if self.device.type != "cuda":
            work()
            return 0
        torch.cuda.reset_peak_memory_stats(self.device)
        work()
        return int(torch.cuda.max_memory_allocated(self.device))

    def _taken(self) -> int:
        release_unused(self.device)
        return int(torch.cuda.memory_reserved(self.device)) if self.device.type == "cuda" else 0
