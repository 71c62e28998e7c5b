"""Complete a fragment such as 'And in 2024?' or 'What about the kitchen?' from the last question."""

from __future__ import annotations

import re
from collections.abc import Sequence

from desk_rag.answering.conversation import antecedents
from desk_rag.answering.conversation import vocabulary as v
from desk_rag.answering.conversation.noun_phrases import Phrase, phrases
from desk_rag.answering.conversation.talk import Talk, is_time

_MOST_WORDS = 8
_YEAR = re.compile(r"\b(?:19|20)\d\d\b")
_NEXT_YEAR = re.compile(r"the (?:year )?(before|after|previous|next|following)(?: year)?(?: that)?", re.IGNORECASE)
_ORDINAL = re.compile(rf"\b({'|'.join((*v.ORDINALS, 'last'))})\b", re.IGNORECASE)
_KINDS = (v.MONTHS, v.WEEKDAYS, v.SEASONS)


def is_fragment(body: str, *, joined: bool) -> bool:
    """Return whether a question lacks its verb and only changes part of the last one."""
    words = [word.casefold() for word in v.words_of(body)]
    if not words or len(words) > _MOST_WORDS or any(word in v.AUXILIARIES for word in words):
        return False
    if _is_other_wh(words):
        return True
    if any(word in v.WH_WORDS for word in words):
        return False
    begins = words[0] in v.PREPOSITIONS | v.DETERMINERS | v.POSSESSIVE or words[0].isdecimal() or len(words) == 1
    return joined or (begins and body.rstrip().endswith("?"))


def _is_other_wh(words: Sequence[str]) -> bool:
    """Return whether a fragment only asks another question word: 'Why?', 'By whom?', 'In which year?'."""
    if all(word in v.BARE_WH for word in words):
        return any(word in v.WH_WORDS for word in words)
    asks = words[0] in ("which", "what") or (words[0] in v.PREPOSITIONS and words[1] in ("which", "what"))
    return asks and len(words) <= 4 and not any(map(v.is_verb, words))


def complete(fragment: str, talk: Talk) -> str:
    """Return the last question with the fragment in place of what it changes."""
    asked = talk.asked.rstrip("?.! ")
    words = [word.casefold() for word in v.words_of(fragment)]
    if words and _is_other_wh(words):
        return _other_wh(fragment, asked, talk)
    for rule in (_ordinal, _attribute, _date, _after_preposition, _name, _phrase):
        if completed := rule(fragment, asked, talk):
            return completed
    return f"{asked} {fragment}"


def _other_wh(fragment: str, asked: str, talk: Talk) -> str:
    """'By whom?' after 'When was it repaired?': the question word changes, the rest stays."""
    answer = talk.answer if talk.has_short_answer else ""
    auxiliary = re.search(rf"\b(?:{'|'.join(sorted(v.AUXILIARIES))})\b", asked, re.IGNORECASE)
    if auxiliary is None:
        verb, _, rest = re.sub(r"^\w+\s+", "", asked).partition(" ")
        if verb.endswith("ed") or verb in v.PARTICIPLES:  # 'When?' after 'Who planted the pear tree?'
            return f"{fragment} was {rest} {verb}"
        return " ".join(part for part in (fragment, answer, verb, rest) if part)
    before, rest = asked[: auxiliary.start()], asked[auxiliary.end() :].strip()
    first = rest.split(" ", 1)[0].casefold()
    if answer and before.strip() and v.is_verb(first):  # 'By whom?' after 'What was replaced?'
        return f"{fragment} {auxiliary[0]} {answer} {rest}"
    return f"{fragment} {auxiliary[0]} {rest}"


def _ordinal(fragment: str, asked: str, talk: Talk) -> str:
    """'The second one' changes the ordinal in the last question, or picks from a list in the last answer."""
    named = _ORDINAL.search(fragment)
    if not named or not re.fullmatch(r"(?:the |for the |in the )?\w+(?: ones?)?", fragment, re.IGNORECASE):
        return ""
    if _ORDINAL.search(asked):
        return _ORDINAL.sub(named[1].casefold(), asked, count=1)
    items = [item for item in re.split(r",\s*|\s+and\s+|;\s*", talk.answer) if item]
    place = v.ORDINALS.index(named[1].casefold()) if named[1].casefold() in v.ORDINALS else len(items) - 1
    if len(items) > place and len(items) > 1:
        return f"{asked} {items[place]}"
    head = antecedents.head_of(talk)
    return re.sub(rf"\b(?:the |a |an )?{re.escape(head)}\b", f"the {named[1]} {head}", asked, count=1) if head else ""


