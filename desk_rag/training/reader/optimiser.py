"""Muon for matrices, AdamW for the rest, gradients averaged over processes.

Muon orthogonalises each matrix's momentum by five steps of a quintic Newton-Schulz iteration (K. Jordan and others,
'Muon: an optimizer for hidden layers in neural networks', 2024). Parameters that need no gradient stand still.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

_QUINTIC = (3.4445, -4.7750, 2.0315)


class Optimiser:
    """Steps a model; every process of the group must call `step` alike.

    Matrices decay towards nothing or, with `home`, towards where they are now (L2-SP without its cost: Li, Grandvalet
    and Davoine, arXiv 1802.01483, section 3).
    """

    def __init__(self, model: nn.Module, *, muon: float, adam: float, decay: float = 0.05, home: bool = False) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._matrices = [p for name, p in named if p.dim() == 2 and "embed" not in name]
        others = [p for name, p in named if not (p.dim() == 2 and "embed" not in name)]
        self._all = [p for _, p in named]
        self._others = others
        self._adam = torch.optim.AdamW(others, lr=adam, betas=(0.9, 0.95), weight_decay=0.0)
        self._muon_rate, self._adam_rate, self._decay = muon, adam, decay
        self._home = [p.detach().clone() if home else torch.zeros((), device=p.device) for p in self._matrices]
        self._momentum: dict[tuple[int, ...], Tensor] = {}
        self._flat = torch.zeros(sum(p.numel() for p in self._all), device=self._all[0].device)

    def step(self, scale: float) -> None:
        """Average gradients, update, clear them; rates are multiplied by `scale`."""
        if dist.is_initialized() and dist.get_world_size() > 1:
            self._average()
        for group in self._adam.param_groups:
            group["lr"] = self._adam_rate * scale
        torch.nn.utils.clip_grad_norm_(self._others, 1.0)
        self._adam.step()
        self._muon_step(self._muon_rate * scale)
        for parameter in self._all:
            parameter.grad = None

    def _average(self) -> None:
        offset = 0
        for p in self._all:
            assert p.grad is not None
            self._flat[offset : offset + p.numel()] = p.grad.reshape(-1)
            offset += p.numel()
        dist.all_reduce(self._flat)
        self._flat.div_(dist.get_world_size())
        offset = 0
        for p in self._all:
            assert p.grad is not None
            p.grad.copy_(self._flat[offset : offset + p.numel()].view_as(p))
            offset += p.numel()

    @torch.no_grad()
    def _muon_step(self, rate: float, momentum: float = 0.95) -> None:
        by_shape: dict[tuple[int, ...], list[tuple[nn.Parameter, Tensor]]] = {}
        for p, home in zip(self._matrices, self._home, strict=True):
            by_shape.setdefault(tuple(p.shape), []).append((p, home))
        for shape, parameters in by_shape.items():
            gradients = torch.stack([p.grad for p, _ in parameters if p.grad is not None])
            buffer = self._momentum.setdefault(shape, torch.zeros_like(gradients))
            buffer.lerp_(gradients, 1 - momentum)
            update = orthogonalise(gradients.lerp(buffer, momentum))
            factor = max(1.0, shape[0] / shape[1]) ** 0.5
            for index, (p, home) in enumerate(parameters):
                p.lerp_(home.expand_as(p), rate * self._decay)
                p.add_(update[index].to(p.dtype), alpha=-rate * factor)


def orthogonalise(update: Tensor) -> Tensor:
    """Nearest semi-orthogonal matrices to a stack of matrices [N, rows, columns], roughly, in bf16."""
    a, b, c = _QUINTIC
    x: Tensor = update.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x
