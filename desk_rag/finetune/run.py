"""Fine-tune a model, write it to a directory that desk-rag loads, and report what changed.

The result is measured as written and loaded again. The caller passes the judge of answers (`Evaluate`), because the
quality harness is in `bench`, which this package may not import.
"""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from desk_rag.config import ModelSettings
from desk_rag.errors import ConfigError, UnsupportedModel
from desk_rag.finetune.checkpoint import Checkpoints, RunIdentity, Standing
from desk_rag.finetune.data import Sample, digest, hold_out
from desk_rag.finetune.export import export, would_be_replaced
from desk_rag.finetune.probe import Probe, change_error, change_percent, held_out_contexts, probe
from desk_rag.finetune.settings import Method, TrainSettings
from desk_rag.finetune.stream import Place, RowStream
from desk_rag.finetune.trainable import make_trainable
from desk_rag.finetune.trainer import AnswerLoss, Outcome, TrainProgress, train
from desk_rag.model import adapters, packed_linear, weights
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.loading import PRODUCER, load_model
from desk_rag.owned_directory import OwnedDirectory

Evaluate = Callable[[LanguageModel, Sequence[Sample]], dict[str, Any]]
"""Scores a model's answers to held-out samples; the scores go into the report unchanged."""
CHECKPOINTS, REPORT = "checkpoints", "finetune.json"


