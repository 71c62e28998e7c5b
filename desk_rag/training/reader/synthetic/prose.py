"""Questions made by rule over a sentence of prose: its end, a part of it, its words, a word's meaning.

Also questions as people type them. Every question comes with its answer in the trained form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from random import Random
from typing import NamedTuple

from desk_rag.training.reader.data.frame import STOP_WORDS, answer_text, content_words
from desk_rag.training.reader.synthetic.templates import Asked

Entry = tuple[Sequence[str], str]
"""A word's synonyms and its meaning; either may be empty."""
Synonyms = Mapping[str, Entry]

_NAME = re.compile(
    r"\b(?:[A-Z][a-zA-Z\-]+)(?:\s+(?:of|the|de|and|von|van)\s+(?=[A-Z])|\s+(?=[A-Z]))?(?:[A-Z][a-zA-Z\-]+\s*){0,4}"
)
_NUMBER = re.compile(r"\$?\b\d[\d,\.]*\d\b%?|\b\d\b%?")
_YEAR = re.compile(r"\b(1[0-9]{3}|20[0-4][0-9])\b")
_WORD = re.compile(r"[A-Za-z][A-Za-z\-']+|\d[\d,\.]*")
_NOUN = re.compile(
    r"\b(?:the|a|an|by|of|to|called|as|for|with|in|using)\s+((?:[a-z\-]+\s){0,2}[a-z\-]{4,})"
    r"(?=[,.;:)]|\s(?:and|or|of|in|that|which|is|are|was|were|to|for|with)\b)"
)
_PLAIN_WORD = re.compile(r"\b[a-z]{4,}\b")
_CLAUSE_END = re.compile(r"[,;:]\s+")
_SHORTEST, _LONGEST = 6, 60
"""Words of a sentence that something is asked about."""
_LONGEST_FOR_KEYWORDS = 45
_BLANK = " _____ "


class Kind(Enum):
    """Part of a sentence; the value is the question word for it."""

    YEAR = ("When", "In what year", "Which year")
    NUMBER = ("How many", "How much", "What number")
    NAME = ("Who", "What", "Which", "Where")
    NOUN = ("What", "Which thing", "What kind of thing")


class Part(NamedTuple):
    """Characters `start` to `end` of a sentence."""

    start: int
    end: int
    kind: Kind


_FOR_MEANING = ("What is mentioned that means: {}?", "Which word stands for {}?", "{}", "What is called {}?")
_FOR_END = ("Complete the sentence: {}", "Finish this sentence: {} ...", "How does this sentence end: {}")
_FOR_BLANK = ("Fill in the blank: {}", "What goes in the blank? {}", "{}")
_FOR_KEYWORDS = (
    "What do the documents say about {}?",
    "Tell me about {}.",
    "{}",
    "Explain {}.",
    "What is said about {}?",
    "Find the sentence about {}.",
)
_KEEPS_WORDS = ("Complete", "Finish", "How does this")
"""Beginnings of questions that would be spoilt by other words."""
_ENDINGS = (
    ("", ("",), ""),
    ("ies", ("y",), "s"),
    ("s", ("",), "s"),
    ("ed", ("", "e"), "ed"),
    ("ing", ("", "e"), "ing"),
)
"""An ending, what stands in its place in the table of synonyms, and what the synonym gets."""


def overlap(first: str, second: str) -> int:
    """Number of content words that two texts share."""
    return len(content_words(first) & content_words(second))


def make_question(synonyms: Synonyms, rng: Random, sentence: str) -> Asked | None:
    """A question about one declarative sentence, and its answer; None if none can be made."""
    if rng.random() < 0.07:
        pair = _for_meaning(synonyms, rng, sentence)
        if pair:
            return pair
    pair = _question(rng, sentence)
    if pair and not pair[0].startswith(_KEEPS_WORDS) and rng.random() < 0.6:
        return synonymise(synonyms, rng, pair[0], 0.35), pair[1]
    return pair


def noisy_question(synonyms: Synonyms, rng: Random, question: str) -> str:
    """A question as people type: sometimes in other words, in lower case, without its question mark or one word."""
    if rng.random() < 0.2:
        question = synonymise(synonyms, rng, question, 0.2)
    draw = rng.random()
    if draw < 0.12:
        question = question.lower()
    if draw > 0.85:
        question = question.rstrip("?")
    if rng.random() < 0.12:
        words = question.split()
        if len(words) > 6:
            del words[rng.randrange(1, len(words) - 1)]
            question = " ".join(words)
    return question


def synonymise(synonyms: Synonyms, rng: Random, question: str, share: float) -> str:
    """About `share` of the content words replaced by synonyms, where there are any."""

    def other(match: re.Match[str]) -> str:
        word = match.group()
        if word in STOP_WORDS or rng.random() > share:
            return word
        return synonym(synonyms, rng, word) or word

    return _PLAIN_WORD.sub(other, question)


def synonym(synonyms: Synonyms, rng: Random, word: str) -> str | None:
    """A word of like meaning with the same ending, where that is regular; None if there is none."""
    for ending, stems, added in _ENDINGS:
        if not word.endswith(ending):
            continue
        for stem in stems:
            alike = synonyms.get(word.removesuffix(ending) + stem, ((), ""))[0]
            if alike:
                return _inflected(rng.choice(alike), added)
    return None


def _inflected(word: str, ending: str) -> str:
    if not ending or " " in word:
        return word
    return word[:-1] + ending if word.endswith("e") and ending != "s" else word + ending


