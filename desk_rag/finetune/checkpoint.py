"""Save and load checkpoints: weights, optimiser, random state and position in the data.

Safetensors and JSON only. A checkpoint is written to a temporary name, synced and renamed, so that a killed run leaves
the previous one; the newest two are kept.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from desk_rag.errors import ConfigError
from desk_rag.finetune.stream import Place
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.owned_folder import sync_directory

_NAME = re.compile(r"step-(\d{8})")
_FILES = ("weights.safetensors", "optimizer.safetensors", "state.json")
_KEPT = 2
_RNG = "rng."
_PARTS = ("step", "exp_avg", "exp_avg_sq")
"""Tensors that AdamW keeps for a weight."""


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """Facts that must be equal for a run to go on as if it had never stopped."""

    settings: dict[str, object]
    data: str
    """Digest of the samples."""
    base: str
    """Fingerprint of the weights it started from."""
    quantization: str


@dataclass(frozen=True, slots=True)
class Standing:
    """Progress of a run."""

    step: int
    """Steps done."""
    place: Place
    """Next row."""
    losses: tuple[float, ...]
    """Mean loss of the answers, of every step."""
    before: dict[str, Any]
    """Measurements before the first step."""


class Checkpoints:
    """The checkpoints of one run, in one directory."""

    def __init__(self, directory: Path, identity: RunIdentity) -> None:
        self._directory = directory
        self._out = OwnedDirectory(directory.parent)
        self._owned = OwnedDirectory(directory, follow=False)
        self._identity = identity

    def save(
        self, standing: Standing, parameters: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer
    ) -> Path:
        """Keep everything needed to go on after `standing.step` steps."""
        name = f"step-{standing.step:08d}"
        beside = self._directory / f".{name}.tmp"
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._discard(beside)
        self._owned.make_directory(beside)
        tensors = {key: weight.detach().cpu().contiguous() for key, weight in parameters.items()}
        _write(beside / "weights.safetensors", save(tensors))
        _write(beside / "optimizer.safetensors", save({**_moments(parameters, optimizer), **_random_states()}))
        state = {"identity": asdict(self._identity), "standing": asdict(standing)}
        _write(beside / "state.json", json.dumps(state).encode())
        sync_directory(beside)
        final = self._directory / name
        self._discard(final)
        with self._owned.opened() as folder:
            folder.replace(beside.name, folder, final.name)
        sync_directory(self._directory)
        for old in self._complete()[:-_KEPT]:
            self._discard(old)
        return final

    def newest(self) -> Standing | None:
        """Progress of the newest checkpoint; None without one. Raises ConfigError if it is of another run."""
        steps = self._complete()
        if not steps:
            return None
        state = self._state(steps[-1])
        for key, mine in asdict(self._identity).items():
            if (theirs := state["identity"].get(key)) != mine:
                raise ConfigError(
                    f"The run in {self._directory.parent} cannot be resumed: {_difference(key, theirs, mine)}",
                    remedy="Give the same options and data as before, or another --out.",
                )
        progress = state["standing"]
        return Standing(progress["step"], Place(**progress["place"]), tuple(progress["losses"]), progress["before"])

    def load(self, parameters: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
        """Put weights, optimiser and random numbers back as the newest checkpoint has them."""
        directory = self._complete()[-1]
        try:
            tensors = load_file(directory / "weights.safetensors")
            moments = load_file(directory / "optimizer.safetensors")
        except (OSError, SafetensorError) as error:
            raise ConfigError(
                f"The checkpoint {directory} cannot be read: {error}.",
                remedy="Remove that directory; --resume then goes on from the one before.",
            ) from error
        with torch.no_grad():
            for name, weight in parameters.items():
                weight.copy_(tensors[name])
        state = {
            index: {part: moments[f"{part}.{name}"] for part in _PARTS}
            for index, name in enumerate(parameters)
            if f"step.{name}" in moments  # a weight that never had a gradient has no state
        }
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        torch.set_rng_state(moments[f"{_RNG}cpu"])
        if f"{_RNG}cuda" in moments and torch.cuda.is_available():
            torch.cuda.set_rng_state(moments[f"{_RNG}cuda"])

    def remove(self) -> None:
        """Forget all of them: the run is done."""
        for checkpoint in [*self._complete(), *self._directory.glob(".step-*.tmp")]:
            self._discard(checkpoint)
        self._out.remove_directory(self._directory)

    def _discard(self, checkpoint: Path) -> None:
        """Remove the files of one checkpoint, and its directory if nothing else is in it."""
        for name in _FILES:
            self._owned.remove(checkpoint / name, lambda entry: entry.is_file)
        self._owned.remove_directory(checkpoint)

    def _complete(self) -> list[Path]:
        if not self._directory.is_dir():
            return []
        return sorted(path for path in self._directory.iterdir() if _NAME.fullmatch(path.name))

    def _state(self, directory: Path) -> dict[str, Any]:
        try:
            state = json.loads((directory / "state.json").read_text(encoding="utf-8"))
            assert isinstance(state, dict)
            return state
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"The checkpoint {directory} cannot be read: {error}.",
                remedy="Remove that directory; --resume then goes on from the one before.",
            ) from error


def _moments(parameters: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {
        f"{part}.{name}": torch.as_tensor(value).detach().cpu().contiguous()
        for name, weight in parameters.items()
        for part, value in optimizer.state[weight].items()
    }


def _random_states() -> dict[str, torch.Tensor]:
    states = {f"{_RNG}cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states[f"{_RNG}cuda"] = torch.cuda.get_rng_state()
    return states


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _difference(key: str, theirs: object, mine: object) -> str:
    if isinstance(theirs, dict) and isinstance(mine, dict):
        names = [name for name in mine if theirs.get(name) != mine[name]]
        return "; ".join(f"'{name}' was {theirs.get(name)} and is {mine[name]}" for name in names) + "."
    words = {"data": "the data", "base": "the base model", "quantization": "the weight quantisation"}
    return f"{words.get(key, key)} is another one."
