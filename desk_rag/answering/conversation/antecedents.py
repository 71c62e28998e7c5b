"""Find what the pronouns of a follow-up stand for, and put it in their place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from desk_rag.answering.conversation import vocabulary as v
from desk_rag.answering.conversation.noun_phrases import phrases
from desk_rag.answering.conversation.talk import ASKS_WHO, Talk, is_time, name_spans, names_in

_LONGEST_OWNER = 3
"""Words of a phrase that takes an 's."""
_ARTICLE = re.compile(r"^(?:the|an?)\s+", re.IGNORECASE)
_EXPLETIVE = re.compile(
    r"\b(?:how (?:long|much|many \w+) (?:does|did|will|would) it (?:take|cost) to|what time is it|is it"
    r" (?:true|possible|allowed|ok|okay|necessary)|does it (?:say|matter)|it (?:says|is said))\b",
    re.IGNORECASE,
)
_WHEN = re.compile(
    rf"\b(in|on)\s+((?:\d{{1,2}}\s+)?(?:(?:{'|'.join(v.MONTHS)})\b\s*)?(?:(?:19|20)\d\d)?)\b", re.IGNORECASE
)
_HOW_MUCH = re.compile(r"(?:how much|what amount) (?:is|was|are|were) $", re.IGNORECASE)
_ASKS_PRICE = re.compile(r"how much\b|.*\bcosts?\b", re.IGNORECASE)
_THERE_IS = re.compile(r"\b(?:is|are|was|were|be|been) there\b|\bthere (?:is|are|was|were|be|been)\b", re.IGNORECASE)
_WHO_IS = re.compile(r"(?:\w+ )?who (?:is|was|are|were) ((?:the|our|my)\b.+)", re.IGNORECASE)
_WHO_DOES = re.compile(rf"who (?!(?:{'|'.join(v.AUXILIARIES)})\b)(.+)", re.IGNORECASE)
_TITLES = {"she": r"Mrs|Ms|Miss|Madam|Lady|Dame", "he": r"Mr|Sir|Lord"}
_SEXES = {"she": r"female|bitch|mare|woman|girl", "he": r"male|gelding|stallion|man|boy"}
_WHEN_WAS = re.compile(r"(?:when|where|why|by whom)\s+(?:was|is|were|are)\s+", re.IGNORECASE)
_TIME_OF_ROLE = re.compile(
    r"\s+(?:(?:in|during|until|since)\s+(?:[A-Z]\w+\s+)?(?:19|20)\d\d|now|today|currently)$", re.IGNORECASE
)
_DUE = re.compile(r"\s+(?:due|payable|(?:to be\s+)?paid)\b", re.IGNORECASE)
_WHO_DID = re.compile(r"who\s+(?:did|has\s+done|had\s+done)\s+(?:it|this|that|so|the\s+(?:work|job))", re.IGNORECASE)
_PASSIVE = re.compile(r".*?\b(was|were|is|are|be|been)\s+((?:the|our|my)\s.*)$", re.IGNORECASE)
_NAMES_FILES = re.compile(r"\b(?:folder|directory)\b|/|\.[a-z]{2,4}\b", re.IGNORECASE)
_FARTHEST = 60
"""Characters between a name and the sex that the same line tells."""


def leans(body: str) -> bool:
    """Return whether a question holds a pronoun that nothing before it in the question explains."""
    return any(_kind(body, match) for match in v.WORD.finditer(body))


def fill_in(
    body: str, talk: Talk, *, only_people: bool = False, is_meant: Callable[[str], bool] = lambda _name: True
) -> str:
    """Replace the leaning pronouns of `body`, or only those of people, by what they stand for in the last turn.

    A person who is not meant stands for none. If no pronoun stands for anything sure, the content words of the last
    question are added for the search.
    """
    pieces: list[str] = []
    done = 0
    for match in v.WORD.finditer(body):
        kind = _kind(body, match)
        if not kind or match.start() < done or (only_people and not kind.startswith("person")):
            continue
        if kind.startswith("person") and not is_meant(person(talk, match[0])):
            continue
        replacement, end = _replacement(kind, body, match, talk)
        if replacement:
            pieces += [body[done : match.start()], replacement]
            done = end
    filled = "".join([*pieces, body[done:]])
    return filled if pieces or only_people else _beside_last(body, talk)


