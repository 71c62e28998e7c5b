"""Settings of a fine-tuning run; equal settings and data give equal weights. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import Enum

from desk_rag.errors import ConfigError

REPLAY_SHARE = 0.15
"""Share of rows of plain text, if there is text to replay.

All tokens of such a row count in the loss, but only the answers of the other rows (about an eighth of their tokens).
"""
_WARMUP = 0.05
"""Share of the steps in which the learning rate rises to its peak."""
_LOWEST = 0.05
"""Share of the peak learning rate below which it does not fall."""


class Method(Enum):
    """Weights that are trained."""

    LORA = "lora"
    """Low-rank adapters on every linear layer (arXiv 2106.09685); over nf4 weights this is QLoRA (arXiv 2305.14314)."""
    FULL = "full"
    """All weights, kept in fp32 while training."""


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """One run. Lengths are in tokens, shares between 0 and 1."""

    method: Method = Method.LORA
    steps: int = 300
    rows_per_step: int = 8
    """Rows whose gradients make one step."""
    rows_at_once: int = 1
    """Rows in memory at a time; the rest is gradient accumulation."""
    row_tokens: int = 2048
    """Length of a row; several contexts share one where they fit."""
    lora_rank: int = 16
    lora_dropout: float = 0.0
    learning_rate: float = 0.0
    """0 means 2e-4 for LoRA and 2e-5 for all weights, as is usual from a billion parameters on."""
    full_share: float = 0.3
    """Share of contexts read with full attention, so that one model serves both ways."""
    refuse_share: float = 0.1
    """Share of contexts without the answering chunks, to which the right answer is a refusal."""
    distractors: int = 4
    """Maximum number of other chunks added to a context."""
    questions: int = 8
    """Maximum number of questions per context; they do not attend to each other."""
    replay_share: float = 0.0
    """Share of rows of plain text, against forgetting; see `REPLAY_SHARE`."""
    checkpointing: bool = False
    """Recompute activations in the backward pass: half the speed for a fraction of the memory."""
    save_every: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.rows_per_step < 1 or self.rows_at_once < 1 or self.row_tokens < 64:
            raise ConfigError("steps and rows must be at least 1, row tokens at least 64.")
        if self.rows_per_step % self.rows_at_once:
            raise ConfigError(
                f"{self.rows_per_step} rows a step cannot be split into batches of {self.rows_at_once}.",
                remedy="Give --rows-at-once a divisor of --rows.",
            )
        if self.questions < 1 or self.distractors < 0 or self.learning_rate < 0:
            raise ConfigError("questions must be at least 1; distractors and learning rate must not be negative.")
        for name in ("full_share", "refuse_share", "replay_share", "lora_dropout"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"'{name}' is {getattr(self, name)}; it must be between 0 and 1.")

    @property
    def peak(self) -> float:
        """Peak learning rate: the one set, or the default of the method."""
        return self.learning_rate or (2e-4 if self.method is Method.LORA else 2e-5)

    def as_json(self) -> dict[str, object]:
        """Return every setting by name, enums as their values."""
        return {key: value.value if isinstance(value, Enum) else value for key, value in asdict(self).items()}


def rate_at(settings: TrainSettings, step: int) -> float:
    """Return the learning rate of step 0 .. steps - 1: a linear warm-up, then a cosine."""
    warm = max(1, round(_WARMUP * settings.steps))
    if step < warm:
        return settings.peak * (step + 1) / warm
    progress = (step - warm) / max(1, settings.steps - warm)
    return settings.peak * max(_LOWEST, 0.5 * (1 + math.cos(math.pi * progress)))