@dataclass(frozen=True, slots=True)
class Task:
    """Settings of a run: model, data and destination."""

    model: ModelSettings
    train: TrainSettings
    samples: tuple[Sample, ...]
    out: Path
    held_out: float = 0.05
    """Share of the samples that are not trained on."""
    eval_contexts: int = 64
    """Held-out contexts that are measured before and after; 0 for none."""
    general: tuple[str, ...] = ()
    """Texts on which general ability is measured."""
    replay: tuple[str, ...] = ()
    """Texts that are trained on between the contexts."""
    resume: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a run."""

    out: Path
    stopped: bool
    """True if the run was stopped; --resume continues it."""
    steps: int
    before: Probe | None
    after: Probe | None
    answers_before: dict[str, Any]
    """Scores by the judge; {} without one."""
    answers_after: dict[str, Any]
    losses: tuple[float, ...]
    """Loss of each step."""
    tokens_per_second: float
    device_mib: float

    @property
    def text_change(self) -> float | None:
        """Change of the loss on general text, in percent."""
        if self.before is None or self.after is None:
            return None
        return change_percent(self.before.text, self.after.text)

    @property
    def text_error(self) -> float | None:
        """Half of the 95 % interval of `text_change`."""
        if self.before is None or self.after is None:
            return None
        return change_error(self.before.text_nats, self.after.text_nats)

    def as_json(self) -> dict[str, Any]:
        """Return all fields, and the change of the loss on general text."""
        return {
            **asdict(self),
            "out": str(self.out),
            "text_change_percent": self.text_change,
            "text_change_error": self.text_error,
        }


def run(
    task: Task,
    *,
    evaluate: Evaluate | None,
    say: Callable[[str], None],
    on_step: Callable[[TrainProgress], None],
    stop: Callable[[], bool],
) -> Report:
    """Train, write the result, measure it. Raises ConfigError, ModelError or OutOfMemory."""
    check_out(task.out, resume=task.resume)
    say("loading the model …")
    base = weights.resolve(task.model.name, allow_download=task.model.allow_download)
    if base.is_file():
        raise UnsupportedModel(
            f"{base} is GGUF, which can be asked but not trained.",
            remedy="Take the safetensors of the same model: a directory, or ORG/NAME with --download.",
        )
    model = load_model(task.model, pack=False)
    trained, held_out = hold_out(task.samples, task.held_out)
    stream = RowStream(
        trained, model.prompt, task.train, max_context=model.spec.max_context, replay=task.replay
    )  # fmt: skip
    checkpoints = Checkpoints(task.out / CHECKPOINTS, _identity(task, model))
    standing = checkpoints.newest() if task.resume else None
    measure = _Measure(task, held_out, evaluate)
    if standing is None:
        say("measuring the model as it is …")
        standing = Standing(0, Place(), (), measure(model))
    base_weights, name = model.spec.weights_fingerprint, model.spec.name
    trainable = make_trainable(model, task.train)
    say(_overview(task, trained, held_out, sum(weight.numel() for weight in trainable.parameters.values())))
    outcome = train(
        trainable, stream, AnswerLoss(), task.train, checkpoints, start=standing, on_step=on_step, stop=stop
    )  # fmt: skip
    if outcome.stopped:
        return _report(task, outcome, {})
    record = {
        "base_weights": base_weights,
        "base_name": name,
        "quantization": task.model.quantization,
        "settings": task.train.as_json(),
        "data": digest(task.samples),
        "producer": PRODUCER,
    }
    export(trainable, base, task.out, record)
    del trainable, model
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    say("measuring the result …")
    report = _report(task, outcome, measure(load_result(task.model, task.out, task.train.method)))
    OwnedDirectory(task.out).write(task.out / REPORT, json.dumps(report.as_json(), indent=1).encode())
    checkpoints.remove()
    return report


def load_result(settings: ModelSettings, out: Path, method: Method) -> LanguageModel:
    """Load the model as desk-rag serves it: the base with the adapter in `out`, or the model in `out`."""
    if method is Method.LORA:
        model = adapters.attach(load_model(settings, pack=False), out)
        packed_linear.pack_linears(model.module)
        return model
    return load_model(settings.model_copy(update={"name": str(out)}))


class _Measure:
    """Measurements before and after training, on the same contexts."""

    def __init__(self, task: Task, held: Sequence[Sample], evaluate: Evaluate | None) -> None:
        self._task = task
        self._held = tuple(held)
        self._evaluate = evaluate

    def __call__(self, model: LanguageModel) -> dict[str, Any]:
        """{"probe": …, "answers": …}, ready for JSON."""
        task = self._task
        pairs = []
        if self._held and task.eval_contexts:
            stream = RowStream(self._held, model.prompt, task.train, max_context=model.spec.max_context)
            pairs = held_out_contexts(stream, task.eval_contexts, len(self._held))
        probed = probe(model, pairs, task.general)
        judged = {}
        if self._evaluate is not None and self._held and task.eval_contexts:
            # Drawn, because files often have their kinds of questions one after the other.
            rng = random.Random(f"{task.train.seed}/judged")
            judged = self._evaluate(model, rng.sample(self._held, min(len(self._held), task.eval_contexts)))
        return {"probe": asdict(probed), "answers": judged}


def check_out(out: Path, *, resume: bool) -> None:
    """Create the directory of a result. Raises ConfigError if it cannot take one."""
    started = out / CHECKPOINTS
    finished = any(out.glob("*.safetensors")) if out.is_dir() else False
    if finished:
        raise ConfigError(f"{out} holds a model or adapter already.", remedy="Give another --out.")
    if not resume and started.is_dir() and any(started.iterdir()):
        raise ConfigError(
            f"{out} holds a run that was not finished.", remedy="Add --resume to go on, or give another --out."
        )
    replaceable = [] if resume or not out.is_dir() else would_be_replaced(out)
    if replaceable:
        raise ConfigError(
            f"{out} holds '{replaceable[0].name}', which a result could replace.",
            remedy="Give a new or empty directory as --out.",
        )
    try:
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}.", remedy="Give another --out.") from error


def _identity(task: Task, model: LanguageModel) -> RunIdentity:
    recorded = {**task.train.as_json(), "held_out": task.held_out}
    # What was measured before the first step is kept, so what is measured after the last has to be the same.
    recorded |= {"eval_contexts": task.eval_contexts, "general": digest([Sample(task.general, ())])}
    del recorded["save_every"]  # may change without changing what comes out
    texts = Sample(("replay", *task.replay), ())
    return RunIdentity(
        recorded, digest([*task.samples, texts]), model.spec.weights_fingerprint, model.spec.weight_quantization
    )  # fmt: skip


def _overview(task: Task, trained: Sequence[Sample], held: Sequence[Sample], moving: int) -> str:
    questions = sum(len(sample.qas) for sample in trained)
    return (
        f"{questions:,} questions over {len(trained):,} samples, {len(held):,} samples held out; "
        f"{moving / 1e6:,.2f} M weights move ({task.train.method.value}), {task.train.steps} steps of "
        f"{task.train.rows_per_step} rows of {task.train.row_tokens} tokens."
    )


def _report(task: Task, outcome: Outcome, after: dict[str, Any]) -> Report:
    before = outcome.standing.before
    return Report(
        out=task.out,
        stopped=outcome.stopped,
        steps=outcome.standing.step,
        before=Probe(**before["probe"]) if before else None,
        after=Probe(**after["probe"]) if after else None,
        answers_before=before.get("answers", {}),
        answers_after=after.get("answers", {}),
        losses=outcome.standing.losses,
        tokens_per_second=outcome.tokens_per_second,
        device_mib=outcome.device_mib,
    )
