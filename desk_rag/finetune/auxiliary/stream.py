"""Turn samples into an endless stream of rows with labels, laid out as the auxiliary model reads stitched caches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from desk_rag.errors import ConfigError
from desk_rag.finetune.auxiliary.labels import (
    Reading,
    Shares,
    Teacher,
    chunk_tokens,
    context_of,
    mean_matrix,
    text_spans,
)
from desk_rag.finetune.data import Sample
from desk_rag.finetune.distract import Distractors
from desk_rag.finetune.rows import Context, Island, Row, build_island, build_row, island_length, positions_needed
from desk_rag.finetune.settings import TrainSettings
from desk_rag.finetune.stream import Place
from desk_rag.model.language_model import LanguageModel

_MOST_CONTEXTS = 64
"""Maximum contexts per row, however short they are."""


@dataclass(frozen=True, slots=True)
class LabelledRow:
    """A row with the labels of its questions."""

    row: Row
    means: Shares
    """[questions, question tokens]: takes the mean over each question's tokens."""
    tokens: npt.NDArray[np.int64]
    """Numbers of the row's text tokens."""
    shares: Shares
    """[questions, text tokens]: wanted shares of attention, 1 per question together."""


@dataclass(frozen=True, slots=True)
class _Labelled:
    island: Island
    means: Shares
    tokens: npt.NDArray[np.int64]
    shares: Shares


class LabelledStream:
    """Rows of `settings.row_tokens` tokens. Labels are made as rows are asked for; `row` may be called from any thread.
    """

    def __init__(
        self, samples: Sequence[Sample], student: LanguageModel, teacher: Teacher, settings: TrainSettings
    ) -> None:
        self._samples, self._settings = tuple(samples), settings
        self._student, self._teacher = student, teacher
        self._pool = Distractors([chunk for sample in samples for chunk in sample.chunks])
        if not any(self.reading(0, number) for number in range(len(self._samples))):
            raise ConfigError(
                f"Not one of {len(self._samples)} samples fits into a row of {settings.row_tokens} tokens.",
                remedy="Use longer rows (--row-tokens) or shorter chunks.",
            )

    def row(self, place: Place) -> tuple[LabelledRow, Place]:
        """Return the row at `place`, and the place after it."""
        epoch, index = place.epoch, place.at
        chosen: list[_Labelled] = []
        left = self._settings.row_tokens
        while len(chosen) < _MOST_CONTEXTS:
            reading = self.reading(epoch, index)
            if reading is not None:
                context = context_of(self._student.prompt, reading, full=False)
                if island_length(context) > left:
                    break
                chosen.append(self._labelled(reading, context))
                left -= len(chosen[-1].island.ids)
            epoch, index = (epoch, index + 1) if index + 1 < len(self._samples) else (epoch + 1, 0)
        return _joined(chosen, self._settings.row_tokens), Place(place.row + 1, epoch, index)

    def reading(self, epoch: int, position: int) -> Reading | None:
        """Return the sample at `position` of an epoch's order among distractors; None if it does not fit a row."""
        index = self._order(epoch)[position]
        sample, settings = self._samples[index], self._settings
        rng = random.Random(f"{settings.seed}/{epoch}/{index}")
        qas = rng.sample(sample.qas, min(len(sample.qas), settings.questions))
        wanted = rng.randint(min(1, settings.distractors), settings.distractors)
        drawn = self._pool.draw(sample.chunks, [qa.answer for qa in qas if qa.answer], rng)
        texts = [*sample.chunks, *(text for _, text in zip(range(wanted), drawn, strict=False))]
        order = list(range(len(texts)))
        rng.shuffle(order)
        questions = [qa.question for qa in qas]
        while questions:
            reading = Reading(tuple(texts[number] for number in order), tuple(questions))
            if self._fits(reading):
                return reading
            if len(order) > len(sample.chunks):
                order.remove(len(order) - 1)
            else:
                questions.pop()
        return None

    def _fits(self, reading: Reading) -> bool:
        models = (self._student, self._teacher.model)
        own, other = (context_of(model.prompt, reading, full=False) for model in models)
        within = all(_within(model, context) for model, context in zip(models, (own, other), strict=True))
        return within and island_length(own) <= self._settings.row_tokens

    def _labelled(self, reading: Reading, context: Context) -> _Labelled:
        prompt = self._student.prompt
        island = build_island(context)
        is_text = [span is not None for spans in text_spans(prompt, reading.texts) for span in spans]
        shares = self._teacher.shares(prompt, reading)
        return _Labelled(island, mean_matrix(context.asked), chunk_tokens(island)[is_text], shares)

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self._samples)))
        random.Random(f"{self._settings.seed}/order/{epoch}").shuffle(order)
        return order


def _within(model: LanguageModel, context: Context) -> bool:
    fits = sum(map(len, context.chunks)) <= model.prompt.context_tokens or len(context.chunks) == 1
    return fits and positions_needed(context) <= model.spec.max_context


def _joined(labelled: Sequence[_Labelled], length: int) -> LabelledRow:
    """Put islands into one row; a question's shares are 0 on the texts of other islands."""
    starts = np.cumsum([0, *(len(one.island.ids) for one in labelled)])
    return LabelledRow(
        build_row([one.island for one in labelled], length),
        _diagonal([one.means for one in labelled]),
        np.concatenate([one.tokens + start for one, start in zip(labelled, starts, strict=False)]),
        _diagonal([one.shares for one in labelled]),
    )


def _diagonal(blocks: Sequence[Shares]) -> Shares:
    """Matrix with these blocks on its diagonal."""
    matrix = np.zeros((sum(len(block) for block in blocks), sum(block.shape[1] for block in blocks)), np.float32)
    row = column = 0
    for block in blocks:
        matrix[row : row + len(block), column : column + block.shape[1]] = block
        row, column = row + len(block), column + block.shape[1]
    return matrix
