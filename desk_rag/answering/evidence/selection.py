"""What an answer says: which sentence it quotes and which part of that it names, by two models together.

Knows the sentences of one answer's chunks, a reader's passes and the pointer; knows no file, no citation and no screen.

The reader copies well and chooses less well: it decides at a quote's first words, before it has seen where they lead,
and it learned the answers of its training questions by heart. So all sentences that could be quoted, and then the spans
of the one that is, are weighed by the reader's log-probability and by the pointer (`evidence.trie_decoding`), and laid.
Whether a second quote follows or the quote is the answer, the reader says; and whether there is an answer at all,
unless it finds none where the pointer is sure of one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from desk_rag.answering.evidence.quote_matching import DOUBLE_QUOTES
from desk_rag.answering.evidence.span_scorer import Field, Reads
from desk_rag.answering.evidence.trie_decoding import Branch, Forks, Laid, TreeWalk, log_probabilities
from desk_rag.documents.sentences import quotable
from desk_rag.kv.forward.runner import Pass
from desk_rag.model.prompt import PromptFormat

_MOST_WORDS = 60
"""Of a quote that the reader was taught. Of longer units only the beginning is chosen; where they end it decides."""
_BEGINNING = 12
_MOST_TOKENS = 512
"""Of a quote where only its first is asked for: more than any has, lest one be cut to be another's twin."""
_SPANS = 12
"""Of a quote, weighed as short answers."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How words are chosen."""

    weight: float = 3.0
    """Nats that one of the pointer is worth among sentences; from 2 to 4 F1 changes by less than 2 points."""
    answer: float = 3.0
    """The same among spans; from 1.5 to 6 by less than 1.5."""
    floor: float = -4.0
    """What the pointer says below this counts as this: where it finds nothing it is no help in telling one from
    another. Neither -8 nor -30 said anything else in 326 questions about prose, desk documents, code and tables."""
    objection: float = 4.0
    """What the pointer must say of a sentence for something to be quoted although the reader finds no answer. That has
    read little code and few tables: of 31 questions about such files that it refused by mistake 12 are answered
    rightly for it, of 31 that it rightly refused 3 are answered, with the judge (`grounding`) behind it. Of the 434 of
    2,040 about prose and desk documents that it refused, 3 of 89 and 2 of 345."""
    forks: Forks = Forks()


@dataclass(frozen=True, slots=True)
class Quoted:
    """A quote that is laid."""

    laid: Laid
    answer: Callable[[], Laid | None]
    """Lays a short answer behind it, if nothing else was meanwhile: what it returns holds the quote as well and ends
    with an id that ends answers, unless there was no room. None, and nothing laid, where the reader would rather end
    there or quote again."""


@dataclass(frozen=True, slots=True)
class _Unit:
    text: str
    ids: tuple[int, ...]
    whole: bool
    """False where `ids` are its beginning alone."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a unit stands, if in several chunks where it is worth most."""

    field: Field
    chunk: str
    begin: int
    end: int

    @property
    def worth(self) -> float:
        return self.field.worth(self.begin, self.end)


