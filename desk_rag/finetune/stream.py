"""Turn samples into an endless stream of rows whose position is two numbers, so that it can be resumed.

Each context depends on the seed, the epoch and its sample alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from desk_rag.errors import ConfigError
from desk_rag.finetune.data import QA, Sample, target
from desk_rag.finetune.distract import Distractors
from desk_rag.finetune.rows import (
    Asked,
    Context,
    Island,
    Row,
    build_island,
    build_row,
    island_length,
    positions_needed,
    text_island,
)
from desk_rag.finetune.settings import TrainSettings
from desk_rag.model.prompt import PromptFormat

_MOST_CONTEXTS = 64
"""Maximum contexts per row, however short they are."""


@dataclass(frozen=True, slots=True)
class Place:
    """Position of the stream."""

    row: int = 0
    """Rows given out."""
    epoch: int = 0
    at: int = 0
    """Samples of this epoch's order that were used or passed over."""


class RowStream:
    """Rows of `settings.row_tokens` tokens. `row` may be called from any thread; it remembers nothing of the walk."""

    def __init__(
        self,
        samples: Sequence[Sample],
        prompt: PromptFormat,
        settings: TrainSettings,
        *,
        max_context: int,
        replay: Sequence[str] = (),
    ) -> None:
        self._samples = tuple(samples)
        self._prompt = prompt
        self._settings = settings
        self._prefix = tuple(prompt.prefix_ids)
        self._positions = max_context
        self._budget = prompt.context_tokens
        self._pool = Distractors([chunk for sample in samples for chunk in sample.chunks])
        self._replay = tuple(text for text in replay if len(text) > 1)
        self._shuffled: tuple[int, list[int]] = (-1, [])
        self._check()

    def row(self, place: Place) -> tuple[Row, Place]:
        """The row at `place`, and the place after it."""
        rng = random.Random(f"{self._settings.seed}/row/{place.row}")
        if self._replay and rng.random() < self._settings.replay_share:
            return self._text_row(rng), Place(place.row + 1, place.epoch, place.at)
        epoch, index = place.epoch, place.at
        islands: list[Island] = []
        left = self._settings.row_tokens
        while len(islands) < _MOST_CONTEXTS:
            island = self._island(epoch, index)
            if island is not None and len(island.ids) > left:
                break
            if island is not None:
                islands.append(island)
                left -= len(island.ids)
            epoch, index = (epoch, index + 1) if index + 1 < len(self._samples) else (epoch + 1, 0)
        return build_row(islands, self._settings.row_tokens), Place(place.row + 1, epoch, index)

    def context(self, epoch: int, position: int, *, full: bool | None = None) -> Context | None:
        """The context of the `at`-th sample in an epoch's order; None if not even one question fits a row.

        `full` overrules the draw, for comparing both kinds of attention on the same contexts.
        """
        index = self._order(epoch)[position]
        sample = self._samples[index]
        rng = random.Random(f"{self._settings.seed}/{epoch}/{index}")
        drawn = rng.random() < self._settings.full_share
        refuse = rng.random() < self._settings.refuse_share
        qas = rng.sample(sample.qas, min(len(sample.qas), self._settings.questions))
        own = () if refuse else tuple(self._chunk(chunk) for chunk in sample.chunks)
        answers = [qa.answer for qa in qas if qa.answer]
        others = self._distractors(sample, answers, rng)
        if refuse and not others:  # a pool of one: there is nothing else to read
            refuse, own = False, tuple(self._chunk(chunk) for chunk in sample.chunks)
        questions = [self._asked(QA(qa.question, None) if refuse else qa) for qa in qas]
        return self._fitting(own, others, questions, drawn if full is None else full, rng)

    def _fitting(
        self, own: tuple[tuple[int, ...], ...], others: list[tuple[int, ...]], asked: list[Asked], full: bool,
        rng: random.Random,
    ) -> Context | None:  # fmt: skip
        """The context, less what does not fit: questions go first while there are more than two, then distractors."""
        keep = [*own, *others]
        order = list(range(len(keep)))
        rng.shuffle(order)
        while asked and keep:
            chunks = tuple(keep[index] for index in order)
            context = Context(self._prefix, chunks, tuple(asked), full)
            within = sum(map(len, chunks)) <= self._budget or len(keep) == max(1, len(own))
            if within and self._fits(context):
                return context
            if len(asked) > 2 and within:
                asked.pop()
            elif len(keep) > max(1, len(own)):
                order.remove(len(keep) - 1)
                keep.pop()
            else:
                asked.pop()
        return None

    def _fits(self, context: Context) -> bool:
        return (
            island_length(context) <= self._settings.row_tokens
            and positions_needed(context) <= self._positions
        )

    def _distractors(self, sample: Sample, answers: Sequence[str], rng: random.Random) -> list[tuple[int, ...]]:
        wanted = rng.randint(min(1, self._settings.distractors), self._settings.distractors)
        drawn = self._pool.draw(sample.chunks, answers, rng)
        return [self._chunk(text) for _, text in zip(range(wanted), drawn, strict=False)]

    def _chunk(self, text: str) -> tuple[int, ...]:
        return tuple(self._prompt.chunk_ids(text))

    def _asked(self, qa: QA) -> Asked:
        answer = self._prompt.answer_ids(target(qa))
        return Asked(tuple(self._prompt.question_ids(qa.question)), tuple(answer))

    def _island(self, epoch: int, at: int) -> Island | None:
        context = self.context(epoch, at)
        return None if context is None else build_island(context)

    def _text_row(self, rng: random.Random) -> Row:
        ids: list[int] = []
        length = min(self._settings.row_tokens, self._positions)
        while len(ids) < length:
            text = rng.choice(self._replay)
            # A text longer than a row is gone on with from anywhere, or only its beginning would ever be read.
            start = rng.randrange(len(text)) if len(text) > length else 0
            # No token is shorter than a byte, and few are longer than 16 characters.
            piece = text[start : start + 16 * length]
            answer_ids = self._prompt.answer_ids(piece)
            ids += answer_ids if start + len(piece) == len(text) else answer_ids[:-1]
        return build_row([text_island(ids[:length])], self._settings.row_tokens)

    def _order(self, epoch: int) -> list[int]:
        known, order = self._shuffled
        if known != epoch:
            order = list(range(len(self._samples)))
            random.Random(f"{self._settings.seed}/order/{epoch}").shuffle(order)
            self._shuffled = (epoch, order)
        return order

    def _check(self) -> None:
        """Raise ConfigError if no sample at all fits: the stream would never give a row."""
        if not any(self.context(0, number) for number in range(len(self._samples))):
            raise ConfigError(
                f"Not one of {len(self._samples)} samples fits into a row of {self._settings.row_tokens} tokens.",
                remedy="Use longer rows (--row-tokens) or shorter chunks.",
            )
