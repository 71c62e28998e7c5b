"""Find what the pronouns of a follow-up stand for, and put it in their place."""

from __future__ import annotations

import re

from desk_rag.answering.conversation import vocabulary as v
from desk_rag.answering.conversation.noun_phrases import Phrase, phrases
from desk_rag.answering.conversation.turns import Turn

_LONGEST_ANSWER = 6
"""Words of an answer that can stand for a pronoun; a longer one is a sentence."""
_ARTICLE = re.compile(r"^(?:the|a|an|my|our|your|this|that|these|those)\s+", re.IGNORECASE)
_EXPLETIVE = re.compile(
    r"\b(?:how (?:long|much|many \w+) (?:does|did|will|would) it (?:take|cost) to|what time is it|is it"
    r" (?:true|possible|allowed|ok|okay|necessary)|does it (?:say|matter)|it (?:says|is said))\b",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"\b(?:if|when|because|before|after|while|and|that)\b")
_THERE_IS = re.compile(r"\b(?:is|are|was|were|be|been) there\b|\bthere (?:is|are|was|were|be|been)\b", re.IGNORECASE)


def leans(body: str) -> bool:
    """Return whether a question holds a pronoun that nothing before it in the question explains."""
    return any(_kind(body, match) for match in v.WORD.finditer(body))


def fill_in(body: str, last: Turn) -> str:
    """Replace the leaning pronouns of `body` by what they stand for in the last turn."""
    pieces: list[str] = []
    done = 0
    for match in v.WORD.finditer(body):
        kind = _kind(body, match)
        if not kind or match.start() < done:
            continue
        replacement, end = _replacement(kind, body, match, last)
        if replacement:
            pieces += [body[done : match.start()], replacement]
            done = end
    filled = "".join([*pieces, body[done:]])
    return attach(filled, last) if not pieces else filled


def attach(body: str, last: Turn) -> str:
    """Append the last topic to a question that leans on it without a pronoun."""
    subject = topic(last)
    own = v.stems(v.content_words(body))
    if not subject or v.stems(v.content_words(subject)) <= own:
        return body
    plain = body.rstrip("?.! ")
    mentioned = [phrase for phrase in phrases(plain) if not phrase.is_name]
    if len(mentioned) == 1 and not re.search(r"\b(?:of|for)\b", mentioned[0].text):
        end = mentioned[0].end
        return f"{plain[:end]} of {subject}{plain[end:]}"
    return f"{plain} for {subject}"


def topic(last: Turn) -> str:
    """Return what the last question was about as a noun phrase; its document's heading if it names nothing."""
    things = _things(last.asked)
    if things:
        return things[-1] if len(things) == 1 or not _is_asked_for(last.asked) else things[0]
    names = [phrase.text for phrase in phrases(last.asked) if phrase.is_name and not phrase.text.isdecimal()]
    if names:
        return _without_possessive(names[0])
    if is_short(last):
        return last.answer.strip(" .")
    return last.headings[0].split(" › ")[-1] if last.headings else ""


def person(last: Turn) -> str:
    """Return the person that 'he', 'her' or 'their' stand for."""
    asks_who = re.match(r"(?:\w+ )?(?:who|whom|whose|which \w+)\b", last.asked, re.IGNORECASE) is not None
    if asks_who and is_short(last) and v.is_name(last.answer.strip()):
        return last.answer.strip(" .")
    names = [phrase.text for phrase in phrases(last.asked) if _has_person(phrase)]
    if names:
        return _without_possessive(names[0])
    if is_short(last) and last.answer.strip()[:1].isupper():
        return last.answer.strip(" .")
    return topic(last)


def thing(last: Turn) -> str:
    """Return the thing that 'it', 'they' or 'this' stand for: the last topic, or the answer to 'which' and 'what'."""
    asked = last.asked
    which = re.match(r"(?:\w+ )?(?:which|what)\s+(\w+)", asked, re.IGNORECASE)
    if which and is_short(last):
        noun = which[1].casefold()
        others = [text for text in _things(asked) if not text.casefold().startswith(noun)]
        if noun in v.AUXILIARIES and not others:
            return last.answer.strip(" .")
        if noun not in v.AUXILIARIES and not others and noun not in v.ATTRIBUTES:
            kind = next((phrase.text for phrase in phrases(asked)), noun)
            return f"the {kind} {last.answer.strip(' .')}"
    return topic(last)


def is_short(last: Turn) -> bool:
    """Return whether the last answer was found and is a name or a phrase rather than a sentence."""
    return last.found and 0 < len(last.answer.split()) <= _LONGEST_ANSWER


def head_of(last: Turn) -> str:
    """Return the noun that 'one' stands for: 'rehearsal' after 'When is the first rehearsal of the choir?'."""
    named = [phrase for phrase in phrases(last.asked) if not phrase.is_name]
    return named[0].head if named else ""


