"""Train an auxiliary model, write it to a directory, and report what it selects before and after.

The caller passes the judge of answers, because the quality harness is in `bench`, which this package may not import.
"""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from desk_rag.config import ModelSettings
from desk_rag.errors import UnsupportedModel
from desk_rag.finetune.auxiliary.labels import Teacher
from desk_rag.finetune.auxiliary.layers import keep_lowest, shortened
from desk_rag.finetune.auxiliary.measure import SelectionProbe, half_interval, probe_selection
from desk_rag.finetune.auxiliary.objective import SelectionLoss
from desk_rag.finetune.auxiliary.stream import LabelledStream
from desk_rag.finetune.checkpoint import Checkpoints, RunIdentity, Standing
from desk_rag.finetune.data import Sample, digest, hold_out
from desk_rag.finetune.export import export
from desk_rag.finetune.run import CHECKPOINTS, REPORT, check_out
from desk_rag.finetune.settings import TrainSettings
from desk_rag.finetune.stream import Place
from desk_rag.finetune.trainable import make_trainable
from desk_rag.finetune.trainer import Outcome, TrainProgress, train
from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel
from desk_rag.model import weights
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.loading import PRODUCER, load_model
from desk_rag.owned_directory import OwnedDirectory

EvaluateSelection = Callable[[LanguageModel, AuxiliaryModel, Sequence[Sample], bool], dict[str, Any]]
"""Scores the answering model's answers to held-out samples with tokens recomputed as the auxiliary model selects; the
last argument says whether other selectors are scored as well."""


@dataclass(frozen=True, slots=True)
class AuxiliaryTask:
    """Settings of a run: both models, data and destination."""

    answering: ModelSettings
    auxiliary: ModelSettings
    layers: int
    """Lowest layers of the auxiliary model that are kept; 0 for all."""
    train: TrainSettings
    samples: tuple[Sample, ...]
    out: Path
    held_out: float = 0.05
    eval_contexts: int = 64
    """Held-out contexts that are measured before and after."""
    resume: bool = False


@dataclass(frozen=True, slots=True)
class AuxiliaryReport:
    """Result of a run."""

    out: Path
    stopped: bool
    steps: int
    before: SelectionProbe | None
    after: SelectionProbe | None
    answers_before: dict[str, Any]
    """Scores by the judge, with the untrained auxiliary model and with other selectors; {} without a judge."""
    answers_after: dict[str, Any]
    losses: tuple[float, ...]
    tokens_per_second: float
    device_mib: float

    @property
    def overlap_error(self) -> float:
        """Half of the 95 % interval of the change of the mean overlap."""
        if self.before is None or self.after is None:
            return 0.0
        return half_interval(self.before.overlaps, self.after.overlaps)

    def as_json(self) -> dict[str, Any]:
        """Return all fields and the means."""
        probes = {"before": self.before, "after": self.after}
        means = {
            name: {"questions": len(probe.overlaps), "overlap": probe.overlap, "kl": probe.divergence}
            for name, probe in probes.items()
            if probe is not None
        }
        return {**asdict(self), "out": str(self.out), "means": means, "overlap_error": self.overlap_error}