def _beside_last(body: str, talk: Talk) -> str:
    """Return a question as it is typed, with the last topic or, for what no topic stands, the words asked with last."""
    if not any(_kind(body, match).startswith(("person", "thing")) for match in v.WORD.finditer(body)):
        return attach(body, talk)
    last = [word for word in v.words_of(talk.asked) if word.casefold() not in v.WH_WORDS | v.AUXILIARIES | v.PRONOUNS]
    return f"{body.rstrip('?.! ')} ({' '.join(last)})" if last else body


def attach(body: str, talk: Talk) -> str:
    """Append the last topic to a question that leans on it without a pronoun."""
    plain = body.rstrip("?.! ")
    mentioned = [phrase for phrase in phrases(plain) if not phrase.is_name]
    subject = talk.topic
    about = v.stems(v.content_words(subject))
    if _NAMES_FILES.search(subject):
        return plain  # what was summarised is not what the next question is about
    if not about or any(v.stem(phrase.head) in about for phrase in mentioned):
        return plain
    year = re.search(r"\b(?:19|20)\d\d\b", talk.asked)
    when = f" in {year[0]}" if year and year[0] not in subject and not re.search(r"\b(?:19|20)\d\d\b", plain) else ""
    single = mentioned[0] if len(mentioned) == 1 else None
    if single and single.text.split()[0].casefold() in v.DETERMINERS and not re.search(r"\b(?:of|for)\b", single.text):
        owner = re.match(r".*?\bof\s+(.+)", subject)  # the chair of the club, not of its treasurer
        whole = owner[1] if owner and not is_time(owner[1]) else subject
        return f"{plain[: single.end]} of {whole}{plain[single.end :]}{when}"
    return f"{plain} for {subject}{when}"


def person(talk: Talk, pronoun: str = "their") -> str:
    """Return whom 'he', 'her' or 'their' stand for; '' if the last question leaves that open.

    That is the answer to 'who', or a name of the question, of which nothing says otherwise, or whom it describes.
    """
    for place in range(len(talk.turns), 0, -1):
        past = Talk(talk.turns[:place])
        is_named = past.has_short_answer and v.is_name(past.answer) and not is_time(past.answer)
        is_named = is_named and past.answer.casefold().strip(" .") not in v.PRONOUNS
        answers = _fitting([past.answer], pronoun, talk) if ASKS_WHO.match(past.asked) and is_named else []
        if fitting := answers or _fitting(_people_in(past.asked), pronoun, talk):
            return fitting[0]
        if ASKS_WHO.match(past.asked):
            return _role(past.asked)
    is_called = talk.has_short_answer and talk.answer[:1].isupper() and not is_time(talk.answer)
    return talk.answer if is_called and _fitting([talk.answer], pronoun, talk) else talk.topic


def _people_in(asked: str) -> list[str]:
    """Return the names in a question that may be those of people: 'the dog Rex' of 'the owner of the dog Rex'."""
    spans = name_spans(asked)
    places = {asked[start:end] for start, end in spans if re.search(r"\b(?:in|at) $", asked[:start])}
    whole = {phrase.end: phrase.text for phrase in phrases(asked) if not v.JOINING & set(phrase.text.split())}
    names = [*names_in(asked), *(whole.get(end, asked[start:end]) for start, end in spans)]
    return [name for name in names if name not in places and not any(map(str.isdigit, name))]


def _role(asked: str) -> str:
    """Return whom a question asks for: 'the chair before Anna' of 'Who was the chair before Anna?'; '' if a deed."""
    described = _WHO_IS.match(asked.rstrip("?.! "))
    return described[1] if described else ""


