"""An nf4 matrix as bitsandbytes stores it, or several of them side by side, and its product in torch.

Codes are 4 bits, in blocks of 64 along a row; a block's scale is an 8-bit code itself, in blocks of 256 scales
(QLoRA, arXiv:2305.14314, section 3: NormalFloat and double quantization).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import linear

BLOCK = 64
"""Weights that share a scale."""
_SCALES = 256
"""Scales that share a scale of their own."""


@dataclass(frozen=True, slots=True)
class Nf4Matrix:
    """Weights [N, K] of one product."""

    codes: torch.Tensor
    """uint8 [N, K / 2]: the even column in the upper four bits, the odd one in the lower four."""
    scale_codes: torch.Tensor
    """uint8 [N, K / 64]."""
    scale_steps: torch.Tensor
    """fp32 [N * K / 64 / 256, rounded up]."""
    scale_offsets: torch.Tensor
    """fp32, as many as `scale_steps`: added to a scale; matrices side by side have one each."""
    scale_levels: torch.Tensor
    """fp32 [256]: the number that each scale code stands for."""
    levels: torch.Tensor
    """fp32 [16]: the number that each code stands for."""
    bias: torch.Tensor | None
    """[N] in the compute dtype."""

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.codes.shape[0], 2 * self.codes.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of weights that a product has to read."""
        parts = (self.codes, self.scale_codes, self.scale_steps, self.scale_offsets)
        return sum(part.nbytes for part in parts)

    @classmethod
    def of(cls, modules: Sequence[Any]) -> Nf4Matrix | None:
        """Put the weights of bitsandbytes' linear modules of one input side by side; None if this is not possible.

        The modules keep views of the same memory and work as before. Needs nf4 codes in blocks of 64 with quantised
        scales, whole blocks in every row, and biases everywhere or nowhere.
        """
        if not all(_is_plain_nf4(module) for module in modules):
            return None
        states = [module.weight.quant_state for module in modules]
        first, width = states[0], states[0].shape[1]
        counts = [state.shape[0] * width // BLOCK for state in states]
        biases = [module.bias for module in modules if module.bias is not None]
        alike = all(state.shape[1] == width and torch.equal(state.state2.code, first.state2.code) for state in states)
        if not alike or any(count % _SCALES for count in counts[:-1]) or len(biases) not in (0, len(modules)):
            return None
        with torch.inference_mode(mode=False), torch.no_grad():
            codes, scale_codes = _side_by_side(modules)
            offsets = [state.offset.float().expand(len(state.state2.absmax)) for state in states]
            return cls(
                codes.view(-1, width // 2), scale_codes.view(-1, width // BLOCK),
                torch.cat([state.state2.absmax for state in states]), torch.cat(offsets).contiguous(),
                first.state2.code.contiguous(), first.code.contiguous(),
                torch.cat([bias.detach() for bias in biases]) if biases else None,
            )  # fmt: skip

    def scales(self) -> torch.Tensor:
        """The scale of every block, fp32 [N, K / 64]."""
        group = torch.arange(self.scale_codes.numel(), device=self.codes.device) // _SCALES
        flat = self.scale_levels[self.scale_codes.flatten().long()]
        return (flat * self.scale_steps[group] + self.scale_offsets[group]).view(self.scale_codes.shape)

    def weight(self, dtype: torch.dtype) -> torch.Tensor:
        """The weights written out, [N, K]."""
        codes = torch.stack((self.codes >> 4, self.codes & 15), -1).flatten(1).long()
        return (self.levels[codes] * self.scales().repeat_interleave(BLOCK, 1)).to(dtype)


def reference(rows: torch.Tensor, matrix: Nf4Matrix) -> torch.Tensor:
    """rows [..., K] times the weights as their dtype holds them, summed in fp32 -> fp32 [..., N]."""
    bias = None if matrix.bias is None else matrix.bias.float()
    return linear(rows.float(), matrix.weight(rows.dtype).float(), bias)


def _is_plain_nf4(module: Any) -> bool:
    state = getattr(getattr(module, "weight", None), "quant_state", None)
    if type(module).__name__ != "Linear4bit" or state is None or not state.nested:
        return False
    plain = state.quant_type == "nf4" and state.blocksize == BLOCK and state.state2.blocksize == _SCALES
    codes = module.weight
    whole = len(state.shape) == 2 and state.shape[1] % BLOCK == 0 and 2 * codes.numel() == math.prod(state.shape)
    return plain and whole and codes.dtype is torch.uint8 and not getattr(state, "packing_format_for_cpu", False)


def _side_by_side(modules: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scale codes of all modules, each in one piece of memory; the modules become views of it."""
    codes = _joined([module.weight.data for module in modules])
    scale_codes = _joined([module.weight.quant_state.absmax for module in modules])
    code_end = scale_end = 0
    for module in modules:
        state = module.weight.quant_state
        code_start, code_end = code_end, code_end + module.weight.numel()
        scale_start, scale_end = scale_end, scale_end + state.absmax.numel()
        module.weight.data = codes[code_start:code_end].view(-1, 1)
        state.absmax = scale_codes[scale_start:scale_end]
    return codes, scale_codes


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The parts as one flat tensor; without a copy if they are already contiguous in memory."""
    first = parts[0]
    storage, place = first.untyped_storage().data_ptr(), first.data_ptr()
    for part in parts:
        if part.untyped_storage().data_ptr() != storage or part.data_ptr() != place or not part.is_contiguous():
            return torch.cat([each.reshape(-1) for each in parts])
        place += part.nbytes
    return first.as_strided((sum(part.numel() for part in parts),), (1,))
