"""Tell whether a sentence is about the thing that a question asks about, or about its contrary or another thing."""

from __future__ import annotations

import re

from desk_rag.answering.requirements.answer_kinds import asks_whether
from desk_rag.answering.requirements.places import Place
from desk_rag.answering.requirements.stems import content_stems, has_stem
from desk_rag.documents.sentences import quotable

_CONTRARIES = tuple(
    tuple(content_stems(side) for side in pair.split(" / "))
    for pair in (
        "full / half", "upper / lower", "front / rear", "summer / winter", "spring / autumn", "gross / net",
        "single / double", "minimum / maximum", "inner / outer", "arrival / departure", "outward / return",
        "male / female", "indoor / outdoor", "debit / credit", "weekday / weekend", "adult / child", "left / right",
        "wholesale / retail", "mother / father", "brother / sister", "son / daughter", "husband / wife", "uncle / aunt",
        "grandmother / grandfather",
    )
)  # fmt: skip
"""Words that part two things of one kind: who asks for the one is not answered by the other."""
_PARTY = re.compile(r"\b(?P<root>[a-z]{3,}?)(?P<side>er|or|ee)s?\b", re.I)
_LABELLED_PARTY = re.compile(r"(?:^|;\s|\n)(?:the\s+)?(?P<root>[a-z]{3,}?)(?P<side>er|or|ee|ed)s?:\s", re.I)
_OF_KIND = re.compile(r"\b(?:an?|any)\s+(?P<thing>[a-z]{3,})\b(?!\s+(?:of|lot|few|bit|pair)\b)", re.I)
_PLURAL = re.compile(r"\b(?:keep|have|own|bring|use|light|plant|sell|park|hold)\s+(?P<thing>[a-z]{3,}s)\b", re.I)


def is_contrary(question: str, sentence: str) -> bool:
    """True if a sentence has the contrary of a word of the question, and not the word itself.

    A clause with a number and without the contrary may be about what is asked for, in other words.
    """
    asked, stems = content_stems(question), content_stems(sentence)
    numbered = [content_stems(clause) for clause in re.split(r"[,;]\s", sentence) if re.search(r"\d", clause)]
    for one, other in _CONTRARIES:
        for mine, opposite in ((one, other), (other, one)):
            if mine & asked and not opposite & asked and opposite & stems and not mine & stems:
                return all(opposite & clause for clause in numbered)
    return _names_other_party(question, sentence)


def _names_other_party(question: str, sentence: str) -> bool:
    """True if a question asks for the insurer, and a line is labelled 'Insured: …'; so for employer and employee."""
    asked = {(party["root"].lower(), party["side"].lower() == "ee") for party in _PARTY.finditer(question)}
    named = {
        (party["root"].lower(), party["side"].lower() in ("ee", "ed")) for party in _LABELLED_PARTY.finditer(sentence)
    }
    return any((root, is_object) not in named and (root, not is_object) in named for root, is_object in asked)


def is_of_another_kind(question: str, sentence: str, place: Place) -> bool:
    """True if the kind of thing that a question for yes or no asks about stands in another sentence of the passage.

    'May I keep a dog?' is answered by 'no dog', not by 'One cat is allowed' behind it.
    """
    if not asks_whether(question):
        return False
    things = [match["thing"] for pattern in (_OF_KIND, _PLURAL) for match in pattern.finditer(question)]
    own = content_stems(sentence)
    for thing in things:
        stems = content_stems(thing)
        if not stems or any(has_stem(stem, own) for stem in stems):
            continue
        if any(has_stem(stem, content_stems(unit)) for unit in quotable(place.text) for stem in stems):
            return True
    return False
