"""Pack a model's matrices so that a CPU multiplies few rows fast: fp16 weights, fp32 activations and sums.

Questions and decoded tokens read all weights once and multiply little, so memory traffic decides; fp16 halves it
(bench/LOG.md, "Packed matrices"). Only the weights are rounded, to 11 bits; activations are not quantised.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_ENGINES = frozenset({"x86", "fbgemm"})
_SHARING = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("query", "key", "value"))
"""Children that are given the same input, in the order in which they are."""
_LARGEST = 65504.0
"""fp16's largest number; FBGEMM would clip what lies beyond."""


class PackedLinear(torch.nn.Module):
    """Stands where a `torch.nn.Linear` stood: fp32 [..., in] -> fp32 [..., out]. For inference only."""

    def __init__(self, *linears: torch.nn.Linear) -> None:
        """Several matrices of one input are packed as one; their biases must be all there or all missing."""
        super().__init__()
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        weight = torch.cat([linear.weight.detach() for linear in linears]).contiguous()
        self._pack(weight, torch.cat(biases) if biases else None)

    @classmethod
    def of(cls, weight: torch.Tensor, bias: torch.Tensor | None) -> PackedLinear:
        """Pack a matrix fp32 [out, in] that is in no module."""
        packed = cls.__new__(cls)
        torch.nn.Module.__init__(packed)
        packed._pack(weight, bias)
        return packed

    def _pack(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self._packed: Any = torch.ops.quantized.linear_prepack_fp16(weight, self.bias)
        self._multiply = torch.ops.quantized.linear_dynamic_fp16.default

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self._multiply(rows, self._packed)
        return product

    @property
    def weight(self) -> torch.Tensor:
        """A copy of the weights as they are multiplied, fp32 [out, in]."""
        unpacked: torch.Tensor = torch.ops.quantized.linear_unpack_fp16(self._packed)[0]
        return unpacked

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class SideBySide:
    """Matrices of one input, packed as one: reading one large matrix takes three quarters of reading three small ones.

    What the parts ask for one after the other is multiplied once; the product is kept until each of them had its share.
    Threads that run the same model get their own products, at worst a product twice.
    """

    def __init__(self, whole: torch.nn.Module, widths: Sequence[int]) -> None:
        """`whole` multiplies by all the parts, which have these widths."""
        self.whole = whole
        ends = list(itertools.accumulate(widths))
        self.spans = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        self._kept: tuple[torch.Tensor, torch.Tensor, set[int]] | None = None
        """An input, its product, and the parts that have not had their share."""

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """fp32 [..., in] -> fp32 [..., sum of out], the parts in order."""
        product: torch.Tensor = self.whole(rows)
        return product

    def share(self, rows: torch.Tensor, part: int) -> torch.Tensor:
        """One part's product, [..., out], a view. `rows` may not be written to between the parts' calls."""
        kept = self._kept  # read once: another thread's pass over the same model may put its own there at any time
        if kept is None or kept[0] is not rows or part not in kept[2]:
            kept = self._kept = (rows, self.product(rows), set(range(len(self.spans))))
        _, product, left = kept
        left.discard(part)
        if not left and self._kept is kept:
            self._kept = None
        return product[..., self.spans[part]]

    def weight(self, part: int) -> torch.Tensor:
        """A copy of one part's weights as they are multiplied, fp32 [out, in]."""
        return torch.as_tensor(self.whole.weight)[self.spans[part]]


class PackedPart(PackedLinear):
    """A packed matrix that lies beside others of the same input."""

    def __init__(self, linear: torch.nn.Linear, beside: SideBySide, part: int) -> None:
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = linear.in_features, linear.out_features, linear.bias
        self.beside, self.part = beside, part

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.beside.share(rows, self.part)

    @property
    def weight(self) -> torch.Tensor:
        """As `PackedLinear.weight`."""
        return self.beside.weight(self.part)


def available() -> bool:
    """True if this build of torch has the packed kernels (x86-64 with FBGEMM)."""
    return torch.backends.quantized.engine in _ENGINES


def pack_linears(module: torch.nn.Module) -> int:
    """Replace every fp32 CPU `torch.nn.Linear` below `module` by its packed form; returns how many were replaced.

    Weights that fp16 cannot hold stay as they are, as does everything where the kernels are missing.
    """
    return replace_linears(module, _packed) if available() else 0


@dataclass(frozen=True, slots=True)
class LinearGroup:
    """Children of a module that are given the same input, or one child alone."""

    path: str
    parent: torch.nn.Module
    names: tuple[str, ...]

    @property
    def linears(self) -> list[tuple[str, torch.nn.Linear]]:
        """The children with their names in the whole model; empty unless each is a `torch.nn.Linear` still."""
        children = [(f"{self.path}.{name}".lstrip("."), getattr(self.parent, name, None)) for name in self.names]
        linears = [(name, child) for name, child in children if type(child) is torch.nn.Linear]
        return linears if len(linears) == len(self.names) else []

    @property
    def is_alike(self) -> bool:
        """True if all have as many inputs, and all have a bias or none has."""
        return len({(linear.in_features, linear.bias is None) for _, linear in self.linears}) == 1

    def put_in_place(self, whole: torch.nn.Module) -> None:
        """Put one module that multiplies by all of them in their places."""
        linears = self.linears
        if len(linears) == 1:
            setattr(self.parent, self.names[0], whole)
            return
        beside = SideBySide(whole, [linear.out_features for _, linear in linears])
        for part, (name, (_, linear)) in enumerate(zip(self.names, linears, strict=True)):
            setattr(self.parent, name, PackedPart(linear, beside, part))


def linear_groups(module: torch.nn.Module) -> Iterator[LinearGroup]:
    """Yield every group below `module` that could be packed as one, and then each linear alone."""
    for path, parent in list(module.named_modules()):
        for names in (*_SHARING, *((name,) for name, _ in list(parent.named_children()))):
            group = LinearGroup(path, parent, names)
            if group.linears:
                yield group


Pack = Callable[[Sequence[tuple[str, torch.nn.Linear]]], torch.nn.Module | None]
"""Packs linears of one input, given with their names, as one module; None if they cannot be packed."""


def replace_linears(module: torch.nn.Module, pack: Pack) -> int:
    """Replace every `torch.nn.Linear` below `module` that `pack` packs; returns how many were replaced.

    Those that share an input are packed side by side. Hooks sit on the modules, so pack before any is registered.
    """
    replaced = 0
    for group in linear_groups(module):
        whole = pack(group.linears) if group.is_alike else None
        if whole is not None:
            group.put_in_place(whole)
            replaced += len(group.names)
    return replaced


def _packed(linears: Sequence[tuple[str, torch.nn.Linear]]) -> PackedLinear | None:
    modules = [linear for _, linear in linears]
    return PackedLinear(*modules) if all(packable(linear.weight) for linear in modules) else None


def packable(weight: torch.Tensor) -> bool:
    """True for a matrix in fp32 on the CPU whose numbers fp16 can hold."""
    plain = weight.dtype is torch.float32 and weight.device.type == "cpu"
    return plain and all(bool(abs(end) <= _LARGEST) for end in weight.aminmax())