class QuoteChooser:
    """Chooses for one reader with one pointer."""

    def __init__(self, prompt: PromptFormat, pointer: Reads, rule: Rule = Rule()) -> None:
        self._prompt, self._pointer, self._rule = prompt, pointer, rule

    @property
    def name(self) -> str:
        """The rule in words, for whoever keeps answers apart by how they were made."""
        return f"{self._rule}, {self._pointer.fingerprint}"

    def opening(self, question: str, texts: Sequence[str], first: int) -> int:
        """The token that an answer begins with: `first`, unless the reader begins to say that it found none and the
        pointer is sure of a sentence: then that with which its quote begins. Which one is quoted `choose` weighs."""
        if first != self._prompt.no_answer_ids()[0]:
            return first
        units = self._units(texts, '"', room=_MOST_TOKENS)
        if not units:
            return first
        places = self._places(question, texts, units)
        best = max(units, key=lambda unit: places[unit].worth)
        return best.ids[0] if places[best].worth >= self._rule.objection else first

    def choose(
        self, question: str, texts: Sequence[str], run: Pass, first: int, logits: torch.Tensor, start: int, room: int
    ) -> Quoted | None:
        """Lay a quote that answers `question` from the chunks `texts`, at `start`; None where there is none to lay.

        `first` is the token that the model begins with and has not read yet, `logits` [vocab] those it was chosen by.
        What is laid begins with the same text; with the answer behind it it has at most `room` tokens.
        """
        opening = self._prompt.decode([first])
        if not opening.startswith('"') or room < 2:
            return None
        units = self._units(texts, opening, room)
        if not units:
            return None
        places = self._places(question, texts, units)
        tree = TreeWalk(run, self._rule.forks, self._prompt.stop_ids)
        branches = [Branch(unit.ids, self._gain(self._rule.weight, places[unit].worth)) for unit in units]
        quote = tree.down(branches, log_probabilities(logits), start)
        (chosen,) = (unit for unit in units if unit.ids == quote.token_ids)
        return Quoted(quote, partial(self._answered, tree, quote, chosen, places[chosen], start, room))

    def _answered(
        self, tree: TreeWalk, quote: Laid, chosen: _Unit, place: _Place, start: int, room: int
    ) -> Laid | None:
        """The quote and a short answer behind it, laid; None where the reader would rather end or quote again."""
        best = int(quote.logits.argmax())
        if not chosen.whole or best in self._prompt.stop_ids or self._prompt.decode([best])[:1] in DOUBLE_QUOTES:
            return None
        left = room - len(quote.token_ids)
        found: dict[tuple[int, ...], Branch] = {}
        for span in place.field.best(place.begin, place.end, _SPANS):
            ids = tuple(self._prompt.answer_ids(place.chunk[span.begin : span.end]))[:left]
            if ids:  # cut like a quote: a shorter span that fits would be another answer, told as if it were whole
                found.setdefault(ids, Branch(ids, self._gain(self._rule.answer, span.score)))
        if not found:
            return None
        logs = log_probabilities(quote.logits)
        answer = tree.down(list(found.values()), logs, start + len(quote.token_ids))
        return Laid((*quote.token_ids, *answer.token_ids), answer.logits)

    def _gain(self, weight: float, worth: float) -> float:
        return weight * max(worth, self._rule.floor)

    def _units(self, texts: Sequence[str], opening: str, room: int) -> list[_Unit]:
        """By their ids, each once; cut to `room`."""
        found: dict[tuple[int, ...], _Unit] = {}
        every = dict.fromkeys(unit for chunk in texts for unit in quotable(chunk))
        words = {text: text.split() for text in every if f'"{text}'.startswith(opening)}
        for text in words:
            unit = self._unit(text, words, room)
            found.setdefault(unit.ids, unit)
        return [unit for unit in found.values() if len(unit.ids) > 1]

    def _unit(self, text: str, every: Mapping[str, Sequence[str]], room: int) -> _Unit:
        words = every[text]
        whole = len(words) <= _MOST_WORDS
        told = text if whole else " ".join(words[: _own_beginning(text, every)])
        ids = self._prompt.quote_ids(told, closed=whole)
        return _Unit(text, tuple(ids[:room]), whole and len(ids) <= room)

    def _places(self, question: str, texts: Sequence[str], units: Sequence[_Unit]) -> dict[_Unit, _Place]:
        different = list(dict.fromkeys(texts))
        read = dict(zip(different, self._pointer.read(question, different), strict=True))
        return {unit: max(_all_places(unit.text, read), key=lambda place: place.worth) for unit in units}


def _own_beginning(text: str, every: Mapping[str, Sequence[str]]) -> int:
    """How many words tell a long unit from the others: contracts begin every clause alike."""
    words, count = every[text], _BEGINNING
    others = [other for name, other in every.items() if name != text]
    while count < len(words) and any(other[:count] == words[:count] for other in others):
        count += 1
    return count


def _all_places(unit: str, read: dict[str, Field]) -> list[_Place]:
    """Every one of a chunk, too: 'hours = 6' stands within 'most_hours = 60', where it is not what is said."""
    found = [(text, match.span()) for text in read for match in re.finditer(re.escape(unit), text)]
    return [_Place(read[text], text, *span) for text, span in found]
