"""Trains the pointer: spans of all chunks of a question, and 'none of these', share one distribution."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from desk_rag.answering.evidence.span_model import SpanModel
from desk_rag.errors import ConfigError, DeskRagError
from desk_rag.training.pointer.low_rank import add_adapters
from desk_rag.training.pointer.rows import Batch
from desk_rag.training.pointer.whole import learn_all

_WORKERS = 4
"""Processes that make batches for a GPU."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One run. Raises ConfigError for a value that makes none."""

    rank: int = 10
    """Rank of the update of every matrix; 0 trains every weight, which takes a lower rate."""
    rate: float = 3e-3
    """The highest."""
    epochs: float = 6.0
    questions: int = 64
    """Per step."""
    chunks: int = 3
    """Per question."""
    versions: int = 6
    """Versions of each passage."""
    warm_up: int = 100
    """Steps until the rate is reached."""
    seed: int = 1
    seconds: float = math.inf
    """After which training ends, the rate having fallen to nothing by then."""

    def __post_init__(self) -> None:
        for name, least in (("rank", 0), ("questions", 1), ("chunks", 1), ("versions", 1), ("warm_up", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} = {getattr(self, name)} is too small.", remedy=f"Take {least} at least.")
        for name in ("rate", "epochs", "seconds"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} = {getattr(self, name)} gives no training.", remedy="Take more than 0.")
        if not math.isfinite(self.rate * self.epochs):
            raise ConfigError("rate and epochs must be finite.", remedy="Set seconds to end by the clock.")


def loss_of(scores: Tensor, batch: Batch) -> Tensor:
    """Mean over questions of -log p(the answer's spans), or of 'none' where no chunk of a question has any.

    `scores` is fp32 [rows, T, T] as the network gives them.
    """
    rows = scores.flatten(1)
    every = rows.logsumexp(1).view(-1, batch.chunks)
    total = torch.cat([every, every.new_zeros(len(every), 1)], 1).logsumexp(1)
    row, first, last = batch.gold.T
    # of the few spans that are right, per question; the greatest is taken out first, as logsumexp does
    owner, right = row // batch.chunks, scores[row, first, last]
    top = total.new_full(total.shape, -torch.inf).scatter_reduce(0, owner, right.detach(), "amax")
    top = torch.where(top.isfinite(), top, 0)
    summed = torch.zeros_like(total).scatter_add(0, owner, (right - top[owner]).exp())
    known = summed > 0
    worth = torch.where(known, top + torch.where(known, summed, 1).log(), 0)
    return (total - worth).mean()


def train(
    net: SpanModel, batches: IterableDataset[Batch], per_epoch: int, how: Settings, say: Callable[[str], None]
) -> None:
    """Train where the network is, for `how.epochs` of `per_epoch` questions each, or for `how.seconds`.

    Draws from torch's generator, which whoever made the network has seeded; on a CPU the same seed then gives the same
    numbers. Raises DeskRagError when the loss is no number any more.
    """
    device = net.head.ends.weight.device
    learning = add_adapters(net, how.rank) if how.rank else learn_all(net)
    say(f"{sum(parameter.numel() for parameter in learning) / 1e6:.2f} M numbers learn")
    optimiser = torch.optim.AdamW(learning, lr=how.rate, weight_decay=0.01)
    steps = max(1, round(how.epochs * math.ceil(per_epoch / how.questions)))
    net.train()
    began, mean = time.perf_counter(), math.nan
    for step, batch in enumerate(itertools.islice(_ahead(batches, device), steps)):
        done = max(step / steps, (time.perf_counter() - began) / how.seconds)
        if done >= 1:
            say(f"{how.seconds:.0f} s are over after {step} of {steps} steps")
            break
        for group in optimiser.param_groups:
            group["lr"] = how.rate * min(1.0, (step + 1) / how.warm_up, (1 - done) / 0.9)
        with half(device):
            scores = net(batch.rows)
        loss = loss_of(scores, batch)
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimiser.step()
        if step % 100 == 99 or step == steps - 1:
            mean = loss.item() if math.isnan(mean) else 0.7 * mean + 0.3 * loss.item()
            say(f"step {step + 1} of {steps}, loss {mean:.3f}, {time.perf_counter() - began:.0f} s")
            _check(learning, step)
    _check(learning, steps - 1)
    net.eval()


def _check(learning: Sequence[nn.Parameter], step: int) -> None:
    """Once a loss is no number, no parameter is one. fp16, in which they are written, must hold them too."""
    if not all(bool(parameter.detach().half().isfinite().all()) for parameter in learning):
        raise DeskRagError(
            f"By step {step + 1} what is learned is no number any more.", remedy="Begin again with a lower --rate."
        )


def half(device: torch.device) -> AbstractContextManager[None]:
    """bf16 where a GPU computes."""
    return torch.autocast("cuda", dtype=torch.bfloat16) if device.type == "cuda" else nullcontext()


def _ahead(batches: IterableDataset[Batch], device: torch.device) -> Iterator[Batch]:
    """Batches on `device`; for a GPU they are made by processes of their own."""
    gpu = device.type == "cuda"
    for batch in DataLoader(batches, batch_size=None, num_workers=_WORKERS if gpu else 0, pin_memory=gpu):
        yield batch.to(device)
