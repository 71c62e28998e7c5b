"""Needles in a haystack, made here and by a seed: the eight retrieval tasks of RULER at any length.

The tasks are those of RULER (arXiv 2404.06654, section 3 and table of task configurations): what the hay is, what keys
and values are made of, how many needles stand in it and how many are asked for. Sentences and word lists are our own. A
needle is never cut by a chunk's edge.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from desk_rag.bench.answer_quality.data.distractors import TokenCount
from desk_rag.bench.answer_quality.data.sample import Sample


class Hay(Enum):
    """Kind of text around the needles."""

    NOISE = "the same few sentences over and over"
    ESSAY = "running text"
    NEEDLES = "needles that nobody asks for"


class Kind(Enum):
    """Kind of a key or a value."""

    WORDS = "name"
    NUMBER = "number"
    UUID = "identifier"


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the eight tasks."""

    hay: Hay
    keys: Kind
    values: Kind
    num_keys: int = 1
    """Needles with different keys."""
    num_values: int = 1
    """Values under each key that is asked for."""
    num_asked: int = 1
    """Keys that are asked for."""


VARIANTS = {
    "single_1": Variant(Hay.NOISE, Kind.WORDS, Kind.NUMBER),
    "single_2": Variant(Hay.ESSAY, Kind.WORDS, Kind.NUMBER),
    "single_3": Variant(Hay.ESSAY, Kind.WORDS, Kind.UUID),
    "multikey_1": Variant(Hay.ESSAY, Kind.WORDS, Kind.NUMBER, num_keys=4),
    "multikey_2": Variant(Hay.NEEDLES, Kind.WORDS, Kind.NUMBER),
    "multikey_3": Variant(Hay.NEEDLES, Kind.UUID, Kind.UUID),
    "multivalue": Variant(Hay.ESSAY, Kind.WORDS, Kind.NUMBER, num_values=4),
    "multiquery": Variant(Hay.ESSAY, Kind.WORDS, Kind.NUMBER, num_keys=4, num_asked=4),
}

