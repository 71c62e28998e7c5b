"""Complete a fragment such as 'And in 2024?' or 'What about the kitchen?' from the last question."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from desk_rag.answering.conversation import antecedents
from desk_rag.answering.conversation import vocabulary as v
from desk_rag.answering.conversation.noun_phrases import Phrase, phrases
from desk_rag.answering.conversation.talk import Talk, is_time, name_spans

_MOST_WORDS = 8
_YEAR = re.compile(r"\b(?:19|20)\d\d\b")
_NEXT_YEAR = re.compile(r"the (?:year )?(before|after|previous|next|following)(?: year)?(?: that)?", re.IGNORECASE)
_ORDINAL = re.compile(rf"\b({'|'.join((*v.ORDINALS, 'last'))})\b", re.IGNORECASE)
_DAY_OF_YEAR = re.compile(
    rf"(?:\b(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b\s*)?(?:\b(?P<month>{'|'.join(sorted(v.MONTHS))})\b\s*)?"
    r"(?:\b(?P<year>(?:19|20)\d\d)\b)?",
    re.IGNORECASE,
)
_WHICH_NOUN = re.compile(
    r"which\s+(?P<noun>[a-z][\w-]+)\s+(?P<rest>(?:is|are|was|were|have|has|do|did)\b.+)", re.IGNORECASE
)
_BEFORE = re.compile(r"(?:and\s+)?before(?:\s+(?:that|him|her|them|then))?|previously", re.IGNORECASE)
_OWNING = ("of", "for")


def is_fragment(body: str, *, joined: bool) -> bool:
    """Return whether a question lacks its verb and only changes part of the last one."""
    written = v.words_of(body)
    words = [word.casefold() for word in written]
    if not words or len(words) > _MOST_WORDS or any(v.is_auxiliary(written, place) for place in range(len(words))):
        return False
    if _is_other_wh(words) or any(word in v.WH_WORDS for word in words[_leading_wh(words) :]):
        return _is_other_wh(words)
    begins = words[0] in v.PREPOSITIONS | v.DETERMINERS | v.POSSESSIVE or words[0].isdecimal() or len(words) == 1
    return joined or (begins and body.rstrip().endswith("?"))


def of_same_noun(body: str, asked: str) -> str:
    """'Which bikes are for sale' for 'which are for sale' after 'Which bikes are in repair?'; '' for others."""
    last = _WHICH_NOUN.match(asked.rstrip("?.! "))
    if last is None:
        return ""
    if re.fullmatch(r"how\s+many\s+(?:is|are|was|were)\s+(?:that|these|those|they|there|it)", body, re.IGNORECASE):
        return f"How many {last['noun']} {last['rest']}"
    other = re.match(r"which\s+(?=(?:are|were|have)\s+(?!(?:the|they|these|those)\b))", body, re.IGNORECASE)
    return f"Which {last['noun']} {body[other.end() :]}" if other is not None and "of" not in body.split()[:3] else ""


def _leading_wh(words: Sequence[str]) -> int:
    """Return 1 if a fragment repeats the question word before what it changes: 'which to Mill Quay 7'."""
    return int(len(words) > 2 and words[0] in v.WH_WORDS and words[1] in v.PREPOSITIONS)


def _is_other_wh(words: Sequence[str]) -> bool:
    """Return whether a fragment only asks another question word: 'Why?', 'By whom?', 'In which year?'."""
    if all(word in v.BARE_WH for word in words):
        return any(word in v.WH_WORDS for word in words)
    asks = words[0] in ("which", "what") or (words[0] in v.PREPOSITIONS and words[1] in ("which", "what"))
    return asks and len(words) <= 4 and not any(map(v.is_verb, words))


def complete(fragment: str, talk: Talk) -> str:
    """Return the last question with the fragment in place of what it changes.

    Each rule gets the fragment, the last question and the talk; it returns '' if it does not apply.
    """
    question = talk.asked.rstrip("?.! ")
    words = [word.casefold() for word in v.words_of(fragment)]
    if words and _is_other_wh(words):
        return _other_wh(fragment, question, talk)
    if _leading_wh(words) and words[0] == talk.asked.split()[0].casefold():
        fragment = fragment.split(maxsplit=1)[1]
    fragment = re.sub(r"\s+then$", "", fragment, flags=re.IGNORECASE)  # the time of the last question is kept
    if (own := _time_tail(fragment)) and _date(own[0], question, talk):
        rest, when = fragment[: -len(own[1])].strip(), own[0]
        return _date(when, complete(rest, talk), talk) if rest else _date(when, question, talk)
    for rule in (_now, _before, _ordinal, _attribute, _date, _after_preposition, _name, _phrase):
        if completed := rule(fragment, question, talk):
            return completed
    return f"{question} {fragment}"


def _other_wh(fragment: str, question: str, talk: Talk) -> str:
    """'By whom?' after 'When was it repaired?': the question word changes, the rest stays."""
    answer = talk.answer if talk.has_short_answer else ""
    auxiliary = re.search(rf"\b(?:{'|'.join(sorted(v.AUXILIARIES))})\b", question, re.IGNORECASE)
    if auxiliary is None:
        verb, _, rest = re.sub(r"^\w+\s+", "", question).partition(" ")
        if v.is_participle(verb):  # 'When?' after 'Who planted the pear tree?'
            return f"{fragment} was {rest} {verb}"
        return " ".join(part for part in (fragment, answer, verb, rest) if part)
    before, rest = question[: auxiliary.start()], question[auxiliary.end() :].strip()
    first = rest.split(" ", 1)[0].casefold()
    if answer and before.strip() and v.is_verb(first):  # 'By whom?' after 'What was replaced?'
        return f"{fragment} {auxiliary[0]} {answer} {rest}"
    return f"{fragment} {auxiliary[0]} {rest}"


def _now(fragment: str, question: str, _talk: Talk) -> str:
    """'And now?' asks for the present: 'Who is the chair now?' after 'Who was the chair in 2022?'."""
    if not v.NOW.fullmatch(fragment):
        return ""
    tail = _time_tail(question)
    plain = question[: -len(tail[1])] if tail is not None else question
    plain = v.NOW.sub("", plain).rstrip()
    for past, present in (("was", "is"), ("were", "are"), ("did", "does"), ("had", "has")):
        plain = re.sub(rf"^(\w+(?:\s+\w+){{0,2}}?\s+){past}\b", rf"\g<1>{present}", plain, count=1)
    return f"{plain} {fragment.casefold()}"


def _before(fragment: str, question: str, talk: Talk) -> str:
    """'And before?' after 'Who is the chair?' asks for the one before that one."""
    match = re.match(r"(?P<who>who)\s+(?:is|was)\s+(?P<rest>.+)", question, re.IGNORECASE)
    if match is None or not _BEFORE.fullmatch(fragment):
        return ""
    rest = v.NOW.sub("", match["rest"]).strip()
    return f"{match['who']} was {rest} before {talk.answer}" if talk.has_short_answer and " before " not in rest else ""


def _ordinal(fragment: str, question: str, talk: Talk) -> str:
    """'The second one' changes the ordinal in the last question, or picks from a list in the last answer."""
    named = _ORDINAL.search(fragment)
    if not named or not re.fullmatch(r"(?:the |for the |in the )?\w+(?: ones?)?", fragment, re.IGNORECASE):
        return ""
    if _ORDINAL.search(question):
        return _ORDINAL.sub(named[1].casefold(), question, count=1)
    items = [item for item in re.split(r",\s*|\s+and\s+|;\s*", talk.answer) if item]
    place = v.ORDINALS.index(named[1].casefold()) if named[1].casefold() in v.ORDINALS else len(items) - 1
    if len(items) > place and len(items) > 1:
        return f"{question} {items[place]}"
    head = antecedents.head_of(talk)
    ordinal = rf"\b(?:the |a |an )?{re.escape(head)}\b"
    return re.sub(ordinal, f"the {named[1]} {head}", question, count=1) if head else ""


def _attribute(fragment: str, question: str, talk: Talk) -> str:
    """'And the price?' asks about a property of what was spoken of."""
    own = phrases(f"is {fragment}")
    siblings = {v.stem(word) for phrase in phrases(question) for word in v.content_words(phrase.text)}
    asks_property = bool(own) and own[0].head in v.ATTRIBUTES and v.stem(own[0].head) not in siblings
    if not asks_property or re.search(r"\b(?:of|for)\b", fragment):
        return ""
    text = fragment if fragment.split()[0].casefold() in v.DETERMINERS else f"the {fragment}"
    if antecedents.leans(fragment):
        return f"What is {antecedents.fill_in(fragment, talk)}"
    subject = talk.topic if own[0].head in v.OF_PEOPLE else talk.thing or talk.topic
    return f"What is {text} of {subject}" if subject else ""


def _date(fragment: str, question: str, _talk: Talk) -> str:
    """'In 2024' replaces the year of the last question, 'in May' its month, 'on Friday' its day."""
    bare = re.sub(r"^(?:in|on|at|for|during|since|until)\s+(?:the\s+)?", "", fragment, flags=re.IGNORECASE)
    if (near := _NEXT_YEAR.fullmatch(re.sub(r"^(?:in|for)\s+", "", fragment))) and (old := _YEAR.search(question)):
        later = near[1].casefold() in ("after", "next", "following") or "after" in fragment.casefold()
        return _YEAR.sub(str(int(old[0]) + (1 if later else -1)), question, count=1)
    if (new := _DAY_OF_YEAR.fullmatch(bare)) and bare:
        return _with_date(question, fragment, new)
    for kind in (v.WEEKDAYS, v.SEASONS):
        if bare.casefold().split()[0] in kind and len(bare.split()) <= 2:
            before = next((word for word in v.words_of(question)[1:] if word.casefold() in kind), "")
            return re.sub(rf"\b{re.escape(before)}\b", bare, question, count=1) if before else f"{question} {fragment}"
    return ""


def _with_date(question: str, fragment: str, new: re.Match[str]) -> str:
    """Return the last question with the given parts of its date exchanged and the larger parts kept."""
    dates = (match for match in _DAY_OF_YEAR.finditer(question) if match.start() and (match["month"] or match["year"]))
    old = next(dates, None)
    if old is None and fragment.isdecimal() and not new["year"]:
        return ""
    if old is None:
        return f"{question} {fragment if fragment != new[0] else 'in ' + fragment}"
    day = new["day"] or (old["day"] if not new["month"] else None)
    parts = (day, new["month"] or old["month"], new["year"] or old["year"])
    before = question[: old.start()]
    if old["day"] and not day:
        before = re.sub(r"\bon(\s+)$", r"in\1", before)
    return f"{before}{' '.join(part for part in parts if part)}{question[old.end() :]}"


def _after_preposition(fragment: str, question: str, talk: Talk) -> str:
    """'For the kitchen' replaces what follows 'for' in the last question, 'for Mill Quay 7' a name."""
    first, _, rest = fragment.partition(" ")
    if first.casefold() not in v.PREPOSITIONS or not rest:
        return ""
    whole = antecedents.fill_in(rest, talk) if antecedents.leans(rest) else rest
    names = name_spans(question)
    has_article = rest.split()[0].casefold() in v.DETERMINERS
    is_same = bool(names) and re.search(rf"\b{first}\s+$", question[: names[-1][0]], re.IGNORECASE) is not None
    if names and (name_spans(f" {whole}") or (is_same and not has_article)):
        start, end = names[-1]
        if has_article:  # 'the flat in Elm Road' for 'the flat in Mill Quay 7'
            start = next((phrase.start for phrase in phrases(question) if phrase.end == end and phrase.is_name), start)
            if article := re.search(r"\b(?:the|an?)\s+$", question[:start], re.IGNORECASE):
                start = article.start()
            # 'room' of 'the Gull room'
            if last_word := re.match(rf"\s+{re.escape(whole.split()[-1])}\b", question[end:]):
                end += last_word.end()
        return f"{question[:start]}{whole}{question[end:]}"
    old = re.search(rf"\b{first}\s+((?:[^\W_][^\s,]*\s*)+)$", question, re.IGNORECASE)
    if old is None and first.casefold() in _OWNING:
        old = re.search(r"\b(?:of|for)\s+((?:[^\W_][^\s,]*\s*)+)$", question, re.IGNORECASE)
    if old and (same := phrases(f"{first} {old[1]}")):
        return f"{question[: old.start(1)]}{whole}{old[1][same[0].end - len(first) - 1 :]}"
    return f"{question} {first.casefold()} {whole}"


def _name(fragment: str, question: str, _talk: Talk) -> str:
    """'And Ana?' replaces a name."""
    if not v.is_name(fragment) or fragment.split()[0].casefold() in v.DETERMINERS:
        return ""
    if fragment.isdecimal():
        numbers = [match for match in re.finditer(r"\b\d+\b", question) if not _YEAR.fullmatch(match[0])]
        return f"{question[: numbers[-1].start()]}{fragment}{question[numbers[-1].end() :]}" if numbers else ""
    owner = re.search(r"(?<!^)(?:\b[A-Z][\w.-]*\s)*\b[A-Z][\w.-]*['’]s\b", question)
    ending = "'s" if owner and not re.search(r"['’]s?$", fragment) else ""
    start, end = owner.span() if owner else next(iter(name_spans(question)), (0, 0))
    return f"{question[:start]}{fragment}{ending}{question[end:]}" if end else ""


def _phrase(fragment: str, question: str, talk: Talk) -> str:
    """'And the kitchen?' replaces the noun phrase that the last question asks about."""
    known = [phrase for phrase in phrases(question) if not is_time(phrase.text)]
    if not known:
        return ""
    fragment = antecedents.fill_in(fragment, talk) if antecedents.leans(fragment) else fragment
    words = v.content_words(fragment)
    for old in known:
        owner = re.match(r"(?:the\s+)?(.+?)['’]s?\s", old.text)
        if owner and words and v.stem(v.words_of(owner[1])[-1].casefold()) == v.stem(words[-1]):
            return f"{question[: old.start]}{fragment}{question[old.start + owner.end(1) :]}"
    old = next((phrase for phrase in known if words and v.stem(phrase.head) == v.stem(words[-1])), known[-1])
    if tail := _time_tail(old.text):
        old = replace(old, text=old.text[: -len(tail[1])], end=old.end - len(tail[1]))
    start, end = _replaced(old, same_head=bool(words) and v.stem(old.head) == v.stem(words[-1]))
    is_are, was_were = ("are", "were") if re.search(r"(?<![su])s$|\band\b", fragment) else ("is", "was")
    before = re.sub(r"\b(?:is|are)(?=\s+$)", is_are, question[: old.start + start])
    before = re.sub(r"\b(?:was|were)(?=\s+$)", was_were, before)
    return f"{before}{fragment}{question[old.start + end :]}"


def _time_tail(text: str) -> tuple[str, str] | None:
    """Return the time at the end of a phrase with its preposition, without and with the blank before it."""
    for match in re.finditer(r"\s+(?:in|on|at|since|until|from|during)\s+", f" {text}", re.IGNORECASE):
        time = f" {text}"[match.end() :]
        if is_time(time) and not _NEXT_YEAR.fullmatch(time):
            tail = f" {text}"[match.start() :]
            return tail.strip(), tail if match.start() else text
    return None


def _replaced(phrase: Phrase, *, same_head: bool) -> tuple[int, int]:
    """Return the part of a phrase to exchange: 'the gate' in 'the width of the gate'.

    If the fragment names another concert, it is 'the spring concert' in 'the spring concert of the choir'.
    """
    owner = re.match(r"(.*?)\s+of\s+", phrase.text)
    if owner and same_head:
        return 0, owner.end(1)
    return (owner.end() if owner and phrase.head in v.ATTRIBUTES else 0), len(phrase.text)
