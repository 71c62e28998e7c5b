"""Refining: the top layers of a reader that is there learn on; what is below them stands still.

Few layers, so that the new weights differ from the old ones in few bytes. The short answer counts for more than the
quote before it, since quotes are chosen by another rule (`desk_rag.answering.evidence.selection`) and the answers
behind them are what goes wrong. What comes out is the mean of the weights over the last part of the run (Izmailov and
others, arXiv 1803.05407, section 3.2).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from desk_rag.errors import ConfigError
from desk_rag.training.reader.architecture import Block, Decoder, rotary_tables
from desk_rag.training.reader.data.rows import attention_mask
from desk_rag.training.reader.optimiser import Optimiser
from desk_rag.training.reader.training import (
    Group,
    Rates,
    Rows,
    answer_loss,
    compiled,
    compute_dtype,
    half,
    learned_of,
    row_states,
)


@dataclass(frozen=True, slots=True)
class Refinement:
    """One way to refine; a run ends when its rows or its seconds are used up."""

    layers: int = 4
    """Number of top layers that are trained, with the final norm."""
    muon: float = 0.003
    adam: float = 3e-4
    """Rates of matrices and of vectors."""
    answer: float = 3.0
    """Weight of a token of a short answer; one of a quote or a refusal has weight 1."""
    drop: float = 0.1
    """In the layers that learn."""
    below: float = 0.05
    """In those that stand still: what was learned by heart there is less of a crutch."""
    home: float = 0.5
    """Pull of the matrices towards where they began, per step in units of their rate."""
    full: float = 0.3
    """Share of rows with full attention; the rest is read as stitched inference reads it."""
    fall: float = 0.9
    """The last share of the run, over which the rates fall to nothing."""
    mean: float = 0.3
    """The last share of the run whose weights are averaged."""
    rows: int = 40_000
    seconds: float = math.inf
    """From the fourth step on, when everything is compiled."""
    batch: int = 128
    micro: int = 32
    seed: int = 1


def parse_variant(text: str, usual: Refinement) -> tuple[str, Refinement]:
    """'NAME' or 'NAME:muon=0.002,layers=5': a name, and `usual` with other values.

    Raises ConfigError for a value that there is not.
    """
    name, _, values = text.partition(":")
    known = {field.name: type(getattr(usual, field.name)) for field in fields(Refinement)}
    changes: dict[str, float] = {}
    for each in filter(None, values.split(",")):
        key, _, value = each.partition("=")
        try:
            changes[key] = known[key](value)
        except (KeyError, ValueError):
            raise ConfigError(f"--try '{text}' says '{each}'.", remedy=f"Known: {', '.join(known)}.") from None
    if not name.replace("-", "").isalnum():
        raise ConfigError(f"--try '{text}' has no name.", remedy="For one: --try calm:muon=0.002") from None
    refinement: Refinement = replace(usual, **changes)  # type: ignore[arg-type]
    if not 1 <= refinement.micro <= refinement.batch or refinement.layers < 1:
        raise ConfigError(
            f"--try '{text}' needs 1 <= micro <= batch, and layers.", remedy="For one: --try calm:batch=128,micro=32"
        )
    return name, refinement


def thaw(model: Decoder, layers: int) -> list[str]:
    """Let the top `layers` and the final norm learn and nothing else; returns their tensors' names."""
    first = model.shape.layers - layers
    top = ("norm.", *(f"layers.{number}." for number in range(first, model.shape.layers)))
    names = []
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(top))
        if parameter.requires_grad:
            names.append(name)
    return names


def refine(model: Decoder, rows: Rows, group: Group, how: Refinement) -> dict[str, Tensor]:
    """Train the top of `model`, of one process; returns the averaged weights of what changed, fp32, by name."""
    names = thaw(model, how.layers)
    _set_dropout(model, how)
    rates = Rates(how.muon, how.adam, how.fall, warm_up=10)
    optimiser = Optimiser(model, muon=how.muon, adam=how.adam, decay=how.home, home=True)
    step_of = _Step(model, rows, group, how)
    mean = _Mean({name: model.get_parameter(name) for name in names})
    model.train()
    steps, step, done = max(1, how.rows // how.batch), 0, 0.0
    began, counted = time.perf_counter(), 0
    while done < 1:
        loss = step_of.gradients()
        optimiser.step(rates.scale(done, step))
        step += 1
        if step == 3:
            loss.item()
            began, counted = time.perf_counter(), step
        seconds = time.perf_counter() - began
        done = max(step / steps, seconds / how.seconds if step > 3 else 0.0)
        if done >= 1 - how.mean:
            mean.add()
        if step % 50 == 0 or done >= 1:
            rate = (step - counted) * how.batch * step_of.length / max(seconds, 1e-9)
            group.log(f"step {step} of {steps}, loss {loss.item():.3f}, {rate / 1e6:.2f} M tokens/s")
    model.eval()
    return mean.values


class _Step:
    """One batch: the gradients of what learns."""

    def __init__(self, model: Decoder, rows: Rows, group: Group, how: Refinement) -> None:
        self._model, self._rows, self._group, self._how = model, rows, group, how
        self._cos, self._sin = rotary_tables(model.shape, group.device)
        self._loss = compiled(answer_loss, group)
        self.length = rows.take(1)["ids"].shape[1]

    def gradients(self) -> Tensor:
        """Add them up over the batch's parts; returns the mean loss."""
        how, group = self._how, self._group
        total = torch.zeros((), device=group.device)
        parts = max(1, how.batch // how.micro)
        for _ in range(parts):
            taken = self._rows.take(how.micro)
            full = torch.rand(how.micro, device=group.device) < how.full
            with half(group):
                mask = attention_mask(taken["segments"], full, compute_dtype(group))
                states, targets, known = learned_of(row_states(self._model, taken, self._cos, self._sin, mask), taken)
                weights = token_weights(taken, known, how.answer)
                loss = self._loss(states, targets, weights, self._model.embed_tokens.weight)
            total += loss.detach() / parts
            torch.autograd.backward(loss / parts)
        return total


def token_weights(taken: Mapping[str, Tensor], known: Tensor, answer: float) -> Tensor:
    """[B, A] fp32: 0 where nothing is learned, `answer` for tokens of short answers, 1 for the others."""
    return known.float() * (1 + (answer - 1) * taken["short"].float())


class _Mean:
    """The mean of parameters over the moments at which `add` was called."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._count = 0
        self.values = {name: parameter.detach().float().clone() for name, parameter in parameters.items()}

    @torch.no_grad()
    def add(self) -> None:
        """Count the parameters as they are now."""
        self._count += 1
        for name, value in self.values.items():
            value.lerp_(self._parameters[name].float(), 1 / self._count)


def mean_of(several: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of weights by name (Wortsman and others, arXiv 2203.05482); all must have the same names."""
    return {name: torch.stack([weights[name].float() for weights in several]).mean(0) for name in several[0]}


def _set_dropout(model: Decoder, how: Refinement) -> None:
    for number, block in enumerate(model.layers):
        assert isinstance(block, Block)
        block.drop = how.drop if number >= model.shape.layers - how.layers else how.below
