"""Train the span scorer as a low-rank update of the embedder, in the 4 bits in which it is stored (LoRA)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from desk_rag.answering.evidence.span_model import HEAD, STEPS, SpanModel, linear_layers
from desk_rag.training.pointer.int4 import pack, rounded


class LowRankUpdate(nn.Module):
    """Parametrization that adds up @ down to a matrix, both rounded to 4 bits."""

    def __init__(self, matrix: Tensor, rank: int) -> None:
        super().__init__()
        rows, columns = matrix.shape
        self.down = nn.Parameter(torch.empty(rank, columns, device=matrix.device))
        self.up = nn.Parameter(torch.zeros(rows, rank, device=matrix.device))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, matrix: Tensor) -> Tensor:
        """The updated matrix, [rows, columns]."""
        return matrix + rounded(self.up.mT).mT @ rounded(self.down)


def add_adapters(net: SpanModel, rank: int) -> list[nn.Parameter]:
    """Make the head and updates of `rank` the only trainable parameters; returns them."""
    net.bert.requires_grad_(False)
    for linear in linear_layers(net.bert).values():
        parametrize.register_parametrization(linear, "weight", LowRankUpdate(linear.weight, rank))
    return [parameter for parameter in net.parameters() if parameter.requires_grad]


def adapter_tensors(net: SpanModel) -> dict[str, Tensor]:
    """Export the trained parameters to the CPU.

    Per matrix the codes NAME.up, uint8 [rank, rows / 2], and NAME.down, uint8 [rank, columns / 2], with their step
    sizes NAME.up_steps and NAME.down_steps, fp16 [rank]; for the head fp16 head.*.
    """
    tensors = {HEAD + name: tensor.half() for name, tensor in net.head.state_dict().items()}
    for name, linear in linear_layers(net.bert).items():
        (low,) = (module for module in linear.modules() if isinstance(module, LowRankUpdate))
        for part, vectors in (("up", low.up.mT), ("down", low.down)):
            tensors[f"{name}.{part}"], tensors[f"{name}.{part}{STEPS}"] = pack(vectors)
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
