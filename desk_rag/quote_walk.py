"""Which sentence an answer quotes: what the model would write and how near that is to the question, weighed together.

Knows the sentences of one answer's chunks, a model's passes and vectors; knows no file, no citation and no screen.

The reader copies its quotes well and chooses them less well: it decides at a quote's first words, before it has seen
where they lead. So the quote is walked down the tree of all sentences that could be quoted. At every fork a branch is
worth its token's log-probability plus `weight` times the highest cosine of question and sentence below it; where two
are close, the model first reads a few tokens into each. What is left without a fork is laid in one pass, so a quote
costs three passes instead of forty, and it is the source's wording. On 215 questions that nothing here was fitted on,
over five chunks, F1 rises from 53.6 to 60.5, and the answer is in the output in 79 instead of 68 of 100.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from desk_rag.kv.passes import Pass
from desk_rag.prompt import PromptFormat
from desk_rag.sentence_vectors import Vectors
from desk_rag.sentences import quotable

_MOST_WORDS = 60
"""Of a quote that the reader was taught. Of longer units only the beginning is chosen; where they end it decides."""
_BEGINNING = 12


@dataclass(frozen=True, slots=True)
class Rule:
    """How quotes are chosen. Fitted on questions about other passages than those above."""

    weight: float = 25.0
    """Nats that a cosine of 1 is worth; 20 to 30 are equally good."""
    gate: float = 6.0
    """Nats up to the first word by which a sentence may fall short of the best, and still be embedded."""
    margin: float = 3.0
    """Branches closer than this are looked into."""
    looks: int = 3
    """At most so many of them."""
    ahead: int = 5
    """Tokens behind the fork."""


@dataclass(frozen=True, slots=True)
class Laid:
    """What now stands in the cache behind the question."""

    token_ids: tuple[int, ...]
    logits: torch.Tensor
    """[vocab] behind the last of them, valid until the next pass."""


@dataclass(frozen=True, slots=True)
class _Unit:
    text: str
    ids: tuple[int, ...]


class QuoteChooser:
    """Chooses for one model with one embedder; what it has embedded is remembered by `vectors`."""

    def __init__(self, prompt: PromptFormat, vectors: Vectors, rule: Rule = Rule()) -> None:
        self._prompt, self._vectors, self._rule = prompt, vectors, rule

    @property
    def name(self) -> str:
        """The rule in words, for whoever keeps answers apart by how they were made."""
        return str(self._rule)

    def choose(
        self, question: str, texts: Sequence[str], run: Pass, first: int, logits: torch.Tensor, start: int, room: int
    ) -> Laid | None:
        """Lay the quote that answers `question` from the chunks `texts`, at `start`; None where there is no choice.

        `first` is the token that the model begins with and has not read yet, `logits` [vocab] those it was chosen by.
        The quote begins with the same text; it has at most `room` tokens.
        """
        opening = self._prompt.decode([first])
        if not opening.startswith('"') or room < 2:
            return None
        units = self._units(texts, opening, room)
        if len(units) < 2:
            return None
        begun = _begin(run, units, _logs(logits), start, self._rule.gate)
        cosines = self._cosines(question, begun.units)
        return _Walk(run, start, self._rule, cosines).down(begun)

    def _units(self, texts: Sequence[str], opening: str, room: int) -> list[_Unit]:
        """By their ids, each once; cut to `room`."""
        found: dict[tuple[int, ...], str] = {}
        for text in dict.fromkeys(unit for chunk in texts for unit in quotable(chunk)):
            if f'"{text}'.startswith(opening):
                found.setdefault(self._ids(text, room), text)
        return [_Unit(text, ids) for ids, text in found.items() if len(ids) > 1]

    def _ids(self, text: str, room: int) -> tuple[int, ...]:
        words = text.split()
        whole = len(words) <= _MOST_WORDS
        return tuple(self._prompt.quote_ids(text if whole else " ".join(words[:_BEGINNING]), closed=whole)[:room])

    def _cosines(self, question: str, units: Sequence[_Unit]) -> Mapping[_Unit, float]:
        if len(units) < 2:
            return dict.fromkeys(units, 0.0)
        near = self._vectors.embed_chunks([unit.text for unit in units]) @ self._vectors.embed_question(question)
        return dict(zip(units, map(float, near), strict=True))


@dataclass(frozen=True, slots=True)
class _Begun:
    """The units that the model could begin with, and how far it has read."""

    units: tuple[_Unit, ...]
    read: tuple[int, ...]
    logs: torch.Tensor
    """Log-probabilities [vocab] behind `read`."""


def _begin(run: Pass, units: Sequence[_Unit], logs: torch.Tensor, start: int, gate: float) -> _Begun:
    """Which units are within `gate` nats of the best, up to the token behind the quotation mark.

    Several tokens may open a quote: the mark alone and, rarely, one that holds the first word as well.
    """
    worth: dict[_Unit, float] = {}
    read: tuple[int, ...] = ()
    behind, best = logs, -torch.inf
    for token in sorted({unit.ids[0] for unit in units}, key=lambda token: -float(logs[token])):
        if float(logs[token]) < best - gate:
            break
        run.rewind(len(read))
        read = (token,)
        behind = _logs(run.forward(read, start))
        worth |= {unit: float(logs[token] + behind[unit.ids[1]]) for unit in units if unit.ids[0] == token}
        best = max(worth.values())
    near = tuple(unit for unit, log in worth.items() if log >= best - gate)
    if {unit.ids[0] for unit in near} == set(read):
        return _Begun(near, read, behind)
    run.rewind(len(read))
    return _Begun(near, (), logs)


class _Walk:
    """Down the tree of units, from where `_begin` left off."""

    def __init__(self, run: Pass, start: int, rule: Rule, cosines: Mapping[_Unit, float]) -> None:
        self._run, self._start, self._rule, self._cosines = run, start, rule, cosines

    def down(self, begun: _Begun) -> Laid:
        """Lay one of the units whole."""
        live, depth, logs = begun.units, len(begun.read), begun.logs
        while True:
            live = self._branch(live, depth, logs)
            end = _common(live, depth + 1)
            logits = self._run.forward(live[0].ids[depth:end], self._start + depth)
            going_on = tuple(unit for unit in live if len(unit.ids) > end)
            if not going_on:
                return Laid(live[0].ids, logits)
            live, depth, logs = going_on, end, _logs(logits)

    def _branch(self, live: Sequence[_Unit], depth: int, logs: torch.Tensor) -> tuple[_Unit, ...]:
        """The units below the best child of this fork; the best of them first."""
        below: dict[int, list[_Unit]] = {}
        for unit in sorted(live, key=lambda unit: -self._cosines[unit]):
            below.setdefault(unit.ids[depth], []).append(unit)
        worth = {token: float(logs[token]) + self._gain(units[0]) for token, units in below.items()}
        best, *others = sorted(worth, key=lambda token: -worth[token])
        if others and worth[best] - worth[others[0]] < self._rule.margin and self._rule.ahead:
            near = [best, *others][: self._rule.looks]
            best = max(near, key=lambda token: worth[token] + self._ahead(below[token][0], depth))
        return tuple(below[best])

    def _gain(self, unit: _Unit) -> float:
        return self._rule.weight * self._cosines[unit]

    def _ahead(self, unit: _Unit, depth: int) -> float:
        """Log-probability of the tokens of `unit` behind the one at `depth`; leaves the cache as it was."""
        told = unit.ids[depth + 1 : depth + 1 + self._rule.ahead]
        if not told:
            return 0.0
        logits = self._run.forward_all(unit.ids[depth : depth + len(told)], self._start + depth)
        self._run.rewind(len(told))
        logs = logits.float().log_softmax(-1)
        return float(logs.gather(-1, torch.tensor(told, device=logs.device)[:, None]).sum())


def _common(units: Sequence[_Unit], depth: int) -> int:
    """How far all of them agree, at least to `depth`."""
    ids = units[0].ids
    shortest = min(len(unit.ids) for unit in units)
    while depth < shortest and all(unit.ids[depth] == ids[depth] for unit in units):
        depth += 1
    return depth


def _logs(logits: torch.Tensor) -> torch.Tensor:
    """Log-probabilities on the host, in memory of their own."""
    return logits.float().log_softmax(-1).cpu()
