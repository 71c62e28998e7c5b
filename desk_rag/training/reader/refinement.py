"""The recipe's last stage, read straight down: rows, variants one after another, their scores, their mean, the best.

Knows the order; each room knows its own trade. It begins with a reader that is there, the shipped one, and leaves
WORK/refined/NAME.safetensors (the tensors that changed, as they are stored) and WORK/refined/NAME/ (a model directory)
for every variant; the best one's name is in WORK/refined/best.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from desk_rag.errors import ConfigError
from desk_rag.training.reader import probing
from desk_rag.training.reader.architecture import Decoder, shape_of
from desk_rag.training.reader.data.written import find
from desk_rag.training.reader.export import coded, decoded, refined
from desk_rag.training.reader.preparation import Work
from desk_rag.training.reader.probing import Outcome
from desk_rag.training.reader.refining import Refinement, mean_of, refine
from desk_rag.training.reader.training import Group, Rows, speed_up

START = "start"


@dataclass(frozen=True, slots=True)
class _Made:
    """One variant: what changed, fp32 by name, and its `probing.gains`."""

    changed: dict[str, Tensor]
    gains: tuple[float, float]


class Refining:
    """One run of one process; rows must be there (`preparation.prepare_refining`)."""

    def __init__(self, work: Work, start: Path, group: Group, asked: int) -> None:
        self.work, self.start, self.group = work, start, group
        config = json.loads((start / "config.json").read_text(encoding="utf-8"))
        self.tokenizer = Tokenizer.from_file(str(start / "tokenizer.json"))
        self._weights = decoded(load_file(start / "model.safetensors"))
        self._model = Decoder(shape_of(config)).to(group.device)
        speed_up(self._model)
        self._probes = probing.probes(work.data, self.tokenizer, asked)
        if not (find(work.data, "qa_dev") or find(work.data, "qa_hold")):
            raise ConfigError(
                f"{work.data} has no qa_dev* or qa_hold* to choose by.",
                remedy="Put held-out questions there, in the form of qa_train.",
            )
        self._folder = work.folder / "refined"
        self._folder.mkdir(parents=True, exist_ok=True)

    def run(self, variants: Mapping[str, Refinement], deadline: float) -> None:
        """Train and score every variant, then means of them; none is begun that would end after `deadline` seconds."""
        began = time.perf_counter()
        start = self._outcomes({})
        report: list[str] = []
        self._tell(report, probing.lines(START, start, start))
        self.group.log(f"start scored in {time.perf_counter() - began:.0f} s")
        trained: dict[str, _Made] = {}
        for name, how in variants.items():
            expected = how.seconds if math.isfinite(how.seconds) else 0.0
            if trained and time.perf_counter() - began + expected > deadline:
                self.group.log(f"no time is left for {name}")
                continue
            self.group.log(f"{name}: {how}")
            trained[name] = self._made(name, self._train(how), start, report)
            self._choose(trained)
        for name, mix in _mixtures(trained, self._weights):
            if time.perf_counter() - began < deadline:
                trained[name] = self._made(name, mix(), start, report)
        best = self._choose(trained)
        gains = [
            f"{name:8s} told F1 {one.gains[0]:+.2f}, in output {one.gains[1]:+.2f}" for name, one in trained.items()
        ]
        self._tell(report, [*gains, f"best: {best}"])

    def _train(self, how: Refinement) -> dict[str, Tensor]:
        self._put({})
        torch.manual_seed(how.seed)
        return refine(self._model, Rows(self.work.folder, "refining", self.group, how.seed), self.group, how)

    def _made(self, name: str, changed: dict[str, Tensor], start: dict[str, Outcome], told: list[str]) -> _Made:
        """Store and score one variant."""
        stored = coded({key: tensor.cpu() for key, tensor in changed.items()})
        file = self._folder / f"{name}.safetensors"
        save_file(stored, file)
        refined(self.start, file, self._folder / name)
        began = time.perf_counter()
        outcomes = self._outcomes(decoded(stored))
        self.group.log(f"{name}: scored in {time.perf_counter() - began:.0f} s")
        self._tell(told, probing.lines(name, outcomes, start))
        return _Made(changed, probing.gains(outcomes, start))

    def _choose(self, made: Mapping[str, _Made]) -> str:
        best = max(made, key=lambda name: sum(made[name].gains))
        (self._folder / "best").write_text(best + "\n", encoding="utf-8")
        return best

    def _tell(self, told: list[str], lines: list[str]) -> None:
        """Print lines; keep all so far in scores.txt, should the run be ended early."""
        told += lines
        print("\n".join(lines), flush=True)
        (self._folder / "scores.txt").write_text("\n".join(told) + "\n", encoding="utf-8")

    def _outcomes(self, changed: Mapping[str, Tensor]) -> dict[str, Outcome]:
        """Scores of the start with `changed` in place of its own, as stored."""
        self._put(changed)
        return {probe.name: probing.run(self._model, self.tokenizer, probe, self.group) for probe in self._probes}

    @torch.no_grad()
    def _put(self, changed: Mapping[str, Tensor]) -> None:
        for name, parameter in self._model.named_parameters():
            parameter.copy_(changed.get(name, self._weights[name]))


def _mixtures(made: dict[str, _Made], start: Mapping[str, Tensor]) -> list[tuple[str, Callable[[], dict[str, Tensor]]]]:
    """Means of the best two and of all variants that changed the same layers as the best; the best half way back."""
    order = sorted(made, key=lambda name: -sum(made[name].gains))
    best = made[order[0]].changed
    alike = [made[name].changed for name in order if made[name].changed.keys() == best.keys()]
    candidates = []
    if len(alike) > 1:
        candidates.append(("soup2", lambda: mean_of(alike[:2])))
    if len(alike) > 2:
        candidates.append(("soup", lambda: mean_of(alike)))
    home = {name: start[name].to(tensor.device) for name, tensor in best.items()}
    return [*candidates, ("halfway", lambda: mean_of([best, home]))]
