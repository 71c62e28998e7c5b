"""Divergence of the auxiliary model's attention from the labels: KL(answering model || auxiliary model)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from desk_rag.finetune.auxiliary.attention import question_attention
from desk_rag.finetune.auxiliary.stream import LabelledRow
from desk_rag.finetune.masked import Loss, to_batch

_LEAST = 1e-9


class SelectionLoss:
    """KL divergence in nats per question, of the shares of attention that text tokens get in the last layer."""

    def weight(self, row: LabelledRow) -> float:
        """Return the row's number of questions."""
        return float(len(row.shares))

    def loss(self, module: Any, rows: Sequence[LabelledRow], device: torch.device) -> Loss:
        """Return the summed divergence of the rows' questions."""
        last = int(module.config.num_hidden_layers) - 1
        recorded = question_attention(module, to_batch([row.row for row in rows], device), [last])
        total = torch.zeros((), device=device)
        with torch.autocast(device.type, enabled=False):
            for row, weights in zip(rows, recorded, strict=True):
                total = total + _divergence(row, weights)
        return Loss(total, sum(map(self.weight, rows)))


def _divergence(row: LabelledRow, weights: torch.Tensor) -> torch.Tensor:
    means, wanted, tokens = (
        torch.from_numpy(array).to(weights.device) for array in (row.means, row.shares, row.tokens)
    )
    given = means @ weights[:, tokens]
    given = given / given.sum(1, keepdim=True).clamp_min(_LEAST)
    return torch.xlogy(wanted, wanted).sum() - (wanted * given.clamp_min(_LEAST).log()).sum()