def run(
    task: AuxiliaryTask,
    *,
    evaluate: EvaluateSelection | None,
    say: Callable[[str], None],
    on_step: Callable[[TrainProgress], None],
    stop: Callable[[], bool],
) -> AuxiliaryReport:
    """Train, write the result, measure it. Raises ConfigError, ModelError or OutOfMemory."""
    check_out(task.out, resume=task.resume)
    say("loading both models …")
    base = weights.resolve(task.auxiliary.name, allow_download=task.auxiliary.allow_download)
    if base.is_file():
        raise UnsupportedModel(f"{base} is GGUF, which cannot be trained.", remedy="Take the safetensors of it.")
    teacher = Teacher(load_model(task.answering, pack=False))
    whole = load_model(task.auxiliary, pack=False)
    base_weights, base_name = whole.spec.weights_fingerprint, whole.spec.name
    student = keep_lowest(whole, task.layers) if task.layers else whole
    trained, held_out = hold_out(task.samples, task.held_out)
    stream = LabelledStream(trained, student, teacher, task.train)
    checkpoints = Checkpoints(task.out / CHECKPOINTS, _identity(task, teacher.model, base_weights))
    standing = checkpoints.newest() if task.resume else None
    measure = _Measure(task, held_out, teacher, evaluate)
    if standing is None:
        say("measuring the auxiliary model as it is …")
        standing = Standing(0, Place(), (), measure(student, others=True))
    trainable = make_trainable(student, task.train)
    moving = sum(weight.numel() for weight in trainable.parameters.values())
    say(
        f"{len(trained):,} samples, {len(held_out):,} held out; {moving / 1e6:,.2f} M weights in "
        f"{student.spec.num_layers} layers move, {task.train.steps} steps of {task.train.rows_per_step} rows of "
        f"{task.train.row_tokens} tokens."
    )
    outcome = train(
        trainable, stream, SelectionLoss(), task.train, checkpoints, start=standing, on_step=on_step, stop=stop
    )
    if outcome.stopped:
        return _report(task, outcome, {})
    record = {
        "base_weights": base_weights,
        "base_name": base_name,
        "selects_as": teacher.model.spec.weights_fingerprint,
        "layers": student.spec.num_layers,
        "settings": task.train.as_json(),
        "data": digest(task.samples),
        "producer": PRODUCER,
    }
    export(trainable, base, task.out, record, partial(_config_changes, layers=student.spec.num_layers))
    del trainable, student, whole
    gc.collect()
    say("measuring the result …")
    result = load_model(task.auxiliary.model_copy(update={"name": str(task.out)}), pack=False)
    report = _report(task, outcome, measure(result, others=False))
    OwnedDirectory(task.out).write(task.out / REPORT, json.dumps(report.as_json(), indent=1).encode())
    checkpoints.remove()
    return report


class _Measure:
    """Measurements before and after training, on the same questions."""

    def __init__(
        self, task: AuxiliaryTask, held: Sequence[Sample], teacher: Teacher, evaluate: EvaluateSelection | None
    ) -> None:
        self._task, self._held, self._teacher, self._evaluate = task, tuple(held), teacher, evaluate

    def __call__(self, model: LanguageModel, *, others: bool) -> dict[str, Any]:
        """{"probe": …, "answers": …}, ready for JSON; `others` to score other selectors as well."""
        count = min(len(self._held), self._task.eval_contexts)
        if not count:
            return {}
        auxiliary = AuxiliaryModel(model)
        stream = LabelledStream(self._held, model, self._teacher, self._task.train)
        readings = [reading for number in range(count) if (reading := stream.reading(0, number)) is not None]
        probed = asdict(probe_selection(auxiliary, self._teacher, readings))
        if self._evaluate is None:
            return {"probe": probed, "answers": {}}
        drawn = random.Random(f"{self._task.train.seed}/judged").sample(self._held, count)
        return {"probe": probed, "answers": self._evaluate(self._teacher.model, auxiliary, drawn, others)}


def _config_changes(config: dict[str, Any], layers: int) -> dict[str, Any]:
    return shortened(config, layers) if config.get("num_hidden_layers") != layers else {}


def _identity(task: AuxiliaryTask, answering: LanguageModel, base: str) -> RunIdentity:
    recorded = {**task.train.as_json(), "held_out": task.held_out, "eval_contexts": task.eval_contexts}
    recorded |= {"answering": answering.spec.weights_fingerprint, "layers": task.layers}
    del recorded["save_every"]  # may change without changing what comes out
    return RunIdentity(recorded, digest(task.samples), base, answering.spec.weight_quantization)


def _report(task: AuxiliaryTask, outcome: Outcome, after: dict[str, Any]) -> AuxiliaryReport:
    before = outcome.standing.before
    return AuxiliaryReport(
        out=task.out,
        stopped=outcome.stopped,
        steps=outcome.standing.step,
        before=_probe(before),
        after=_probe(after),
        answers_before=before.get("answers", {}),
        answers_after=after.get("answers", {}),
        losses=outcome.standing.losses,
        tokens_per_second=outcome.tokens_per_second,
        device_mib=outcome.device_mib,
    )


def _probe(measured: dict[str, Any]) -> SelectionProbe | None:
    if not measured:
        return None
    return SelectionProbe(*(tuple(measured["probe"][name]) for name in ("overlaps", "divergences")))