def thing(talk: Talk) -> str:
    """Return the thing that 'it', 'they' or 'this' stand for: the last topic, or the answer to 'which' and 'what'.

    A person is none: it is '' then.
    """
    if talk.has_short_answer:
        if re.match(r"(?:\w+ )?what (?:is|are|was|were|do|does|did|has|have)\b", talk.asked, re.IGNORECASE):
            names_a_thing = any(not phrase.is_name and not is_time(phrase.text) for phrase in phrases(talk.asked))
            return talk.topic if names_a_thing else talk.answer
        which = re.match(r"(?:\w+ )?which\s+([^\W\d_]+)", talk.asked, re.IGNORECASE)
        first = next(iter(phrases(talk.asked)), None)
        owned = re.search(r"\b(?:have|has|had|belongs? to)\b", talk.asked) is not None
        if which and first and not owned and first.head not in v.ATTRIBUTES and first.text.startswith(which[1]):
            return f"the {first.text} {_ARTICLE.sub('', talk.answer)}"
    return "" if _is_person(talk.topic) else talk.topic


def _is_person(name: str) -> bool:
    """Return whether a title or a given name shows that a name is a person's."""
    words = v.words_of(name)
    titles = "|".join(_TITLES.values())
    return v.are_names(words) and (words[0] in v.GIVEN_NAMES or re.fullmatch(titles, words[0]) is not None)


def head_of(talk: Talk) -> str:
    """Return the noun that 'one' stands for: 'rehearsal' after 'When is the first rehearsal of the choir?'."""
    named = [phrase for phrase in phrases(talk.asked) if not phrase.is_name]
    for phrase in named:
        owner = re.match(r"(.+?)['’]s?\s", phrase.text)
        parts = re.split(r"\b(?:of|for)\s+", phrase.text)[1:] if phrase.text.split()[1:2] == [phrase.head] else []
        for part in [owner[1]] if owner else parts:
            words = [word for word in v.words_of(part) if word.casefold() not in v.DETERMINERS]
            if len(words) > 1 and not any(map(v.is_name, words)):
                return words[-1].casefold()  # 'insurance' of 'the insurer of the travel insurance'
    head = named[0].head if named else ""
    written = next((word for phrase in named[:1] for word in v.words_of(phrase.text) if word.casefold() == head), "")
    return _kind_of(written, talk) or written if v.is_name(written) else head


def _kind_of(name: str, talk: Talk) -> str:
    """Return what a quoted line calls the thing with a name: 'van' of 'Van: the white Berlingo'; '' if it does not."""
    labelled = re.compile(
        rf"(?:^|[.;\n]\s*|\d\.\s+)([^\W\d_]+): (?:(?:the|our|an?)\s+)?(?:[a-z-]+\s+){{0,2}}{re.escape(name)}\b"
    )
    called = (labelled.search(quote) for turn in talk.turns[::-1] for quote in turn.quotes)
    return next((match[1].casefold() for match in called if match), "")


def _fitting(names: Sequence[str], pronoun: str, talk: Talk) -> list[str]:
    """Return the names that are known to be of the sex of a pronoun, or else those of which nothing is known."""
    wanted = v.SEXES.get(pronoun.casefold(), "")
    known = {name: next(_sexes_of(name, talk), "") if wanted else "" for name in names}
    return [name for name in names if known[name] == wanted] or [name for name in names if not known[name]]


def _sexes_of(name: str, talk: Talk) -> Iterator[str]:
    """Yield 'he' or 'she' for all that tells the sex of a name, the surest first."""
    written = [word for word in v.words_of(name) if v.is_name(word)]
    words = [word for word in written if not any(re.fullmatch(titles, word) for titles in _TITLES.values())]
    if not words:
        return
    full, first_names = " ".join(words), rf"(?:{re.escape(words[0])}\s+)?" if len(words) > 1 else ""
    quotes = (quote for turn in talk.turns[::-1] for quote in (turn.answer, *turn.quotes))
    texts = [name, *quotes, *talk.texts_about(full)]
    with_title = rf"\b(?:{{}})\b\.?\s+{first_names}{re.escape(words[-1])}\b"
    with_sex = rf"(?i)\b{re.escape(full)}\b[^.\n]{{{{0,{_FARTHEST}}}}}\b(?:{{}})\b"
    yield from (sex for text in texts for sex, title in _TITLES.items() if re.search(with_title.format(title), text))
    if words[0] in v.GIVEN_NAMES:
        yield v.GIVEN_NAMES[words[0]]
    yield from (sex for text in texts for sex, words in _SEXES.items() if re.search(with_sex.format(words), text))
    for turn in talk.turns[::-1]:
        spoken = {v.SEXES[word] for word in v.words_of(turn.question.casefold()) if word in v.SEXES}
        if name in turn.asked and name not in turn.question and len(spoken) == 1:
            yield from spoken


