"""Adapt a model to separately prefilled chunks: measure, learn, measure again, keep what is better."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from desk_rag.errors import DeskRagError, OutOfMemory
from desk_rag.finetune.adapt.learning import Learner
from desk_rag.finetune.adapt.lessons import Lesson, Shifted
from desk_rag.finetune.data import Sample, hold_out
from desk_rag.finetune.rows import Context
from desk_rag.finetune.settings import TrainSettings
from desk_rag.finetune.stream import RowStream
from desk_rag.kv.calibration.gate import canaries_answered
from desk_rag.kv.serving import ServingModel
from desk_rag.kv.shift import KNOTS, PlaceShift
from desk_rag.model.memory.device import is_out_of_memory, memory_errors

_QUESTIONS = 3
"""Maximum questions per context."""
_HELD_OUT = 0.25
_FEWEST = 8
"""Contexts below which there is nothing to learn from, or to judge by."""
NEGLIGIBLE = 5e-3
"""Divergence in nats per answer token below which stitching costs nothing worth a remedy: twice what the embedded
reader has on short passages, and about a sixth of what a model has whose F1 falls by a fifth, as far as bench/LOG.md,
which holds divergences of whole answers, lets that be computed."""
_NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True)
class Amounts:
    """Contexts of each part of a run."""

    estimate: int = 24
    steps: int = 160
    judge: int = 32

    @property
    def contexts(self) -> int:
        """Contexts of a whole run, which measures twice."""
        return self.estimate + self.steps + 2 * self.judge


USUAL = Amounts()


@dataclass(frozen=True, slots=True)
class Gap:
    """Cost of stitching on held-out contexts of the folder, against the model's own full prefill."""

    nats: float
    """KL(full prefill || stitched) per answer token."""
    same: float
    """Share of answer tokens whose most probable next token is full prefill's."""
    canaries: int
    """Built-in questions whose answer holds the code that was asked for."""
    per_question: tuple[float, ...]
    """Nats per token of each question, in order."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Report after every context."""

    stage: str
    done: int
    total: int
    contexts: int
    """Contexts of the whole run."""
    nats: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a run."""

    before: Gap
    after: Gap | None
    """None if nothing was learned, because stitching costs nothing."""
    shift: PlaceShift | None
    """None if it is not worth keeping."""
    reason: str
    """Reason to keep it or not, as a sentence."""
    seconds: float
    contexts: int
    tokens: int
    """Context tokens that were read, each twice."""
    device_mib: float
    refined: bool = False
    """False if gradients do not pass through these weights, so that the estimate was all."""

    def as_json(self) -> dict[str, Any]:
        """All fields but the shift itself."""
        fields = asdict(self) | {"kept": self.shift is not None}
        del fields["shift"]
        for name in ("before", "after"):
            if fields[name] is not None:
                del fields[name]["per_question"]
        return fields


@memory_errors()
def adapt(
    serving: ServingModel,
    samples: Sequence[Sample],
    *,
    top_k: int,
    amounts: Amounts | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    before_context: Callable[[], None] = lambda: None,
) -> Outcome:
    """Learn a shift for `serving` from questions over the user's chunks. Raises DeskRagError if they are too few.

    `before_context` is called before each context, a few seconds of work at most: it may wait, or raise Cancelled.
    """
    amounts, began = amounts or USUAL, time.perf_counter()
    for weight in serving.model.module.parameters():
        weight.requires_grad_(False)
    kept, held = hold_out(samples, _HELD_OUT)
    lessons = _Lessons(serving, top_k, before_context)
    judged = _Judge(lessons, held, amounts, on_progress)
    if not kept or judged.count < _FEWEST:
        raise DeskRagError(
            "There are too few indexed passages to learn from.", remedy="Index more prose, then run it again."
        )
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    before = judged.gap("measuring what stitching costs", None)

    def outcome(after: Gap | None, shift: PlaceShift | None, reason: str, *, refined: bool = False) -> Outcome:
        mib = torch.cuda.max_memory_allocated() / 2**20 if serving.model.device.type == "cuda" else 0.0
        seconds = time.perf_counter() - began
        return Outcome(before, after, shift, reason, seconds, lessons.contexts, lessons.tokens, mib, refined)

    if before.nats < NEGLIGIBLE:
        return outcome(None, None, "Stitching costs this model nothing worth a remedy.")
    learner = Learner(serving, KNOTS, amounts.steps)
    for number, lesson in enumerate(lessons.of(kept, amounts.estimate)):
        learner.collect(lesson)
        on_progress(Progress("estimating", number + 1, amounts.estimate, amounts.contexts))
    learner.estimate()
    refined = _refine(learner, lessons.of(kept, amounts.steps, epoch=1), amounts, on_progress)
    after = judged.gap("measuring the result", learner.shift)
    better, reason = verdict(before, after)
    return outcome(after, learner.result() if better else None, reason, refined=refined)


def _refine(
    learner: Learner, lessons: Iterator[Lesson], amounts: Amounts, on_progress: Callable[[Progress], None]
) -> bool:
    """Take all steps; False if these weights pass no gradients on, as packed ones do."""
    for number, lesson in enumerate(lessons, start=1):
        try:
            nats = learner.step(lesson)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise OutOfMemory(
                    "There is not enough memory to learn from a context.",
                    remedy="Close other programs that use it, or lower `top_k` or `context_tokens` under [answer].",
                ) from error
            if number > 1:
                raise
            return False
        on_progress(Progress("learning", number, amounts.steps, amounts.contexts, nats))
    return True


def verdict(before: Gap, after: Gap) -> tuple[bool, str]:
    """Decide if a shift is worth keeping: nearer to full prefill beyond chance, and nothing lost."""
    differences = [was - now for was, now in zip(before.per_question, after.per_question, strict=True)]
    mean = sum(differences) / len(differences)
    spread = math.sqrt(sum((each - mean) ** 2 for each in differences) / max(1, len(differences) - 1))
    if mean <= _NORMAL_95 * spread / math.sqrt(len(differences)):
        return False, "Not kept: answers did not come nearer to full prefill's beyond chance."
    if after.same < before.same:
        return False, "Not kept: fewer tokens agree with full prefill's than before."
    if after.canaries < before.canaries:
        return False, "Not kept: a built-in question is answered worse than before."
    return True, "Kept: answers come nearer to full prefill's."


class _Lessons:
    """Contexts of samples, as lessons."""

    def __init__(self, serving: ServingModel, top_k: int, before_context: Callable[[], None]) -> None:
        self.serving, self._before = serving, before_context
        self._settings = TrainSettings(
            distractors=max(1, top_k - 1), questions=_QUESTIONS, full_share=1.0, refuse_share=0.05,
            row_tokens=serving.model.spec.max_context,
        )  # fmt: skip
        self.contexts = self.tokens = 0

    def contexts_of(self, samples: Sequence[Sample], count: int, epoch: int = 0) -> list[Context]:
        """Draw up to `count` contexts of two chunks and more."""
        model = self.serving.model
        stream = RowStream(samples, model.prompt, self._settings, max_context=model.spec.max_context)
        contexts: list[Context] = []
        for number in range(4 * count):
            context = stream.context(epoch + number // len(samples), number % len(samples))
            if context is not None and len(context.chunks) > 1:
                contexts.append(context)
            if len(contexts) == count:
                break
        return contexts

    def of(self, samples: Sequence[Sample], count: int, epoch: int = 0) -> Iterator[Lesson]:
        """`count` lessons; contexts come again where the samples are few."""
        contexts = self.contexts_of(samples, count, epoch)
        for number in range(count):
            yield self.lesson(contexts[number % len(contexts)])

    def lesson(self, context: Context) -> Lesson:
        self._before()
        lesson = Lesson(self.serving, context, KNOTS)
        self.contexts, self.tokens = self.contexts + 1, self.tokens + lesson.plan.num_slots
        return lesson


class _Judge:
    """Measures on contexts that nothing is learned from."""

    def __init__(
        self, lessons: _Lessons, held: Sequence[Sample], amounts: Amounts, on_progress: Callable[[Progress], None]
    ) -> None:
        self._lessons, self._on_progress, self._amounts = lessons, on_progress, amounts
        self._contexts = lessons.contexts_of(held, amounts.judge) if held else []

    @property
    def count(self) -> int:
        return len(self._contexts)

    def gap(self, stage: str, shift: Shifted | None) -> Gap:
        nats, counts, same = list[float](), list[int](), 0
        for done, context in enumerate(self._contexts, start=1):
            lesson = self._lessons.lesson(context)
            with torch.no_grad():
                for number in range(len(lesson.asked)):
                    divergence, count, agreeing = lesson.divergence(number, shift)
                    nats.append(max(0.0, float(divergence)))
                    counts.append(count)
                    same += agreeing
            self._on_progress(Progress(stage, done, len(self._contexts), self._amounts.contexts))
        serving = self._lessons.serving
        place = None if shift is None else PlaceShift(KNOTS, shift.keys, shift.values)
        return Gap(
            nats=sum(nats) / sum(counts),
            same=same / sum(counts),
            canaries=canaries_answered(serving.model, serving.prefix, serving.scheme, place),
            per_question=tuple(each / count for each, count in zip(nats, counts, strict=True)),
        )
