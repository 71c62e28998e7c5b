"""Lines of a document with what may be asked of them, and the templates that both are filled from.

A template's fields are filled by name with values that were drawn before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

Asked = tuple[str, str]
"""A question and its answer."""
Wording = str | tuple[str, ...]
"""A template, or several of which one is drawn. A single one draws nothing, a tuple of one does."""


@dataclass(frozen=True, slots=True)
class Query:
    """A question for a value."""

    wording: Wording
    answer: str
    """A template too."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A statement, and questions about it."""

    wording: Wording
    queries: tuple[Query, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a document."""

    text: str
    asked: tuple[Asked, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """Lines under a title: what becomes one chunk or two."""

    title: str
    lines: tuple[Line, ...]


def say(rng: Random, wording: Wording, values: Mapping[str, str]) -> str:
    """A wording with the values in it; KeyError if a field has none."""
    template = wording if isinstance(wording, str) else rng.choice(wording)
    return template.format_map(values)


def tell(rng: Random, fact: Fact, values: Mapping[str, str]) -> Line:
    """A fact as a line: first its wording is drawn, then that of each query in order."""
    text = say(rng, fact.wording, values)
    pairs = tuple((say(rng, query.wording, values), query.answer.format_map(values)) for query in fact.queries)
    return Line(text, pairs)