def _kind(body: str, match: re.Match[str]) -> str:
    """Return 'person', 'person's', 'thing', 'thing's', 'place', 'time' or 'one'; '' if the word leans on nothing."""
    low = match[0].casefold()
    before, after = body[: match.start()], v.words_of(body[match.end() :].casefold())
    following = after[0] if after else ""
    if low in ("one", "ones") and re.search(r"\b(?:the|which|that|this|\w+er|other)(?: \w+)? $", before.casefold()):
        return "" if following == "of" else "one"
    if low in v.PLACES:
        return "" if _THERE_IS.search(body) and not body.casefold().rstrip("? ").endswith("there") else "place"
    if low in v.TIMES:
        return "time" if before.strip() else ""
    if low in v.PERSONAL | v.POSSESSIVE:
        if _explained(before, low):
            return ""
        owns = low in v.POSSESSIVE and low != "hers" and bool(after) and following not in v.PREPOSITIONS
        people = low in ("he", "him", "his", "she", "her", "hers")
        base = "person" if people else "thing"
        return f"{base}'s" if owns else base
    if low in ("it", "this", "that", "these", "those"):
        return _thing_kind(body, low, before, following)
    return ""


def _thing_kind(body: str, low: str, before: str, following: str) -> str:
    if low == "it":
        return "" if _EXPLETIVE.search(body) or _explained(before, low) else "thing"
    if following in v.TIME_NOUNS and low in ("this", "these"):
        return ""  # 'this year' is explained by the calendar
    if low == "that" and before.strip() and following and following not in v.AUXILIARIES:
        previous = v.words_of(before.casefold())[-1:]
        if previous and previous[0] not in v.PREPOSITIONS | v.AUXILIARIES and not v.is_verb(previous[0]):
            return ""  # 'the firm that repaired it'
    return "thing"


def _explained(before: str, low: str) -> bool:
    """Return whether the question itself names what a pronoun stands for, before it."""
    named = [phrase for phrase in phrases(before) if not re.match(r"(?:his|her|its|their)\b", phrase.text.casefold())]
    names = [phrase for phrase in named if phrase.is_name]
    if low in ("his", "her", "he", "she", "him", "hers"):
        return (
            bool(names) or any(phrase.text.casefold().startswith("the ") for phrase in named) and low in ("his", "her")
        )
    if low in ("its", "their"):
        return bool(named)
    return bool(re.search(r"\b(?:if|when|because|before|after|while|and|that)\b", before[3:].casefold())) and bool(
        named
    )


def _replacement(kind: str, body: str, match: re.Match[str], last: Turn) -> tuple[str, int]:
    """Return what stands in place of a pronoun, and the end of what it replaces."""
    end = match.end()
    if kind == "one":
        return head_of(last), end
    if kind == "place":
        return _place(last), end
    if kind == "time":
        return _time(last), end
    subject = person(last) if kind.startswith("person") else thing(last)
    if kind.endswith("'s"):
        return (f"{subject}'s" if subject else ""), end
    if match[0].casefold() in ("this", "that", "these", "those"):
        noun = re.match(r"\s+([^\W\d_]+)", body[end:])
        if noun and not v.is_verb(noun[1].casefold()) and noun[1].casefold() not in v.PREPOSITIONS | v.STOP_WORDS:
            head = v.stem(noun[1].casefold())
            same = head in v.stems(v.content_words(subject))
            return (
                (subject, end + noun.end())
                if same
                else (f"the {noun[1]} of {subject}" if subject else "", end + noun.end())
            )
    return subject, end


def _place(last: Turn) -> str:
    if re.match(r"(?:\w+ )?where\b", last.asked, re.IGNORECASE) and is_short(last):
        answer = last.answer.strip(" .")
        return answer if answer.split()[0].casefold() in v.PREPOSITIONS else f"at {answer}"
    subject = thing(last)
    return f"at {subject}" if subject else ""


def _time(last: Turn) -> str:
    if re.match(r"(?:\w+ )?when\b", last.asked, re.IGNORECASE) and is_short(last):
        return f"on {last.answer.strip(' .')}"
    year = re.search(r"\b(?:19|20)\d\d\b", last.asked)
    return f"in {year[0]}" if year else ""


def _things(asked: str) -> list[str]:
    """Return the noun phrases that name things; 'the price of the boiler' names the boiler."""
    found = []
    for phrase in phrases(asked):
        if phrase.is_name or phrase.head in v.TIME_NOUNS:
            continue
        owner = re.match(r".*?\bof\s+(.+)", phrase.text)
        found.append(owner[1] if owner and phrase.head in v.ATTRIBUTES else phrase.text)
    return found


def _is_asked_for(asked: str) -> bool:
    """Return whether the first noun phrase is the subject, as after 'When was' or 'How much does'."""
    return (
        re.match(r"(?:\w+ ){0,3}?(?:is|are|was|were|do|does|did|has|have|can|will|should)\b", asked.casefold())
        is not None
    )


def _has_person(phrase: Phrase) -> bool:
    words = v.words_of(phrase.text)
    named = [word for word in words if word[:1].isupper() and word.casefold() not in v.MONTHS | v.WEEKDAYS]
    return (
        bool(named) and (phrase.is_name or re.search(r"['’]s\b", phrase.text) is not None) and not words[0].isdecimal()
    )


def _without_possessive(text: str) -> str:
    owner = re.match(r"(.+?)['’]s\b", text)
    return _ARTICLE.sub("", owner[1]) if owner and v.is_name(_ARTICLE.sub("", owner[1])) else text
