"""Record a forward pass as CUDA graphs that read their inputs from fixed memory.

Recording runs everything twice: once normally, because libraries allocate at their first use, and once to record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from desk_rag.kv.forward.inputs import Inputs

Part = Callable[[], None]
T = TypeVar("T")
_BUCKETS = (1, 16, 32, 48, 64, 96, 128, 192, 256)
"""Token counts that graphs are recorded for; longer passes are bound by arithmetic, not by launches."""


def bucket_of(count: int) -> int:
    """The smallest number of tokens, at least `count`, that graphs are recorded for; 0 if there is none."""
    return next((size for size in _BUCKETS if size >= count), 0)


@dataclass(frozen=True, slots=True)
class PiecewiseGraphs:
    """Graphs of one bucket without attention: piece i lies between the attentions of layers i - 1 and i."""

    inputs: Inputs
    attended: torch.Tensor
    """[B, N, heads * D]: attention output, read by every piece but the first."""
    graphs: tuple[torch.cuda.CUDAGraph, ...]
    queries: tuple[torch.Tensor, ...]
    logits: torch.Tensor


@dataclass(frozen=True, slots=True)
class AttentionGraphs:
    """Graphs of one bucket that contain attention."""

    inputs: Inputs
    attended: torch.Tensor
    """[B, N, heads * D]: attention output; kept alive here, because graphs hold only its address."""
    ends: tuple[int, ...]
    """Graph i contains the attention of layers ends[i - 1] to ends[i] - 1."""
    graphs: tuple[torch.cuda.CUDAGraph, ...]
    logits: torch.Tensor


class GraphRecorder:
    """Records the graphs of one pass, of which no two run at once: they share memory, and cuBLAS's work space.

    That work space is kept for each stream that ever ran a product, and memory for each pool.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None

    def record(self, parts: Callable[[Callable[[Part], None]], T]) -> tuple[tuple[torch.cuda.CUDAGraph, ...], T]:
        """Record one graph per part that `parts` passes on; also returns its result.

        Raises RuntimeError where this machine cannot record them.
        """
        graphs: list[torch.cuda.CUDAGraph] = []
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()
        side, pool = self._stream, self._pool
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            parts(lambda part: part())
            torch.cuda.synchronize(self._device)

            def keep(part: Part) -> None:
                graph = torch.cuda.CUDAGraph()
                # "thread_local", because reader threads copy to the GPU meanwhile. torch's context manager is not
                # used: it empties the memory cache and collects garbage before every part.
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    part()
                finally:
                    graph.capture_end()
                graphs.append(graph)

            result = parts(keep)
        torch.cuda.current_stream(self._device).wait_stream(side)
        return tuple(graphs), result
