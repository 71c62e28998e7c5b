"""Run the training loop: rows, gradients, steps, checkpoints.

A run that was stopped and resumed gives the same weights as one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import torch

from desk_rag.errors import DeskRagError, OutOfMemory
from desk_rag.finetune.checkpoint import Checkpoints, Standing
from desk_rag.finetune.masked import Loss, loss_of, to_batch
from desk_rag.finetune.rows import Row
from desk_rag.finetune.settings import TrainSettings, rate_at
from desk_rag.finetune.stream import Place
from desk_rag.finetune.trainable import Trainable

_MIB = 1024**2
_CLIP = 1.0
"""Largest norm of the gradient."""
RowT = TypeVar("RowT")
RowT_co = TypeVar("RowT_co", covariant=True)
RowT_contra = TypeVar("RowT_contra", contravariant=True)


class Stream(Protocol[RowT_co]):
    """An endless sequence of rows whose position can be kept."""

    def row(self, place: Place) -> tuple[RowT_co, Place]:
        """Return the row at `place`, and the place after it."""
        ...


class Objective(Protocol[RowT_contra]):
    """A loss over rows."""

    def weight(self, row: RowT_contra) -> float:
        """Return what the loss of one row is divided by."""
        ...

    def loss(self, module: Any, rows: Sequence[RowT_contra], device: torch.device) -> Loss:
        """Return the summed loss of rows of one length."""
        ...


class AnswerLoss:
    """Negative log likelihood of answers."""

    def weight(self, row: Row) -> float:
        """Return the row's number of answer tokens, weighted."""
        return float(row.weights[1:].sum())

    def loss(self, module: Any, rows: Sequence[Row], device: torch.device) -> Loss:
        """Return the summed loss of the rows' answer tokens."""
        return loss_of(module, to_batch(rows, device))


@dataclass(frozen=True, slots=True)
class TrainProgress:
    """Report after every step."""

    step: int
    steps: int
    loss: float
    """Mean loss of the step, in nats; of answers their tokens' mean negative log likelihood."""
    learning_rate: float
    gradient_norm: float
    """Norm before clipping."""
    tokens_per_second: float
    """Tokens in rows, padding included, since this process began to train."""
    eta_seconds: float
    device_mib: float
    """Peak memory of the GPU so far; 0 on a CPU."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """End of a run."""

    standing: Standing
    stopped: bool
    """True if it was asked to; a checkpoint was written then."""
    tokens_per_second: float
    device_mib: float


def train(
    trainable: Trainable,
    stream: Stream[RowT],
    objective: Objective[RowT],
    settings: TrainSettings,
    checkpoints: Checkpoints,
    *,
    start: Standing,
    on_step: Callable[[TrainProgress], None],
    stop: Callable[[], bool],
) -> Outcome:
    """Train from `start` to `settings.steps`, or until `stop`. Raises OutOfMemory, or DeskRagError for a loss or
    gradient that is no number."""
    optimizer = _optimizer(trainable, settings)
    if start.step:
        checkpoints.load(trainable.parameters, optimizer)
    module = trainable.model.module
    standing = start
    began, first = time.perf_counter(), start.step
    rate = 0.0
    stopped = False
    module.train()
    try:
        with _Feeder(stream, settings.rows_per_step) as feeder:
            while standing.step < settings.steps and not stopped:
                rows, place = feeder.take(standing.place)
                loss, norm = _step(trainable, rows, objective, settings, optimizer, standing.step)
                done = standing.step + 1
                standing = replace(standing, step=done, place=place, losses=(*standing.losses, loss))
                seconds = time.perf_counter() - began
                rate = (done - first) * settings.rows_per_step * settings.row_tokens / seconds
                left = seconds / (done - first) * (settings.steps - done)
                speed = rate_at(settings, done - 1)
                on_step(TrainProgress(done, settings.steps, loss, speed, norm, rate, left, _device_mib(trainable)))
                stopped = stop() and done < settings.steps
                if stopped or done == settings.steps or done % settings.save_every == 0:
                    checkpoints.save(standing, trainable.parameters, optimizer)
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            f"Rows of {settings.row_tokens} tokens do not fit into this GPU's memory.",
            remedy="Try --checkpointing, --row-tokens 1024, --rows-at-once 1, --lora 8 or --quantization nf4.",
        ) from error
    finally:
        module.eval()
    return Outcome(standing, stopped, rate, _device_mib(trainable))


class _Feeder(Generic[RowT]):
    """Builds the next step's rows while this one's are computed."""

    def __init__(self, stream: Stream[RowT], count: int) -> None:
        self._stream = stream
        self._count = count
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="rows")
        self._next: tuple[Place, Future[tuple[list[RowT], Place]]] | None = None

    def __enter__(self) -> _Feeder[RowT]:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def take(self, place: Place) -> tuple[list[RowT], Place]:
        """The rows of one step from `place` on, and the place after them."""
        if self._next is None or self._next[0] != place:
            self._next = (place, self._pool.submit(self._build, place))
        rows, after = self._next[1].result()
        self._next = (after, self._pool.submit(self._build, after))
        return rows, after

    def _build(self, place: Place) -> tuple[list[RowT], Place]:
        rows = []
        for _ in range(self._count):
            row, place = self._stream.row(place)
            rows.append(row)
        return rows, place


def _optimizer(trainable: Trainable, settings: TrainSettings) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        list(trainable.parameters.values()), lr=settings.peak, betas=(0.9, 0.95), weight_decay=0.0
    )


def _step(
    trainable: Trainable, rows: list[RowT], objective: Objective[RowT], settings: TrainSettings,
    optimizer: torch.optim.Optimizer, step: int,
) -> tuple[float, float]:  # fmt: skip
    """One step of the optimiser; returns the mean loss and the norm of the gradient."""
    weight = sum(objective.weight(row) for row in rows)
    total = torch.zeros((), device=trainable.model.device)
    for start in range(0, len(rows), settings.rows_at_once):
        with trainable.autocast():
            loss = objective.loss(
                trainable.model.module, rows[start : start + settings.rows_at_once], trainable.model.device
            )
        if loss.weight:
            torch.autograd.backward(loss.total / weight)
            total += loss.total.detach()
    mean = float(total) / max(weight, 1e-9)
    norm = float(torch.nn.utils.clip_grad_norm_(trainable.parameters.values(), _CLIP))
    # Before the step: a gradient that is no number would go into the weights, and from there into a checkpoint.
    if not math.isfinite(mean) or not math.isfinite(norm):
        raise DeskRagError(
            f"The loss or gradient of step {step + 1} is not a number.",
            remedy="Start again with a lower --learning-rate and another --out.",
        )
    groups: list[dict[str, Any]] = optimizer.param_groups
    for group in groups:
        group["lr"] = rate_at(settings, step)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return mean, norm


def _device_mib(trainable: Trainable) -> float:
    if trainable.model.device.type != "cuda":
        return 0.0
    return torch.cuda.max_memory_allocated() / _MIB
