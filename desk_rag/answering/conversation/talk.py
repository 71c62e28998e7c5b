"""The recent topic of a conversation, for the rules that complete a follow-up."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from desk_rag.answering.conversation import vocabulary as v
from desk_rag.answering.conversation.noun_phrases import Phrase, phrases
from desk_rag.answering.conversation.turns import Turn

_LONGEST_ANSWER = 6
"""Words of an answer that can stand for a pronoun; a longer one is a sentence."""
_MONTHS = frozenset(month.capitalize() for month in v.MONTHS)
_WH_NOUN = re.compile(
    r"(?:\w+ )?(?:which|what|how many)\s+(?!(?:is|are|was|were|do|does|did|has|have)\b)", re.IGNORECASE
)
_NAMED_OWNER = re.compile(r".*?\b(?:for|in|at)\s+((?:[A-Z][\w.-]*|\d+\w?)(?:\s+(?:[A-Z][\w.-]*|\d+\w?))*)$")
_NAME = re.compile(r"(?<=\s)[A-Z][\w.-]*(?:\s+(?:(?:the\s+)?[A-Z][\w.-]*|\d+[a-z]?\b))*")
_ASKS_PROPERTY = re.compile(r"(?:what|who) (?:is|are|was|were) (?:the|our|my)\b", re.IGNORECASE)
ASKS_WHO = re.compile(r"(?:\w+ )?(?:who|whom|whose)\b", re.IGNORECASE)
_ASKS_WHETHER = re.compile(r"(?:is|are|was|were)\s+(?!there\b)", re.IGNORECASE)
_ASKS_OF = re.compile(r"(?:\w+ ){0,3}?(?:is|are|was|were|do|does|did|has|have|can|will|should)\b", re.IGNORECASE)


def no_texts(_name: str) -> Sequence[str]:
    """Return that no document has the name."""
    return ()


@dataclass(frozen=True, slots=True)
class Talk:
    """The last turns of a conversation, newest last; there is at least one."""

    turns: tuple[Turn, ...]
    texts_about: Callable[[str], Sequence[str]] = no_texts
    """Function that returns texts of the documents which have a name."""

    @property
    def asked(self) -> str:
        """The last question, standing alone."""
        return self.turns[-1].asked

    @property
    def answer(self) -> str:
        """The last answer without blanks and full stop at its ends."""
        return self.turns[-1].answer.strip(" .\n")

    @property
    def has_short_answer(self) -> bool:
        """True if the last answer was found and is a name or a phrase rather than a sentence."""
        is_short = 0 < len(self.answer.split()) <= _LONGEST_ANSWER
        return self.turns[-1].found and is_short and self.answer.casefold() not in v.PRONOUNS

    @property
    def topic(self) -> str:
        """The topic of the conversation as a noun phrase.

        A property that was asked for ('the excess', 'her phone number') is no topic: what it belongs to is, which an
        earlier question or the heading of the quoted passage names.
        """
        people = {turn.answer.strip(" .\n") for turn in self.turns if ASKS_WHO.match(turn.asked)}
        for turn in self.turns[::-1]:
            if things := _things(turn.asked):
                return things[0] if len(things) > 1 and _ASKS_OF.match(turn.asked) else things[-1]
            names = [name for name in names_in(turn.asked) if name not in people]
            if turn is self.turns[-1] and names:
                return self._thing_of_heading() or names[0]
        bare = (phrase.text for turn in self.turns[::-1] for phrase in phrases(turn.asked) if not is_time(phrase.text))
        titles = (turn.headings[0].split(" › ")[-1] for turn in self.turns[::-1] if turn.headings)
        return next(bare, next(titles, ""))

    @property
    def thing(self) -> str:
        """The newest thing that was asked about, passing over people; '' without one."""
        return next((things[0] for turn in self.turns[::-1] if (things := _things(turn.asked))), "")

    @property
    def site(self) -> str:
        """The project or place that the folder of the last quoted file names: 'Nether Farm'; '' without one."""
        last = next((turn for turn in self.turns[::-1] if turn.paths), None)
        if last is None:
            return ""
        folder = [word.casefold() for word in re.findall(r"[^\W_]+", last.paths[0].parent.name)]
        headings = " \n ".join([*last.headings, last.paths[0].stem])
        named = [match[0] for match in re.finditer(r"[A-Z][^\W_]*(?: [A-Z][^\W_]*)*", headings)
                 if all(word.casefold() in folder for word in match[0].split())]  # fmt: skip
        return max(named, key=len, default=" ".join(folder) if len(folder) > 1 else "")

    def _thing_of_heading(self) -> str:
        """Return the newest thing asked about that the heading of the quoted passage names."""
        known = v.stems(v.content_words(" ".join(heading for turn in self.turns for heading in turn.headings)))
        things = (thing for turn in self.turns[::-1] for thing in _things(turn.asked))
        return next((thing for thing in things if v.stems(v.content_words(thing)) & known), "")


def names_in(asked: str) -> list[str]:
    """Return the names in a question, times left out: 'Mirjam Holt' of 'Mirjam Holt's phone number'."""
    owners = (re.match(r"(?:(?:the|our|my|your)\s+)?(.+?)['’]s?\s", f"{phrase.text} ") for phrase in phrases(asked))
    texts = [owner[1] if owner else phrase.text for owner, phrase in zip(owners, phrases(asked), strict=True)]
    return [text for text in texts if v.are_names(v.words_of(text)) and not is_time(text) and not text[:1].isdigit()]


