"""Multiply by a model's nf4 matrices: by the kernel where it is proven and faster, else by bitsandbytes.

Which one is faster depends on the GPU, the matrix and the number of rows (bitsandbytes writes a matrix out in 16 bits
where its authors measured that this pays), so both are timed on the model's own matrices before passes are recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from desk_rag.kv.kernels.proof import gpu_index, proven
from desk_rag.kv.nf4.matrix import Nf4Matrix, reference
from desk_rag.model.memory.device import is_out_of_memory

_log = logging.getLogger(__name__)
MOST_ROWS = 128
"""Rows up to which a product is bound by reading weights rather than by arithmetic."""
_TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""Tolerance relative to a result's largest number: two roundings of its type and another order of the sums."""
_TIMED_MATRICES = 8
"""Matrices that are timed one after the other, so that none is in the GPU's cache."""
_REPEATS = 4

Product = Callable[[torch.Tensor], torch.Tensor]
"""rows [..., K] -> [..., N]."""


@dataclass(slots=True)
class Nf4Product:
    """Product with the matrices of one input; called with rows [..., K] -> [..., N]."""

    modules: Sequence[Any]
    """bitsandbytes' own."""
    matrix: Nf4Matrix | None
    """None if the kernel cannot be used."""
    dtype: torch.dtype
    """Type of the rows."""
    by_kernel: dict[int, bool]
    """True for numbers of rows that the kernel multiplies; shared by all products of one shape."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Multiply; numbers of rows that were not prepared go to bitsandbytes."""
        if self.matrix is not None and self.by_kernel.get(rows.numel() // rows.shape[-1], False):
            return self.kernel(rows)
        return self.library(rows)

    def kernel(self, rows: torch.Tensor) -> torch.Tensor:
        """Multiply by the kernel."""
        from desk_rag.kv.nf4 import launcher

        assert self.matrix is not None
        return launcher.multiply(rows, self.matrix)

    def library(self, rows: torch.Tensor) -> torch.Tensor:
        """Multiply by bitsandbytes, matrix by matrix."""
        parts = [module(rows) for module in self.modules]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


Choose = Callable[[Sequence[Nf4Product], int], bool]
"""True if the kernel is to multiply that many rows by products of one shape."""


def kernel_is_better(products: Sequence[Nf4Product], count: int) -> bool:
    """True if the kernel agrees with bitsandbytes on each of these products and is faster."""
    first = products[0]
    matrix, dtype = first.matrix, first.dtype
    if matrix is None or matrix.codes.device.type != "cuda":
        return False
    device, biased = matrix.codes.device, matrix.bias is not None
    if not proven("4-bit products", _agrees, gpu_index(device), dtype, count, biased):
        return False
    with torch.inference_mode():
        generator = torch.Generator(device).manual_seed(count)
        rows = torch.randn(1, count, matrix.shape[1], device=device, generator=generator).to(dtype)
        if not all(_alike(product.kernel(rows), product.library(rows), dtype) for product in products):
            _log.warning("The kernel for 4-bit products disagrees with bitsandbytes on this model; it is not used.")
            return False
        timed = products[:_TIMED_MATRICES]
        by_kernel, by_library = (
            _seconds([one.kernel if ours else one.library for one in timed], rows) for ours in (True, False)
        )
    _log.debug("%s, %d rows: %.1f us, bitsandbytes %.1f us", matrix.shape, count, by_kernel * 1e6, by_library * 1e6)
    return by_kernel < by_library


@dataclass(slots=True)
class Nf4Products:
    """All nf4 products of one model, grouped by shape."""

    dtype: torch.dtype
    """The compute dtype."""
    choose: Choose = kernel_is_better
    _groups: dict[object, list[Nf4Product]] = field(default_factory=dict)

    def product(self, modules: Sequence[Any]) -> Nf4Product:
        """Return the product with bitsandbytes' linear modules of one input, their results side by side."""
        matrix = Nf4Matrix.of(modules) if self._suits(modules) else None
        key = None if matrix is None else (matrix.shape, matrix.bias is not None)
        group = self._groups.setdefault(key, [])
        product = Nf4Product(modules, matrix, self.dtype, group[0].by_kernel if group else {})
        group.append(product)
        return product

    def _suits(self, modules: Sequence[Any]) -> bool:
        """True if bitsandbytes would compute in the same type."""
        types = {module.compute_dtype for module in modules} - {None}
        types |= {module.bias.dtype for module in modules if module.bias is not None}
        return self.dtype in _TOLERANCE and types <= {self.dtype}

    @property
    def by_kernel(self) -> dict[str, list[int]]:
        """Numbers of rows that the kernel multiplies, by the shape of the weights."""
        firsts = [group[0] for group in self._groups.values()]
        return {
            "x".join(map(str, one.matrix.shape)): [count for count, ours in one.by_kernel.items() if ours]
            for one in firsts
            if one.matrix is not None
        }

    def prepare(self, count: int) -> None:
        """Choose how to multiply this many rows; the choice is kept."""
        for key, group in self._groups.items():
            by_kernel = group[0].by_kernel
            if key is None or count > MOST_ROWS or count in by_kernel:
                continue
            try:
                by_kernel[count] = self.choose(group, count)
            except RuntimeError as error:  # a driver that records no graphs, or memory that is too short for now
                _log.warning("4-bit products of %d rows are left to bitsandbytes: %s", count, str(error).split(". ")[0])
                if not is_out_of_memory(error):
                    by_kernel[count] = False


def _alike(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> bool:
    """True within rounding; false where one of them is not finite."""
    return bool((actual.float() - expected.float()).abs().max() <= _TOLERANCE[dtype] * expected.abs().max())


def _agrees(device: torch.device, dtype: torch.dtype, count: int, biased: bool) -> bool:
    """Compare the kernel with the reference on random weights, with an odd number of columns, and long rows.

    Everything runs twice, because later launches take another path (see `compiled_launch`).
    """
    from desk_rag.kv.nf4 import launcher

    with torch.inference_mode():
        for rows_out, width in ((70, 1344), (2048, 1024), (512, 9728)):
            matrix = some_matrix(rows_out, width, dtype, device, biased=biased)
            rows = torch.randn(1, count, width, generator=torch.Generator().manual_seed(count)).to(device, dtype)
            expected = reference(rows, matrix)
            if not all(_alike(launcher.multiply(rows, matrix), expected, dtype) for _ in range(2)):
                return False
    return True


def some_matrix(
    rows_out: int, width: int, dtype: torch.dtype, device: torch.device, *, biased: bool = False
) -> Nf4Matrix:
    """Create a random matrix for a check or a benchmark, with bitsandbytes' tables."""
    from bitsandbytes.functional import create_dynamic_map, get_4bit_type

    generator = torch.Generator().manual_seed(rows_out)
    blocks = rows_out * width // 64
    groups = -(-blocks // 256)

    def codes(*shape: int) -> torch.Tensor:
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(device)

    return Nf4Matrix(
        codes(rows_out, width // 2), codes(rows_out, width // 64),
        (torch.rand(groups, generator=generator) * 0.02).to(device),
        (torch.rand(groups, generator=generator) * 0.05).to(device),
        create_dynamic_map().to(device), get_4bit_type("nf4", device="cpu").to(device),
        torch.randn(rows_out, generator=generator).to(device, dtype) if biased else None,
    )  # fmt: skip


def _seconds(products: Sequence[Product], rows: torch.Tensor) -> float:
    """Seconds of these products one after the other in a recorded graph, so that launches cost nothing."""
    device = rows.device
    side: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        for product in products:
            product(rows)
        torch.cuda.synchronize(device)
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for product in products:
                product(rows)
        finally:
            graph.capture_end()
        graph.replay()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(_REPEATS):
            graph.replay()
        end.record()
        end.synchronize()
    torch.cuda.current_stream(device).wait_stream(side)
    seconds: float = begin.elapsed_time(end) / 1e3 / _REPEATS
    return seconds
