"""Notice that a quote is about another thing than the one asked for.

'Who tuned the harpsichord?' is not answered by who tuned the piano, nor 'What does our life insurance cost?' by what
the travel insurance costs. The words behind an article are compared with the quote and its passage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from desk_rag.answering.requirements.answer_kinds import AnswerKind, asks_whether, kind_asked
from desk_rag.answering.requirements.mentions import is_time
from desk_rag.answering.requirements.places import Place
from desk_rag.answering.requirements.requirements import Requirements
from desk_rag.answering.requirements.rows import LIGHT, fields
from desk_rag.answering.requirements.stems import content_stems, has_stem
from desk_rag.documents.sentences import quotable
from desk_rag.store.catalog.words import STOP_WORDS

_ARTICLE = re.compile(r"\b(?:the|our|my|your|his|her|their|an?)\s+", re.I)
_NAMES = re.compile(r"(?:[A-Z][\w’'-]*\s+)+(?=[a-z])")
"""Names between an article and its thing: 'the Cotham Vale deposit'."""
_WORD = re.compile(r"\s*(?P<word>[a-z][\w’'-]*)(?P<end>[?.,;:]?)")
_MOST_WORDS = 3
_TIME = frozenset("day week month year time moment morning afternoon evening night weekend".split())  # noqa: SIM905
"""Words behind an article that say when, and name nothing that a text must speak of."""
_SHORTEST = 4
"""Letters of a thing; 'up' in 'the price went up' is none."""
_WHO = re.compile(r"^who\b", re.I)
_WHO_DOES = re.compile(r"^(?P<asks>who\s+(?:is|are|was|were)\s+)the\s+\w{2,}(?:er|or|ist)s?\s+of\s+", re.I)
"""Before what somebody does something with: 'led by' names the leader, and the passage need not say 'leader'."""
_VERB_BEHIND = re.compile(
    r"^(?P<rest>when\s+(?:do|does|did|will)\s+.*)\s(?:begin|start|end|finish|expire|open|close|stop)\?*$", re.I
)
"""'When does the lease of the barn begin?', whose last word is no part of the thing before it."""
_HOW_LONG_IS = re.compile(r"^how\s+long\s+(?:is|was)\s+$", re.I)
"""Before a thing that the quote itself must name: every sentence with a number of months might answer."""
_OF_CONTENT = re.compile(r"^(?:how\s+(?:much|many)\s+of|what(?:['’]s|\s+(?:is|was|stands|stood))\s+in)\s+$", re.I)
"""Before a thing that the passage must name, because its content or a part of it is asked for."""
_WILL = re.compile(r"will(?=\s+of\b|\W*$)")
"""The noun; else it is a word that says nothing."""
_MONEY = content_stems(
    "pay paid cost costs price bill charge invoice spend spent buy bought sell sold purchase total amount owe sum net"
    " expense fee premium salary wage worth"
)
_FORMS = {"leav": {"left"}, "see": {"saw", "seen"}, "fall": {"fell"}, "find": {"found"}, "do": {"did", "done"},
          "bring": {"return"}, "giv": {"return", "hand"}}  # fmt: skip
"""Forms of verbs that are words of their own too, and verbs for the same deed, by the stem of the verb."""
_ALIKE = 4
"""Letters by which 'decide' and 'decision' are alike."""
_FOR_MONEY = re.compile(r"\bfor\s+(?:[€$£]\s?)?\d")
_DOING = re.compile(r"\b(?:did|has|had)\s+(?P<name>(?:[A-Z][\w’'-]*\s+)+)(?P<verb>[a-z]{3,})\b")
_DONE_TO = re.compile(r"^when\s+(?:was|were)\s+(?P<name>(?:[A-Z][\w’'-]*\s+)+)(?P<verb>[a-z]{3,}ed)\b", re.M)
_PERSONAL = re.compile(r"\b(?:I|we|my|our|he|she|they|his|her|their|him|them|you|your)\b", re.I)
_PROPER = re.compile(r"\b[A-Z][\w’'-]+(?:\s+[A-Z][\w’'-]+)*")
_AUXILIARY = re.compile(r"\b(?:do|does|did|will|would|shall|should|can|could|may|might|must)\s+$", re.I)
"""Before a subject whose verb follows: the last word is no noun."""
_REFERS_BACK = re.compile(r"^\W*(?:it|its|this|that|these|they|their|he|his|she|her|there|both)\b", re.I)


def missing_subjects(question: str, quote: str, place: Place) -> tuple[str, ...]:
    """The things that a question speaks of and the quote does not; other words for a thing are not known.

    So single words are only compared in questions for a person or a length, where a small reader quotes what is alike.
    """
    question = _VERB_BEHIND.sub(r"\g<rest>", _WHO_DOES.sub(r"\g<asks>", question.strip()))
    around = content_stems(f"{place.text}\n{place.labels}")
    near = content_stems("\n".join([quote, place.labels, *place.sections_before(place.text.find(quote))[:1]]))
    missing = []
    for before, words in _things(question):
        stems = content_stems(" ".join(words)) or set(words)
        has_length = _HOW_LONG_IS.search(before) is not None and not _REFERS_BACK.search(quote)
        is_strict = _WHO.search(question) is not None or _OF_CONTENT.search(before) is not None
        is_strict = is_strict or kind_asked(question) is AnswerKind.TIME
        compared = near if has_length else around if is_strict else stems
        if _AUXILIARY.search(before) and len(words) == 1:
            continue  # 'When did the Foundation decide?'
        is_missing = bool(stems) and not any(has_stem(stem, compared) for stem in stems)
        is_noun = len(words) > 1 and not asks_whether(question) and not _AUXILIARY.search(before)
        if is_missing or (is_noun and _is_of_another_kind(words, place, around)):
            missing.append(" ".join(words))
    return (
        tuple(missing)
        or _of_another_row(question, quote, place)
        or _not_done_by(question, quote, place)
        or _of_another_sentence(question, quote, place)
    )


def tells_doing(question: str, sentence: str, labels: str) -> bool:
    """True if a sentence tells what the question says that somebody did, and by whom."""
    doing = _DOING.search(question)
    if doing is None or not has_stem(next(iter(content_stems(doing["verb"])), ""), content_stems(sentence)):
        return False
    stems, name = content_stems(f"{sentence}\n{labels}"), content_stems(doing["name"])
    return all(has_stem(stem, stems) for stem in name)


def _of_another_row(question: str, quote: str, place: Place) -> tuple[str, ...]:
    """Return the subject that a quoted table row lacks, if it shares only column names with the question.

    'The serial number of the dishwasher' is not that of the washing machine, though both have one.
    """
    cells = fields(quote)
    if len(cells) < 2:
        return ()
    asked = content_stems(question) - LIGHT
    shared = content_stems(" ".join([place.labels, *place.sections_before(place.text.find(quote))[:1]]))
    shared |= content_stems(" ".join(cell.key for cell in cells).replace("_", " "))
    own = content_stems(" ".join(cell.value for cell in cells))
    others = {stem for stem in asked if not has_stem(stem, shared)}
    if not others or any(has_stem(stem, own) for stem in others) or Requirements(question).timed:
        return ()
    words = [match.group() for match in re.finditer(r"[^\W_]+", question)]
    return tuple(word for word in words if content_stems(word) & others)


def _lacks_deed(question: str, quote: str, verb: set[str]) -> bool:
    """True if a quote for when something was done, or for what was paid, says nothing of that being done."""
    is_money = bool(verb & _MONEY)
    if not verb or not (is_money or kind_asked(question) is AnswerKind.TIME):
        return False
    stems = content_stems(quote)
    if is_money and _FOR_MONEY.search(quote):
        return False
    verb = verb | _MONEY if is_money else verb | _FORMS.get(min(verb), set())
    beginnings = {stem[:_ALIKE] for stem in stems}
    return not any(has_stem(stem, stems) or (len(stem) > _ALIKE and stem[:_ALIKE] in beginnings) for stem in verb)


def _not_done_by(question: str, quote: str, place: Place) -> tuple[str, ...]:
    """Return the deed that a question names, with who did it, if a sentence has neither."""
    done_to = _DONE_TO.search(question[:1].lower() + question[1:])
    if done_to is not None and _lacks_deed(question, quote, content_stems(done_to["verb"])):
        return (done_to["verb"],)
    doing = _DOING.search(question)
    if doing is None:
        return ()
    if _lacks_deed(question, quote, content_stems(doing["verb"])):
        return (f"{doing['name']}{doing['verb']}",)
    if _PERSONAL.search(quote):
        return ()
    stems, name, verb = (
        content_stems(f"{quote}\n{place.labels}"),
        content_stems(doing["name"]),
        content_stems(doing["verb"]),
    )
    if not name or not verb or any(has_stem(stem, stems) for stem in name | verb):
        return ()
    return (f"{doing['name']}{doing['verb']}",)


def _of_another_sentence(question: str, quote: str, place: Place) -> tuple[str, ...]:
    """Return the subject that the quote lacks, if it names another and a neighbouring sentence fits in full.

    'The tent is with Rosa, who returned it in June' tells nothing of 'The canoe is with Winnie'.
    """
    asked = [match.group() for match in _PROPER.finditer(question, 1)]
    asked += [" ".join(words) for _, words in _things(question.strip())]
    stems = [content_stems(one) for one in asked]
    own = content_stems(quote)
    names = [match.group() for match in _PROPER.finditer(quote, 1)]
    others = content_stems(" ".join(word for name in names for word in name.split() if not is_time(word)))
    if len(asked) < 2 or not all(stems) or _REFERS_BACK.search(quote) or not others - set[str]().union(*stems):
        return ()
    if any(has_stem(stem, own) for of_one in stems for stem in of_one):
        return ()
    for unit in quotable(place.text):
        in_unit = content_stems(unit)
        if unit != quote and all(has_stem(stem, in_unit) for of_one in stems for stem in of_one):
            return tuple(asked)
    return ()


def _things(question: str) -> Iterator[tuple[str, list[str]]]:
    """The words behind each article, with the question's words before it."""
    for article in _ARTICLE.finditer(question):
        words: list[str] = []
        names = _NAMES.match(question, article.end())
        match = _WORD.match(question, article.end() if names is None else names.end())
        while match is not None and _says_something(question, match) and len(words) < _MOST_WORDS:
            words.append(match["word"])
            match = _WORD.match(question, match.end()) if not match["end"] else None
        if words and not _TIME.issuperset(words):
            yield question[: article.start()], words


def _says_something(question: str, match: re.Match[str]) -> bool:
    """True for a word that is not one of those that every text has."""
    return match["word"] not in STOP_WORDS or _WILL.match(question, match.start("word")) is not None


def _is_of_another_kind(words: list[str], place: Place, around: set[str]) -> bool:
    """True if a passage speaks of travel insurance and not of life insurance, or only its folder is of insurance."""
    kind, thing = words[-2:]
    if not content_stems(kind) or any(has_stem(stem, around) for stem in content_stems(kind)):
        return False
    others = re.findall(rf"\b([^\W\d_][\w’'-]*)[ -]{re.escape(thing)}\b", f"{place.text}\n{place.labels}", re.I)
    of_place = re.compile(rf"\b{re.escape(thing)}\b", re.I)
    only_of_labels = of_place.search(place.labels) is not None and of_place.search(place.text) is None
    return len(thing) >= _SHORTEST and (only_of_labels or any(word.lower() not in STOP_WORDS for word in others))
