"""Measure losses on held-out contexts, in both kinds of attention, and on general text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from desk_rag.finetune.masked import loss_of, to_batch
from desk_rag.finetune.rows import Context, Island, build_island, build_row, text_island
from desk_rag.finetune.stream import RowStream
from desk_rag.model.language_model import LanguageModel

_WINDOW = 512
"""Tokens of general text that are read at a time."""
_MOST_WINDOWS = 128
"""Drawn evenly from all texts. The change of 65 windows of two texts was known to 0.12 %, their loss itself to 3 %
(`change_error` pairs them); what more windows add is texts."""
NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True)
class Probe:
    """Mean negative log likelihoods in nats per token; None where there was nothing to measure."""

    contexts: int
    independent: float | None
    """Answers, chunks prefilled apart."""
    full: float | None
    """The same answers under full attention."""
    text_tokens: int
    text: float | None
    """General text."""
    text_nats: tuple[float, ...] = ()
    """Loss of each window of general text, summed over its tokens, in the order of the texts."""


def held_out_contexts(stream: RowStream, count: int, samples: int) -> list[tuple[Context, Context]]:
    """The first contexts of a stream over held-out samples, each (independent, full)."""
    pairs: list[tuple[Context, Context]] = []
    for number in range(samples):
        if len(pairs) == count:
            break
        one, other = stream.context(0, number, full=False), stream.context(0, number, full=True)
        # Copies of the prefix take room: less may fit in one way than in the other, and that cannot be compared.
        if one is not None and other is not None and (one.chunks, one.asked) == (other.chunks, other.asked):
            pairs.append((one, other))
    return pairs


def probe(model: LanguageModel, contexts: Sequence[tuple[Context, Context]], texts: Sequence[str]) -> Probe:
    """Measure a model in eval mode, as it is."""
    islands = [_windows(model, text) for text in texts]
    windows = _evenly([window for group in islands for window in group])
    nats, text = _losses(model, windows)
    return Probe(
        contexts=len(contexts),
        independent=_losses(model, [build_island(one) for one, _ in contexts])[1],
        full=_losses(model, [build_island(other) for _, other in contexts])[1],
        text_tokens=sum(len(window.ids) - 1 for window in windows),
        text=text,
        text_nats=nats,
    )


def change_percent(before: float | None, after: float | None) -> float | None:
    """Return by how much a loss rose, in percent of what it was."""
    if before is None or after is None:
        return None
    return 100 * (after - before) / before


def change_error(before: Sequence[float], after: Sequence[float]) -> float | None:
    """Half of the 95 % interval of a change in percent, from the nats of the same windows before and after.

    Texts differ much more from each other than one text does from before to after, and the pairs know that. None where
    the windows are not the same ones, or fewer than two. (Variance of a ratio of sums: Cochran, Sampling Techniques,
    3rd edition 1977, section 2.11.)
    """
    count, whole = len(before), sum(before)
    if count < 2 or len(after) != count or not whole > 0:
        return None
    ratio = (sum(after) - whole) / whole
    rest = sum((now - was - ratio * was) ** 2 for was, now in zip(before, after, strict=True))
    return 100 * NORMAL_95 * math.sqrt(rest * count / (count - 1)) / whole


def _evenly(windows: list[Island]) -> list[Island]:
    """Draw at most `_MOST_WINDOWS` at equal distances, so that every text is represented."""
    count = min(len(windows), _MOST_WINDOWS)
    return [windows[number * len(windows) // count] for number in range(count)]


def _windows(model: LanguageModel, text: str) -> list[Island]:
    size = min(_WINDOW, model.spec.max_context)
    ids = model.prompt.answer_ids(text)[:-1]
    pieces = [ids[start : start + size] for start in range(0, len(ids), size)]
    return [text_island(piece) for piece in pieces if len(piece) > 1]


def _losses(model: LanguageModel, islands: Sequence[Island]) -> tuple[tuple[float, ...], float | None]:
    """Nats of each island, and the mean per counted token."""
    nats, weight = [], 0.0
    with torch.inference_mode():
        for island in islands:
            batch = to_batch([build_row([island], len(island.ids))], model.device)
            loss = loss_of(model.module, batch)
            nats.append(float(loss.total))
            weight += loss.weight
    mean = sum(nats) / weight if weight else math.nan
    return tuple(nats), mean if math.isfinite(mean) else None