def _kind(body: str, match: re.Match[str]) -> str:
    """Return 'person', 'person's', 'thing', 'thing's', 'place', 'time' or 'one'; '' if the word leans on nothing."""
    low = match[0].casefold()
    before, after = body[: match.start()], v.words_of(body[match.end() :].casefold())
    following = after[0] if after else ""
    if low in ("one", "ones") and re.search(r"\b(?:the|which|that|this|\w+er|other)(?: \w+)? $", before.casefold()):
        return "" if following == "of" else "one"
    if low in v.PLACES:
        return "" if any(one.start() <= match.start() < one.end() for one in _THERE_IS.finditer(body)) else "place"
    if low in v.TIMES:
        return "time" if before.strip() else ""
    if low in v.PERSONAL | v.POSSESSIVE:
        if _explained(before, low):
            return ""
        owns = low in v.POSSESSIVE and low != "hers" and bool(after) and following not in v.PREPOSITIONS
        base = "person" if low in v.SEXES else "thing"
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
        if previous and previous[0] not in v.PREPOSITIONS and not v.is_verb(previous[0]):
            return ""  # 'the firm that repaired it'
    return "thing"


def _explained(before: str, low: str) -> bool:
    """Return whether the question itself names what a pronoun stands for, before it."""
    named = [one for one in phrases(before) if not re.match(r"(?:his|her|its|their)\b", one.text.casefold())]
    if low in v.SEXES:
        owns = low in ("his", "her")
        return any(phrase.is_name or (owns and phrase.text.casefold().startswith("the ")) for phrase in named)
    joins = re.search(r"\b(?:if|when|because|before|after|while|and|that)\b", before[3:].casefold())
    return bool(named) and (low in ("its", "their") or joins is not None)


def _replacement(kind: str, body: str, match: re.Match[str], talk: Talk) -> tuple[str, int]:
    """Return what stands in place of a pronoun, and the end of what it replaces."""
    end = match.end()
    if of_kind := {"one": head_of, "place": _place, "time": _time}.get(kind):
        return of_kind(talk), end
    if match[0].casefold() in ("that", "this") and not body[end:].strip("?.! ") and (event := _event(talk)):
        is_asked_of = _WHEN_WAS.fullmatch(body[: match.start()]) is not None
        return event if not is_asked_of else event.removeprefix("having "), end
    if _DUE.match(body, end) and (amount := _amount(talk, is_compared=False)):
        return amount, end
    if _HOW_MUCH.match(body[: match.start()]) and (amount := _amount(talk, is_compared=body[end:].startswith(" for "))):
        return amount, end
    if body[: match.start()].casefold() in ("who is ", "who was ") and (role := _sought(talk.asked)):
        has_own_time = v.NOW.search(body, end) or re.search(r"\b(?:19|20)\d\d\b", body[end:])
        return _TIME_OF_ROLE.sub("", role) if has_own_time else role, end
    people = match[0].casefold() in ("they", "them", "their") and (ASKS_WHO.match(talk.asked) or _is_person(talk.topic))
    subject = person(talk, match[0]) if kind.startswith("person") or people else thing(talk)
    if kind.endswith("'s"):
        return _owned(subject, body, end)
    return _demonstrated(subject, body, end) if match[0].casefold() in v.DETERMINERS & v.THINGS else (subject, end)


def _demonstrated(subject: str, body: str, end: int) -> tuple[str, int]:
    """Return what 'that one' or 'that agreement' is, with the noun: 'the agreement of the flat'."""
    noun = re.match(r"\s+([^\W\d_]+)", body[end:])
    word = noun[1].casefold() if noun else ""
    is_one = word in ("one", "ones")
    if noun is None or not is_one and (v.is_verb(word) or word in v.PREPOSITIONS | v.STOP_WORDS):
        return subject, end
    is_same = is_one or not subject or v.stem(word) in v.stems(v.content_words(subject))
    return subject if is_same else f"the {noun[1]} of {subject}", end + noun.end()


