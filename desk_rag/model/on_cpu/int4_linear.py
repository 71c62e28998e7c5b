"""Multiply by matrices in 4 bits on a CPU: groups of 32 weights with a scale and a middle of their own, in bf16.

Few rows are multiplied by torch's own kernel, in bf16; for many, blocks of columns are widened and multiplied as usual.
"""

from __future__ import annotations

from functools import cache

import torch

from desk_rag.model.memory.plan import cpu_has_bf16

GROUP = 32
_FEW = 48
"""Rows up to which torch's kernel is faster than widening the matrix first."""
_COLUMNS = 256
"""Columns that are widened at a time: what a processor's cache holds."""
_BLOCK = 1 << 17
"""Weights that are coded at a time, for the same reason."""
_PACKED_AT_ONCE = 1 << 22
"""Weights that are packed at a time, 16 MiB."""
_SMALLEST = 1e-9


class Int4Linear(torch.nn.Module):
    """Stands where a `torch.nn.Linear` stood: fp32 [..., in] -> fp32 [..., out]. For inference only."""

    multiplies_in = torch.bfloat16
    """Dtype that rows are rounded to."""

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Weights are (`codes` [out, in], 0 to 15, less 8) times scale plus middle, `scales` [out, in / 32, 2]."""
        super().__init__()
        self.out_features, self.in_features = codes.shape
        self.bias = bias
        more = -self.out_features % _COLUMNS
        self._packed = _packed(codes)
        self._scales = torch.nn.functional.pad(scales, (0, 0, 0, 0, 0, more)).transpose(0, 1).contiguous()
        self._wide = torch.bfloat16 if cpu_has_bf16() else torch.float32

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        flat = rows.reshape(-1, self.in_features)
        product = self._few(flat) if flat.shape[0] <= _FEW else self._many(flat)
        product = product[:, : self.out_features]
        if self.bias is not None:
            product = product + self.bias
        return product.reshape(*rows.shape[:-1], -1)

    def _few(self, rows: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            rows.bfloat16().contiguous(), self._packed, GROUP, self._scales
        )
        return product.float()

    def _many(self, rows: torch.Tensor) -> torch.Tensor:
        columns = self._scales.shape[1]
        product, narrow = torch.empty(rows.shape[0], columns), rows.to(self._wide)
        for begin in range(0, columns, _COLUMNS):
            blocks = torch.matmul(narrow, self._widened(begin, self._wide))
            product[:, begin : begin + _COLUMNS] = blocks.transpose(0, 1).reshape(rows.shape[0], -1)
        return product

    def _widened(self, begin: int, dtype: torch.dtype) -> torch.Tensor:
        """The weights of `_COLUMNS` columns, [blocks, in, columns of a block]."""
        width = _block_width()
        blocks, half = _COLUMNS // width, width // 2
        packed = self._packed.view(-1, self.in_features, half)[begin // width : begin // width + blocks]
        codes = torch.empty(blocks, self.in_features, width, dtype=torch.uint8)
        torch.bitwise_and(packed, 15, out=codes[..., :half])
        torch.bitwise_right_shift(packed, 4, out=codes[..., half:])
        pairs = self._scales[:, begin : begin + _COLUMNS].view(-1, blocks, 1, width, 2).transpose(0, 1).float()
        scale, middle = pairs[..., 0], pairs[..., 1]
        weights = codes.view(blocks, -1, GROUP, width).to(dtype)
        weights.mul_(scale.to(dtype)).add_((middle - 8.0 * scale).to(dtype))
        return weights.view(blocks, self.in_features, width)

    @property
    def weight(self) -> torch.Tensor:
        """A copy of the weights, fp32 [out, in]."""
        columns = range(0, self._scales.shape[1], _COLUMNS)
        blocks = [self._widened(begin, torch.float32).transpose(1, 2).flatten(0, 1) for begin in columns]
        return torch.cat(blocks)[: self.out_features]

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def coded_groups(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`weight` [out, in] as codes and, per group, a scale and a middle, as `Int4Linear` takes them."""
    rows, columns = weight.shape
    codes = torch.empty(rows, columns, dtype=torch.uint8)
    scales = torch.empty(rows, columns // GROUP, 2, dtype=torch.bfloat16)
    count = max(1, _BLOCK // columns)
    for begin in range(0, rows, count):
        block = slice(begin, begin + count)
        groups = weight.detach()[block].float().view(-1, columns // GROUP, GROUP)
        least, most = groups.amin(-1), groups.amax(-1)
        scales[block, :, 0] = ((most - least) / 15.0).clamp_min_(_SMALLEST)
        scale = scales[block, :, 0].float()
        scales[block, :, 1] = least + 8.0 * scale
        middle = scales[block, :, 1].float()
        codes[block] = ((groups - middle[..., None]) / scale[..., None]).round_().add_(8.0).clamp_(0, 15).flatten(1)
    return codes, scales


def _packed(codes: torch.Tensor) -> torch.Tensor:
    """`codes` [out, in] in torch's form, filled up to whole `_COLUMNS`; some at a time, as it wants them in 32 bits."""
    rows, inputs = codes.shape
    packed = torch.empty(rows + -rows % _COLUMNS, inputs // 2, dtype=torch.uint8)
    count = _COLUMNS * max(1, (_PACKED_AT_ONCE // inputs) // _COLUMNS)
    for begin in range(0, rows, count):
        some = codes[begin : begin + count]
        some = torch.nn.functional.pad(some, (0, 0, 0, -some.shape[0] % _COLUMNS)).to(torch.int32)
        packed[begin : begin + some.shape[0]] = torch.ops.aten._convert_weight_to_int4pack_for_cpu(some, 1)
    return packed


def _block_width() -> int:
    """Columns that lie together in torch's packed form."""
    return 64 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 32


@cache
def available() -> bool:
    """True if this CPU and this torch multiply by 4-bit matrices right, which is tried on both ways."""
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return False
    codes = (torch.arange(300 * 64).view(300, 64) * 7 % 16).to(torch.uint8)
    scales = torch.stack([torch.arange(600) % 5 + 1.0, torch.arange(600) % 3 - 1.0], -1).bfloat16().view(300, 2, 2)
    pairs = scales.float().repeat_interleave(GROUP, 1)
    weight = (codes.float() - 8.0) * pairs[..., 0] + pairs[..., 1]
    rows = torch.where(torch.arange((_FEW + 1) * 64).view(_FEW + 1, 64) % 7 < 3, -1.0, 1.0)
    try:
        matrix = Int4Linear(codes, scales)
        products = matrix(rows), matrix(rows[:3])
    except (AttributeError, RuntimeError):  # a torch without the operator, or one that cannot do it here
        return False
    exact = rows @ weight.mT
    return torch.equal(matrix.weight, weight) and all(
        torch.allclose(product, exact[: len(product)], rtol=0.01, atol=0.5) for product in products
    )
