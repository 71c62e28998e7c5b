"""Train an auxiliary model for selective recompute, and print what it selects before and after."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from desk_rag.cli.training.judging import judged_questions
from desk_rag.config import Settings
from desk_rag.finetune.data import Sample
from desk_rag.finetune.settings import Method, TrainSettings
from desk_rag.sanitize import shown_path

if TYPE_CHECKING:
    from desk_rag.finetune.auxiliary.run import AuxiliaryReport, EvaluateSelection
    from desk_rag.finetune.trainer import TrainProgress
    from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel
    from desk_rag.model.language_model import LanguageModel

RATIOS = (0.1, 0.2, 0.3)
"""Shares of recomputed tokens at which answers are scored."""
_OTHERS = ("random", "first-k", "query")
_AUXILIARY = "aux"


def train(
    settings: Settings,
    options: argparse.Namespace,
    samples: tuple[Sample, ...],
    say: Callable[[str], None],
    on_step: Callable[[TrainProgress], None],
    stop: Callable[[], bool],
) -> AuxiliaryReport:
    """Run the training that `options` ask for. Raises DeskRagError subclasses."""
    from desk_rag.answering.auxiliary import model_settings
    from desk_rag.cli.training.finetune import train_settings
    from desk_rag.finetune.auxiliary.run import AuxiliaryTask, run

    name = options.auxiliary or settings.answer.auxiliary
    task = AuxiliaryTask(
        answering=settings.model,
        auxiliary=model_settings(settings, name, settings.model.device),
        layers=options.layers,
        train=_for_selection(train_settings(options)),
        samples=samples,
        out=options.out.expanduser().absolute(),
        held_out=options.held_out,
        eval_contexts=options.eval,
        resume=options.resume,
    )
    return run(task, evaluate=_judge(options), say=say, on_step=on_step, stop=stop)


def _for_selection(settings: TrainSettings) -> TrainSettings:
    """Return the settings with all weights moving, by default at the rate that suits a small model."""
    return replace(settings, method=Method.FULL, learning_rate=settings.learning_rate or 3e-4)


def _judge(options: argparse.Namespace) -> EvaluateSelection:
    def judge(
        model: LanguageModel, auxiliary: AuxiliaryModel, samples: Sequence[Sample], others: bool
    ) -> dict[str, Any]:
        from desk_rag.bench import quality
        from desk_rag.bench.answer_quality.modes import FULL, Mode, Way

        names = (*_OTHERS, _AUXILIARY) if others else (_AUXILIARY,)
        recomputing = tuple(Mode(Way.RECOMPUTE, name, ratio) for name in names for ratio in RATIOS)
        modes = (FULL, Mode(Way.REORDERED), *recomputing)
        questions = judged_questions(samples, options.distractors, options.seed)
        results = quality.evaluate(
            model, [quality.Sample(**one, task="held out") for one in questions], modes, auxiliary=auxiliary
        )
        return {
            mode.label: {name: estimate.to_json() for name, estimate in results.row(mode.label).scores.items()}
            for mode in modes
        }

    return judge


def summary(report: AuxiliaryReport) -> str:
    """Return what a finished run changed, for people."""
    lines = [f"Trained {report.steps} steps at {report.tokens_per_second:,.0f} tokens/s."]
    before, after = report.before, report.after
    if before is not None and after is not None:
        lines += [
            f"The fifth of the tokens that either model attends to most, {len(after.overlaps)} questions: overlap "
            f"(Jaccard) {100 * before.overlap:.1f} -> {100 * after.overlap:.1f} % "
            f"({100 * (after.overlap - before.overlap):+.1f} ± {100 * report.overlap_error:.1f})",
            f"KL(answering model || auxiliary model) of their attention: {before.divergence:.3f} -> "
            f"{after.divergence:.3f} nats",
        ]
    if report.answers_after:
        lines += _answers(report.answers_before, report.answers_after)
    lines.append(
        f'To use it: auxiliary = "{shown_path(report.out)}", selector = "aux" and recompute = 0.2 under [answer]. '
        "`desk-rag index` then fills its caches."
    )
    return "\n".join(lines) + "\n"


def _answers(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    from desk_rag.bench.harness.report import table

    def cell(scores: dict[str, Any]) -> str:
        f1, low, high, _ = scores["f1"]
        kl = f"{scores['kl'][0]:.4f}" if "kl" in scores else "-"
        return f"{100 * f1:.1f} ± {50 * (high - low):.1f}, {kl}"

    def row(name: str, selector: str, scores: dict[str, Any]) -> list[str]:
        return [name, *(cell(scores[f"recompute:{selector}:{ratio:g}"]) for ratio in RATIOS)]

    full, stitched = before["full"], before["reordered"]
    if "f1" not in full:  # no held-out question has an answer
        return []
    rows = [row(name, name, before) for name in _OTHERS]
    rows += [row("auxiliary, untrained", _AUXILIARY, before), row("auxiliary, trained", _AUXILIARY, after)]
    return [
        f"Answers of {full['f1'][3]} questions, F1 in % and KL from full prefill in nats; full prefill {cell(full)}, "
        f"nothing recomputed {cell(stitched)}:",
        table(["recomputed", *(f"{ratio:.0%}" for ratio in RATIOS)], rows),
    ]