def name_spans(asked: str) -> list[tuple[int, int]]:
    """Return where the names in a question stand, with the numbers that belong to them: 'Elm Road 22'."""
    spans = []
    for match in _NAME.finditer(asked):
        words = match[0].split()
        while words and (is_time(words[-1]) and len(words) > 1 and is_time(words[-2]) or words[-1] in _MONTHS):
            words.pop()
        if words and words != ["I"] and not is_time(" ".join(words)):
            spans.append((match.start(), match.start() + len(" ".join(words))))
    return spans


def is_time(text: str) -> bool:
    """Return whether a phrase consists of years, months, days and seasons."""
    times = v.MONTHS | v.WEEKDAYS | v.TIME_NOUNS
    words = [word.casefold() for word in v.words_of(text)]
    return all(word.isdecimal() or word in times or word in v.DETERMINERS for word in words)


def _things(asked: str) -> list[str]:
    """Return the noun phrases that name things; 'the price of the boiler' names the boiler."""
    things = []
    known = [phrase for phrase in phrases(asked) if not is_time(phrase.text)]
    if len(known) > 1 and _WH_NOUN.match(asked) and _asks_for_first(known, asked):
        known = known[1:]
    if _ASKS_WHETHER.match(asked):  # 'a driver' in 'Is Gerald a driver?' says what he is
        known = [phrase for phrase in known if phrase is known[0] or _follows_preposition(phrase, asked)]
    for phrase in known:
        text = _without_time(phrase.text)
        owner = re.match(r".*?\bof\s+(.+)", text) or _NAMED_OWNER.match(text)
        if phrase.is_name or (phrase.head.removesuffix("s") in v.TIME_NOUNS and _follows_preposition(phrase, asked)):
            continue  # 'on concert days' says when
        if phrase.head not in v.ATTRIBUTES and not (owner and _ASKS_PROPERTY.match(asked) and phrase is known[0]):
            things.append(phrase.text)
        elif owner:
            things.append(owner[1])
        else:
            things.append(text if _is_more_than_a_property(text) else _owning_words(text))
    return [thing for thing in things if thing]


def _asks_for_first(known: Sequence[Phrase], asked: str) -> bool:
    """Return whether the first phrase belongs to the question word: 'fuel' in 'What fuel does the engine need?'."""
    return asked[: known[0].start].casefold().split()[-1:] in (["which"], ["what"], ["many"])


def _without_time(text: str) -> str:
    """Return a phrase without the time at its end: 'the premium' of 'the premium in 2026'."""
    before, _, after = text.rpartition(" in ")
    return before if before and is_time(after) else text


def _follows_preposition(phrase: Phrase, asked: str) -> bool:
    return not v.PREPOSITIONS.isdisjoint(v.words_of(asked[: phrase.start].casefold())[-1:])


def _owning_words(text: str) -> str:
    """Return what two words or more before a property name: 'the car insurance' in 'the car insurance premium'."""
    before = text.rpartition(" ")[0]
    content = v.content_words(before)
    return before if len(content) > 1 and not v.ATTRIBUTES & set(content) else ""


def _is_more_than_a_property(text: str) -> bool:
    """Return whether a phrase such as 'the fee for plot 27' or 'the Gull room' names one thing of its kind."""
    is_owned = re.search(r"['’]s?\s", text) is not None
    return not is_owned and any(word.casefold() in v.JOINING or v.is_name(word) for word in v.words_of(text))
