"""Multiply by int8 matrices with the compiled kernels; the numbers are those of `int8_linear`."""

from __future__ import annotations

import ctypes

import torch

from desk_rag.model.embedded import kernels

_TILE = (16, 64)
"""Outputs and inputs come in multiples of these."""
_MOST_INPUTS = 1536


class CompiledLinear(torch.nn.Module):
    """Stands where a `torch.nn.Linear` stood: fp32 [..., in] -> fp32 [..., out]. For inference only, on one thread."""

    def __init__(
        self, library: ctypes.CDLL, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None = None
    ) -> None:
        """`codes` int8 [out, in] times `scales` [out] are the weights; see `serves` for their shape."""
        super().__init__()
        self.out_features, self.in_features = codes.shape
        self.bias = None if bias is None else bias.detach().float().contiguous()
        self._scales = scales.float().flatten().contiguous()
        self._packed = torch.empty(codes.numel(), dtype=torch.uint8)
        codes = codes.contiguous()
        library.pack(codes.data_ptr(), self.out_features, self.in_features, self._packed.data_ptr())
        self._multiply = library.multiply
        self.matrix = kernels.Matrix(
            self._packed.data_ptr(), self._scales.data_ptr(), None if self.bias is None else self.bias.data_ptr(),
            self.out_features, self.in_features,
        )  # fmt: skip
        self._address = ctypes.addressof(self.matrix)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        flat = rows.reshape(-1, self.in_features).contiguous()
        product = torch.empty(flat.shape[0], self.out_features)
        self._multiply(self._address, flat.data_ptr(), flat.shape[0], product.data_ptr())
        return product.view(*rows.shape[:-1], -1)

    @property
    def weight(self) -> torch.Tensor:
        """A copy of the weights as they are multiplied, fp32 [out, in]."""
        product: torch.Tensor = self(torch.eye(self.in_features)).mT
        return product if self.bias is None else product - self.bias[:, None]

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def serves(codes: torch.Tensor) -> bool:
    """True if the kernels multiply by a matrix of this shape."""
    return codes.shape[0] % _TILE[0] == 0 and codes.shape[1] % _TILE[1] == 0 and codes.shape[1] <= _MOST_INPUTS