_NOISE = (
    "Clouds pass over the hill.", "Water runs under the bridge.", "A gate stands open by the road.",
    "The field lies still.", "Nothing more happens here.",
)  # fmt: skip
_FIRST = (
    "amber", "ancient", "brisk", "bronze", "calm", "candid", "careful", "clever", "cobalt", "crisp", "distant", "early",
    "eager", "faded", "fearless", "gentle", "golden", "hidden", "hollow", "humble", "ivory", "jolly", "keen", "lively",
    "lonely", "mellow", "modest", "narrow", "nimble", "northern", "odd", "patient", "polite", "proud", "quiet", "rapid",
    "restless", "rusty", "scarlet", "silent", "silver", "sleepy", "solemn", "steady", "stormy", "sturdy", "tender",
    "timid", "velvet", "vivid", "wandering", "windy", "woven", "young",
)  # fmt: skip
_SECOND = (
    "anchor", "badger", "basket", "beacon", "bicycle", "blanket", "bottle", "bridge", "button", "candle", "canyon",
    "carpet", "castle", "chimney", "compass", "cottage", "cricket", "curtain", "drum", "engine", "falcon", "feather",
    "ferry", "fiddle", "forest", "garden", "goblet", "hammer", "harbour", "hazel", "island", "jacket", "kettle",
    "ladder", "lantern", "lemon", "letter", "magnet", "marble", "meadow", "mirror", "mountain", "needle", "notebook",
    "orchard", "otter", "paddle", "pebble", "pencil", "pepper", "pigeon", "pillow", "planet", "pocket", "puzzle",
    "rabbit", "ribbon", "river", "saddle", "saucer", "shovel", "spindle", "statue", "thimble", "ticket", "trumpet",
    "tunnel", "umbrella", "valley", "violin", "wagon", "walnut", "whistle", "window",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Haystack:
    """Settings of a task's samples."""

    tokens: int
    """Tokens of all chunks together, frames excluded; reached within one sentence."""
    chunk_tokens: int
    essay: Sequence[str] = ()
    """Sentences of running text, for the tasks that want it; repeated where they do not suffice."""


def niah_samples(names: Sequence[str], haystack: Haystack, count: TokenCount, number: int, seed: int) -> list[Sample]:
    """`number` samples of each named variant. The same arguments give the same samples, on any machine."""
    assert all(name in VARIANTS for name in names), "the command line checks the names"
    known: dict[str, int] = {}

    def counted(text: str) -> int:
        if text not in known:
            known[text] = count(text)
        return known[text]

    return [
        _sample(name, VARIANTS[name], haystack, counted, random.Random(f"{seed}|{name}|{haystack.tokens}|{index}"))
        for name in names
        for index in range(number)
    ]


def _sample(name: str, variant: Variant, haystack: Haystack, count: TokenCount, draw: random.Random) -> Sample:
    keys = _distinct(variant.keys, variant.num_keys, draw, set())
    values = _distinct(variant.values, variant.num_keys * variant.num_values, draw, set())
    pairs = [(key, values[index]) for index, key in enumerate(keys * variant.num_values)]
    chosen_keys = draw.sample(keys, variant.num_asked)
    needles = [_needle(variant, key, value) for key, value in pairs]
    room = haystack.tokens - sum(count(needle) for needle in needles)
    hay = _hay(variant, haystack, count, draw, room, set(keys), set(values))
    lines = _hidden(needles, hay, draw)
    contexts = _chunks(lines, haystack.chunk_tokens, count)
    wanted = [(key, value) for key, value in pairs if key in chosen_keys]
    proof = tuple(_needle(variant, key, value) for key, value in wanted)
    gold = tuple(i for i, text in enumerate(contexts) if any(needle in text for needle in proof))
    answers = tuple((value,) for _, value in wanted)
    return Sample(_question(variant, chosen_keys), answers, tuple(contexts), f"niah-{name}", gold)


def _needle(variant: Variant, key: str, value: str) -> str:
    return f"The secret {variant.values.value} of {key} is {value}."


def _question(variant: Variant, asked: Sequence[str]) -> str:
    listed = asked[0] if len(asked) == 1 else f"{', '.join(asked[:-1])} and {asked[-1]}"
    if variant.num_asked * variant.num_values == 1:
        return f"What is the secret {variant.values.value} of {listed}?"
    return f"What are all the secret {variant.values.value}s of {listed}?"


def _hay(
    variant: Variant, haystack: Haystack, count: TokenCount, draw: random.Random, room: int, keys: set[str],
    values: set[str],
) -> list[str]:  # fmt: skip
    """Sentences until `room` tokens are used up."""
    make = _hay_maker(variant, haystack, draw, keys, values)
    lines: list[str] = []
    while room > 0:
        line = make(len(lines))
        lines.append(line)
        room -= max(count(line), 1)
    return lines


def _hay_maker(
    variant: Variant, haystack: Haystack, draw: random.Random, keys: set[str], values: set[str]
) -> Callable[[int], str]:
    if variant.hay is Hay.NOISE:
        return lambda index: _NOISE[index % len(_NOISE)]
    if variant.hay is Hay.ESSAY:
        essay = haystack.essay
        assert essay, "this variant wants running text"
        start = draw.randrange(len(essay))
        return lambda index: essay[(start + index) % len(essay)]

    def other(_: int) -> str:
        key = _distinct(variant.keys, 1, draw, keys)[0]
        return _needle(variant, key, _distinct(variant.values, 1, draw, values)[0])

    return other


def _hidden(needles: Sequence[str], hay: list[str], draw: random.Random) -> list[str]:
    """Needles at depths spread over the hay, each somewhere within its stretch."""
    order = draw.sample(list(needles), len(needles))
    lines = list(hay)
    for index in range(len(order) - 1, -1, -1):
        low, high = (len(hay) * edge // len(order) for edge in (index, index + 1))
        lines.insert(draw.randint(low, max(low, high)), order[index])
    return lines


def _chunks(lines: Sequence[str], most: int, count: TokenCount) -> list[str]:
    chunks: list[list[str]] = [[]]
    used = 0
    for line in lines:
        size = count(line)
        if chunks[-1] and used + size > most:
            chunks.append([])
            used = 0
        chunks[-1].append(line)
        used += size
    return [" ".join(chunk) for chunk in chunks]


def _distinct(kind: Kind, number: int, draw: random.Random, taken: set[str]) -> list[str]:
    """`number` keys or values that are not in `taken`, which grows by them."""
    values: list[str] = []
    while len(values) < number:
        one = _random_value(kind, draw)
        if one not in taken:
            taken.add(one)
            values.append(one)
    return values


def _random_value(kind: Kind, draw: random.Random) -> str:
    if kind is Kind.NUMBER:
        return str(draw.randint(1_000_000, 9_999_999))
    if kind is Kind.UUID:
        return str(uuid.UUID(int=draw.getrandbits(128), version=4))
    # Pairs give 4,000 keys; the number keeps them apart in haystacks that are longer than that.
    pair = f"{draw.choice(_FIRST)}-{draw.choice(_SECOND)}"
    return pair if draw.random() < 0.9 else f"{pair}-{draw.randint(2, 99)}"