# Kinds of questions -----------------------------------------------------------------------------------------------


def _for_meaning(synonyms: Synonyms, rng: Random, sentence: str) -> Asked | None:
    """Ask for the word of the sentence with a given meaning."""
    known = {
        word
        for word in _PLAIN_WORD.findall(sentence)
        if word in synonyms and synonyms[word][1] and word not in STOP_WORDS
    }
    if not known or not _SHORTEST <= len(sentence.split()) <= _LONGEST:
        return None
    word = rng.choice(sorted(known))
    return rng.choice(_FOR_MEANING).format(synonyms[word][1]), answer_text([sentence], word)


def _question(rng: Random, sentence: str) -> Asked | None:
    if not _SHORTEST <= len(sentence.split()) <= _LONGEST:
        return None
    draw = rng.random()
    if draw < 0.12:
        return _for_end(rng, sentence)
    return _for_part(rng, sentence) if draw < 0.72 else _for_keywords(rng, sentence)


def _body(sentence: str) -> str:
    return sentence.rstrip('.!?" ')


def _for_end(rng: Random, sentence: str) -> Asked | None:
    """Ask for the end of the sentence."""
    words = _body(sentence).split()
    size = len(sentence.split())
    cut = rng.randint(max(3, size // 3), max(4, (2 * size) // 3))
    if not words[cut:]:
        return None
    return rng.choice(_FOR_END).format(" ".join(words[:cut])), answer_text([sentence], None)


def _for_part(rng: Random, sentence: str) -> Asked | None:
    """Ask for what fills a blank, or a wh-question for a part of the sentence."""
    body = _body(sentence)
    parts = [part for part in _parts(rng, body) if 0 < part.end - part.start < 60]
    if not parts:
        return None
    part = rng.choice(parts)
    answer = body[part.start : part.end].strip()
    left, right = body[: part.start].strip(), body[part.end :].strip()
    if len((left + right).split()) < 4:
        return None
    draw = rng.random()
    if draw < 0.25:
        return rng.choice(_FOR_BLANK).format((left + _BLANK + right).strip()), answer_text([sentence], answer)
    asking = rng.choice(part.kind.value)
    around = [side for side in (_lower_first(left), right) if side]
    words = _thinned(rng, _reworded(rng, draw, around).split())
    if not words:
        return None
    return f"{asking} {' '.join(words).rstrip(',;: ')}?", answer_text([sentence], answer)


def _parts(rng: Random, body: str) -> list[Part]:
    """Years, numbers and names of a sentence, and some of its nouns."""
    parts = [*_years_and_numbers(body), *_names(body)]
    for match in _NOUN.finditer(body):
        if rng.random() < 0.35:
            parts.append(Part(match.start(1), match.end(1), Kind.NOUN))
    return parts


def _years_and_numbers(body: str) -> Iterator[Part]:
    for match in _YEAR.finditer(body):
        yield Part(match.start(), match.end(), Kind.YEAR)
    for match in _NUMBER.finditer(body):
        if not _YEAR.fullmatch(match.group()):
            yield Part(match.start(), match.end(), Kind.NUMBER)


def _names(body: str) -> Iterator[Part]:
    for match in _NAME.finditer(body):
        name = match.group().rstrip()
        begins = match.start() == 0 and " " not in name  # any word that begins a sentence has a capital
        if not begins and name.lower() not in STOP_WORDS:
            yield Part(match.start(), match.start() + len(name), Kind.NAME)


def _lower_first(text: str) -> str:
    """Without the capital that the sentence's first word has only because it is the first."""
    if len(text) > 1 and text[0].isupper() and not text[1].isupper() and text.split()[0].lower() in STOP_WORDS:
        return text[0].lower() + text[1:]
    return text


def _reworded(rng: Random, draw: float, around: Sequence[str]) -> str:
    """Text around a part: in order, turned round, or up to two of its clauses."""
    if draw < 0.55:
        return " ".join(around)
    if draw < 0.8 and len(around) == 2:
        return around[1].lstrip(",;: ") + (", " if rng.random() < 0.5 else " ") + around[0]
    clauses = [clause for clause in _CLAUSE_END.split(" ".join(around)) if clause.strip()]
    return " ".join(rng.sample(clauses, max(1, min(len(clauses), 2))))


def _thinned(rng: Random, words: list[str]) -> list[str]:
    """Without some of the words, at most 22 of them; empty if fewer than three are left."""
    words = [word for word in words if rng.random() > 0.10]
    if rng.random() < 0.5:
        words = [word for word in words if not (word.lower() in STOP_WORDS and rng.random() < 0.4)]
    if len(words) < 3:
        return []
    if len(words) > 22:
        start = rng.randint(0, len(words) - 16)
        return words[start : start + 16]
    return words


def _for_keywords(rng: Random, sentence: str) -> Asked | None:
    """Ask for the sentence about given words."""
    words = [word for word in _WORD.findall(_body(sentence)) if word.lower() not in STOP_WORDS and len(word) > 3]
    if len(words) < 3:
        return None
    count = rng.randint(2, min(5, len(words)))
    if rng.random() < 0.6:
        start = rng.randint(0, len(words) - count)
        chosen = words[start : start + count]
    else:
        chosen = rng.sample(words, count)
    question = rng.choice(_FOR_KEYWORDS).format(" ".join(chosen))
    # Only here, so that what is drawn next does not depend on the sentence's length.
    if len(sentence.split()) > _LONGEST_FOR_KEYWORDS:
        return None
    return question, answer_text([sentence], None)