def _owned(subject: str, body: str, end: int) -> tuple[str, int]:
    """Return 'the boiler's' for 'its', or 'the password of ...' with a long owner."""
    noun = re.match(r"\s+([^\W\d_]+(?: [^\W\d_]+)?)$", body[end:].rstrip("?.! "))
    if noun and len(subject.split()) > _LONGEST_OWNER and noun[1].split()[-1].casefold() in v.ATTRIBUTES:
        return f"the {noun[1]} of {subject}", end + noun.end()
    return (f"{subject}'s" if subject else ""), end


def _sought(asked: str) -> str:
    """Return what 'it' is in 'Who was it before?': 'it that conducts the choir' after 'Who conducts the choir?'."""
    does = _WHO_DOES.match(asked.rstrip("?.! "))
    return f"it that {does[1]}" if does else _role(asked)


def _event(talk: Talk) -> str:
    """Return what was done as a noun phrase: 'having the pump replaced' after 'By whom was the pump replaced?'."""
    asked = talk.asked.rstrip("?.! ")
    passive = _PASSIVE.match(asked)
    if passive and any(map(v.is_participle, v.words_of(passive[2].casefold()))):
        return f"having {passive[2]}"
    done = re.match(r"who\s+(\w+)\s+(.+)$", asked, re.IGNORECASE)
    return f"having {done[2]} {done[1]}" if done and v.is_participle(done[1]) else ""


def doer_asked(body: str, talk: Talk) -> str:
    """Return 'By whom was the pump replaced' for 'Who did it?' after 'When was the pump replaced?'; '' for others."""
    if not _WHO_DID.fullmatch(body.rstrip("?.! ")) or not (event := _event(talk)):
        return ""
    passive = _PASSIVE.match(talk.asked)
    return f"By whom {passive[1] if passive else 'was'} {event.removeprefix('having ')}"


def _amount(talk: Talk, *, is_compared: bool) -> str:
    """Return what was spoken of and can be paid: 'the deposit of the flat' after 'When was the deposit of it paid?'.

    What 'is compared' ('and how much is it for oak?') is what an amount was asked of last.
    """
    payable = next((phrase.text for phrase in phrases(talk.asked) if phrase.head in v.PAYABLE), "")
    if payable or not is_compared:
        return payable
    priced = [turn.asked for turn in talk.turns[::-1] if _ASKS_PRICE.match(turn.asked)]
    compared = next((named[0].text for asked in priced if (named := phrases(asked))), "")
    return re.split(r"\s+(?:in|for|with)\s+", compared)[0]  # 'flooring' of 'flooring in larch'


def _place(talk: Talk) -> str:
    if re.match(r"(?:\w+ )?where\b", talk.asked, re.IGNORECASE) and talk.has_short_answer:
        return talk.answer if talk.answer.split()[0].casefold() in v.PREPOSITIONS else f"at {talk.answer}"
    places = [(start, end) for start, end in name_spans(talk.asked) if _is_place(talk.asked, start, end)]
    subject = talk.asked[slice(*places[-1])] if places else thing(talk)
    if not places and subject != talk.topic:  # 'the windows Danish ones' is what was chosen, and no place
        subject = talk.site or subject
    return f"at {subject}" if subject else ""


def _is_place(asked: str, start: int, end: int) -> bool:
    """Return whether a name follows 'in' or 'at', or is an address: 'Elm Road 22'."""
    before = asked[:start].casefold().split()[-1:]
    return before in (["in"], ["at"], ["to"], ["from"]) or bool(re.search(r"[^\W\d_] \d+\w?$", asked[start:end]))


def _time(talk: Talk) -> str:
    if re.match(r"(?:\w+ )?when\b", talk.asked, re.IGNORECASE) and talk.has_short_answer:
        return f"on {talk.answer}"
    when = _WHEN.search(talk.asked)
    return f"{when[1].casefold()} {when[2]}" if when else ""
