"""The launches of a pass recorded as CUDA graphs, which read what differs between questions from fixed memory.

Knows how to record and what a recorded pass leaves behind; knows no model and no layer. Recording runs everything
twice: once as it is, because libraries allocate at their first use, and once for the record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

Part = Callable[[], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a pass of N tokens reads; on a GPU the same memory at every replay."""

    ids: torch.Tensor
    """int64 [B, N]."""
    numbers: torch.Tensor
    """int64 [2]: the first token's slot and position, and the row whose logits are wanted."""

    @classmethod
    def at_end(cls, batch: int, count: int, room: int, device: torch.device) -> Inputs:
        """For recording: nothing but the last slots that have positions is then written."""
        ids = torch.zeros((batch, count), dtype=torch.int64, device=device)
        return cls(ids, torch.tensor([room - count, count - 1], device=device))

    def tell(self, token_ids: torch.Tensor, start: int) -> None:
        """Have the next replay run these ids, int64 [B, n] of n <= N, at slots start..start+n-1.

        What follows them is padding: computed, never attended to, its slots written again later. It repeats the last
        token, whose keys and values are numbers if the answer has any: what is not seen has a weight of 0, and 0 times
        infinity is no number.
        """
        count, room = token_ids.shape[1], self.ids.shape[1]
        if count < room:
            token_ids = torch.cat((token_ids, token_ids[:, -1:].expand(-1, room - count)), 1)
        # Small and from ordinary memory, so taken over at once (see `upload`); a copy that blocks would first let the
        # device finish what was placed.
        self.ids.copy_(token_ids, non_blocking=True)
        self.numbers.copy_(torch.tensor([start, count - 1]), non_blocking=True)


@dataclass(frozen=True, slots=True)
class PiecewiseGraphs:
    """The graphs of one bucket without attentions: piece i is what lies between those of layers i - 1 and i."""

    inputs: Inputs
    attended: torch.Tensor
    """[B, N, heads * D]: what every piece but the first reads."""
    graphs: tuple[torch.cuda.CUDAGraph, ...]
    queries: tuple[torch.Tensor, ...]
    logits: torch.Tensor


@dataclass(frozen=True, slots=True)
class AttentionGraphs:
    """The graphs of one bucket, attentions included."""

    inputs: Inputs
    attended: torch.Tensor
    """[B, N, heads * D]: what attentions write and the rest reads. Graphs know only its address, so it is kept."""
    ends: tuple[int, ...]
    """Stretch i attends in the layers from the end before it up to its own, not included."""
    graphs: tuple[torch.cuda.CUDAGraph, ...]
    logits: torch.Tensor


def record(
    device: torch.device, parts: Callable[[Callable[[Part], None]], T]
) -> tuple[tuple[torch.cuda.CUDAGraph, ...], T]:
    """One graph of each part that `parts` hands over, in order; all share memory. Returns also what `parts` returns.

    Raises RuntimeError where this machine cannot record them.
    """
    graphs: list[torch.cuda.CUDAGraph] = []
    side: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        parts(lambda part: part())
        torch.cuda.synchronize(device)
        pool = torch.cuda.graph_pool_handle()

        def keep(part: Part) -> None:
            graph = torch.cuda.CUDAGraph()
            # Reader threads copy to the GPU all the while: only what this thread does may end the capture. The
            # usual context manager would empty torch's memory cache and collect garbage before every part.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                part()
            finally:
                graph.capture_end()
            graphs.append(graph)

        found = parts(keep)
    torch.cuda.current_stream(device).wait_stream(side)
    return tuple(graphs), found