def _attribute(fragment: str, asked: str, talk: Talk) -> str:
    """'And the price?' asks about a property of what was spoken of."""
    own = phrases(f"is {fragment}")
    siblings = {v.stem(word) for phrase in phrases(asked) for word in v.content_words(phrase.text)}
    if (
        not own
        or own[0].head not in v.ATTRIBUTES
        or v.stem(own[0].head) in siblings
        or re.search(r"\b(?:of|for)\b", fragment)
    ):
        return ""
    text = fragment if fragment.split()[0].casefold() in v.DETERMINERS else f"the {fragment}"
    if antecedents.leans(fragment):
        return f"What is {antecedents.fill_in(fragment, talk)}"
    subject = talk.topic
    return f"What is {text} of {subject}" if subject else ""


def _date(fragment: str, asked: str, _talk: Talk) -> str:
    """'In 2024' replaces the year of the last question, 'in May' its month, 'on Friday' its day."""
    bare = re.sub(r"^(?:in|on|at|for|during|since|until)\s+", "", fragment, flags=re.IGNORECASE)
    if (near := _NEXT_YEAR.fullmatch(bare)) and (old := _YEAR.search(asked)):
        later = near[1].casefold() in ("after", "next", "following") or "after" in bare.casefold()
        return _YEAR.sub(str(int(old[0]) + (1 if later else -1)), asked, count=1)
    if year := _YEAR.fullmatch(bare):
        return _YEAR.sub(year[0], asked, count=1) if _YEAR.search(asked) else f"{asked} in {year[0]}"
    for kind in _KINDS:
        if bare.casefold().split()[0] in kind and len(bare.split()) <= 2:
            before = next((word for word in v.words_of(asked)[1:] if word.casefold() in kind), "")
            return re.sub(rf"\b{re.escape(before)}\b", bare, asked, count=1) if before else f"{asked} {fragment}"
    return ""


def _after_preposition(fragment: str, asked: str, talk: Talk) -> str:
    """'For the kitchen' replaces what follows 'for' in the last question, or is appended."""
    first, _, rest = fragment.partition(" ")
    if first.casefold() not in v.PREPOSITIONS or not rest:
        return ""
    whole = antecedents.fill_in(rest, talk) if antecedents.leans(rest) else rest
    old = re.search(rf"\b{first}\s+((?:[^\W_][^\s,]*\s*)+)$", asked, re.IGNORECASE)
    if old and (same := phrases(f"{first} {old[1]}")):
        return f"{asked[: old.start(1)]}{whole}{old[1][same[0].end - len(first) - 1 :]}"
    head = next((phrase for phrase in phrases(asked) if phrase.is_name and not phrase.text.isdecimal()), None)
    if head and v.is_name(rest.split()[0]):
        return f"{asked[: head.start]}{whole}{asked[head.end :]}"
    return f"{asked} {first.casefold()} {whole}"


def _name(fragment: str, asked: str, _talk: Talk) -> str:
    """'And Ana?' replaces a name."""
    if not v.is_name(fragment) or fragment.split()[0].casefold() in v.DETERMINERS:
        return ""
    owns = re.search(r"['’]s?$", fragment) is not None
    owner = re.search(r"(?:\b[A-Z][\w.-]*\s)*\b[A-Z][\w.-]*['’]s\b", asked[1:])
    if owner:
        start, end = owner.start() + 1, owner.end() + 1
        return f"{asked[:start]}{fragment if owns else fragment + chr(39) + 's'}{asked[end:]}"
    known = [phrase for phrase in phrases(asked) if phrase.is_name and not is_time(phrase.text)]
    if known:
        return f"{asked[: known[0].start]}{fragment}{asked[known[0].end :]}"
    inner = re.search(r"(?<!^)\b[A-Z][\w-]*(?:\s+[A-Z][\w-]*)*", asked)
    if inner and not is_time(inner[0]):
        return f"{asked[: inner.start()]}{fragment}{asked[inner.end() :]}"
    return ""


def _phrase(fragment: str, asked: str, talk: Talk) -> str:
    """'And the kitchen?' replaces the noun phrase that the last question asks about."""
    known = [phrase for phrase in phrases(asked) if not is_time(phrase.text)]
    if not known:
        return ""
    fragment = antecedents.fill_in(fragment, talk) if antecedents.leans(fragment) else fragment
    words = v.content_words(fragment)
    old = next((phrase for phrase in known if words and v.stem(phrase.head) == v.stem(words[-1])), known[-1])
    start, end = _replaced(old, same_head=bool(words) and v.stem(old.head) == v.stem(words[-1]))
    return f"{asked[: old.start + start]}{fragment}{asked[old.start + end :]}"


def _replaced(phrase: Phrase, *, same_head: bool) -> tuple[int, int]:
    """Return which part of a phrase is exchanged: of 'the width of the gate' what follows 'of'.

    Of 'the spring concert of the choir' what precedes it, if another concert is named.
    """
    owner = re.match(r"(.*?)\s+of\s+", phrase.text)
    if owner and same_head:
        return 0, owner.end(1)
    return (owner.end() if owner and phrase.head in v.ATTRIBUTES else 0), len(phrase.text)
