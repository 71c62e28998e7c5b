"""Notice that a quote is about another thing than the one asked for.

'Who tuned the harpsichord?' is not answered by who tuned the piano, nor 'What does our life insurance cost?' by what
the travel insurance costs. The words behind an article are compared with the quote and its passage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from desk_rag.answering.requirements.objections import asks_whether
from desk_rag.answering.requirements.places import Place
from desk_rag.answering.requirements.stems import content_stems, has_stem
from desk_rag.store.catalog.words import STOP_WORDS

_ARTICLE = re.compile(r"\b(?:the|our|my|your|his|her|their|an?)\s+", re.I)
_WORD = re.compile(r"\s*(?P<word>[a-z][\w’'-]*)(?P<end>[?.,;:]?)")
_MOST_WORDS = 3
_SHORTEST = 4
"""Letters of a thing; 'up' in 'the price went up' is none."""
_WHO = re.compile(r"^who\b", re.I)
_WHO_DOES = re.compile(r"^(?P<asks>who\s+(?:is|are|was|were)\s+)the\s+\w{2,}(?:er|or|ist)s?\s+of\s+", re.I)
"""Before what somebody does something with: 'led by' names the leader, and the passage need not say 'leader'."""
_HOW_LONG_IS = re.compile(r"^how\s+long\s+(?:is|was)\s+$", re.I)
"""Before a thing that the quote itself must name: every sentence with a number of months might answer."""
_AUXILIARY = re.compile(r"\b(?:do|does|did|will|would|shall|should|can|could|may|might|must)\s+$", re.I)
"""Before a subject whose verb follows: the last word is no noun."""
_REFERS_BACK = re.compile(r"^\W*(?:it|its|this|that|these|they|their|he|his|she|her|there|both)\b", re.I)


def missing_subjects(question: str, quote: str, place: Place) -> tuple[str, ...]:
    """The things that a question speaks of and the quote does not; other words for a thing are not known.

    So single words are only compared in questions for a person or a length, where a small reader quotes what is alike.
    """
    question = _WHO_DOES.sub(r"\g<asks>", question.strip())
    around = content_stems(f"{place.text}\n{place.labels}")
    near = content_stems("\n".join([quote, place.labels, *place.sections_before(place.text.find(quote))[:1]]))
    missing = []
    for before, words in _things(question):
        stems = content_stems(" ".join(words))
        has_length = _HOW_LONG_IS.search(before) is not None and not _REFERS_BACK.search(quote)
        compared = near if has_length else around if _WHO.search(question) else stems
        is_missing = bool(stems) and not any(has_stem(stem, compared) for stem in stems)
        is_noun = len(words) > 1 and not asks_whether(question) and not _AUXILIARY.search(before)
        if is_missing or (is_noun and _is_of_another_kind(words, place, around)):
            missing.append(" ".join(words))
    return tuple(missing)


def _things(question: str) -> Iterator[tuple[str, list[str]]]:
    """The words behind each article, with the question's words before it."""
    for article in _ARTICLE.finditer(question):
        words: list[str] = []
        match = _WORD.match(question, article.end())
        while match is not None and match["word"] not in STOP_WORDS and len(words) < _MOST_WORDS:
            words.append(match["word"])
            match = _WORD.match(question, match.end()) if not match["end"] else None
        if words:
            yield question[: article.start()], words


def _is_of_another_kind(words: list[str], place: Place, around: set[str]) -> bool:
    """True if a passage speaks of travel insurance and not of life insurance, or only its folder is of insurance."""
    kind, thing = words[-2:]
    if not content_stems(kind) or any(has_stem(stem, around) for stem in content_stems(kind)):
        return False
    others = re.findall(rf"\b([^\W\d_][\w’'-]*)[ -]{re.escape(thing)}\b", f"{place.text}\n{place.labels}", re.I)
    of_place = re.compile(rf"\b{re.escape(thing)}\b", re.I)
    only_of_labels = of_place.search(place.labels) is not None and of_place.search(place.text) is None
    return len(thing) >= _SHORTEST and (only_of_labels or any(word.lower() not in STOP_WORDS for word in others))
