"""The noun phrases of a question, found by its small words: no tagger, no model."""

from __future__ import annotations

import re
from dataclasses import dataclass

from desk_rag.answering.conversation import vocabulary as v

_ARTICLES = v.DETERMINERS | frozenset(v.ORDINALS)
"""A word after one of these is a noun, even if it can be a verb: 'the repair', 'the second work day'."""
_OTHERS = frozenset(
    ("and", "or", "not", "much", "many", "long", "often", "if", "because", "one", "ones")
    + ("now", "currently", "still", "already", "yet", "ever", "never", "always")
)
_SMALL = _OTHERS | v.AUXILIARIES | v.WH_WORDS | v.PREPOSITIONS | v.PRONOUNS | v.PLACES | v.TIMES
_BE = frozenset(("is", "are", "was", "were"))
_BE_SO_WITH = frozenset(("with", "about", "in", "at", "on"))
_QUANTITIES = frozenset(("much", "many"))
_DO = frozenset(("do", "does", "did"))
_TAKE_A_VERB = frozenset(("do", "does", "did", "will", "would", "can", "could", "should", "must"))


@dataclass(frozen=True, slots=True)
class Phrase:
    """A noun phrase and its place in the question."""

    text: str
    start: int
    end: int
    is_name: bool
    """True if it consists of names or numbers only."""

    @property
    def head(self) -> str:
        """The last word before a preposition, in lower case: 'number' in 'the frame number of the bicycle'."""
        words = [word.casefold() for word in v.words_of(self.text)]
        first = next((place for place, word in enumerate(words) if place and word in v.JOINING), len(words))
        return words[first - 1] if words else ""


def phrases(question: str) -> list[Phrase]:
    """Return the noun phrases in order: 'the dishwasher in the kitchen', 'solar panels', 'Anna Berg'."""
    words = list(v.WORD.finditer(question))
    last_verb = _last_verb(words)
    nouns = v.NOUNS_BEHIND_BE if _asks_with_be(words) else frozenset()
    in_order: list[Phrase] = []
    place = 0
    while place < len(words):
        end = _end_of(words, place, question, nouns) if _begins(words, place) else place
        end = last_verb if place < last_verb < end else end
        if end > place:
            start, stop = words[place].start(), words[end - 1].end()
            are_names = v.are_names([word[0] for word in words[place:end]])
            in_order.append(Phrase(question[start:stop], start, stop, are_names))
        place = max(end, place + 1)
    return in_order


def _begins(words: list[re.Match[str]], place: int) -> bool:
    word = words[place][0]
    low = word.casefold()
    previous = words[place - 1][0].casefold() if place else ""
    if previous in _QUANTITIES:
        return not _is_small(word)
    if low in v.DETERMINERS:
        return place + 1 < len(words) and not _is_small(words[place + 1][0])
    if _ends(word) or previous in ("who", "whom"):  # after 'who' comes a verb
        return False
    if previous in _BE and _is_state(words, place):
        return False
    return (
        v.is_name(word) and place > 0 or previous in v.AUXILIARIES | v.WH_WORDS | v.PREPOSITIONS or v.is_verb(previous)
    )


def _asks_with_be(words: list[re.Match[str]]) -> bool:
    low = [word[0].casefold() for word in words]
    return any(word in _BE for word in low[:4]) and not any(word in _TAKE_A_VERB for word in low)


def _end_of(words: list[re.Match[str]], place: int, question: str, nouns: frozenset[str]) -> int:
    """Return the place behind the last word of the phrase that begins at `place`; `nouns` are no verbs in it."""
    end = place + 1 if words[place][0].casefold() in v.DETERMINERS else place
    while end < len(words):
        low = words[end][0].casefold()
        if end > place and re.search(r"[,;:?!()]", question[words[end - 1].end() : words[end].start()]):
            break
        if end > place and _is_whole(words, place, end):
            break
        if low in v.JOINING and end > place and _continues(words, end):
            end += 2 if words[end + 1][0].casefold() in v.DETERMINERS else 1
            continue
        if low == "the" and _is_epithet(words, place, end):
            end += 2
            continue
        if low in v.DETERMINERS and end > place:  # 'Anna | the treasurer' in 'Is Anna the treasurer?'
            break
        after_article = end > 0 and words[end - 1][0].casefold() in (_ARTICLES if end > place else _QUANTITIES)
        noun = after_article or (end > place and (low in nouns or _is_noun_before_verb(words, end)))
        if _is_small(words[end][0]) if noun else _ends(words[end][0]):
            break
        end += 1
    return end


def _is_whole(words: list[re.Match[str]], place: int, end: int) -> bool:
    """Return whether a time or a name ends here: 'evening | at Mill Road', 'Mill Road | on site', 'Nora | staying'."""
    following = words[end][0].casefold()
    if v.are_names([word[0] for word in words[place:end]]):
        is_subject = place > 0 and words[place - 1][0].casefold() in _BE
        return following == "on" or (is_subject and following.endswith("ing"))
    return end == place + 1 and following in v.JOINING and words[place][0].casefold() in v.TIME_NOUNS


def _is_state(words: list[re.Match[str]], place: int) -> bool:
    """Return whether a word says how something is: 'wrong' in 'What is wrong with the pump?'."""
    asks_what = place > 1 and words[place - 2][0].casefold() == "what"
    following = words[place + 1][0].casefold() if place + 1 < len(words) else ""
    return asks_what and following in _BE_SO_WITH and not v.is_name(words[place][0])


def _is_epithet(words: list[re.Match[str]], begin: int, place: int) -> bool:
    """Return whether 'the' at `place` joins a name and what tells it from others: 'Bella the Labrador'."""
    if place == 0 or place + 1 >= len(words) or not v.are_names([word[0] for word in words[begin:place]]):
        return False
    previous = words[begin - 1][0].casefold() if begin else ""
    is_subject = previous in v.AUXILIARIES and previous not in _BE  # 'Did Anna the treasurer resign?'
    is_capital = words[place + 1][0][:1].isupper() and previous in v.AUXILIARIES | v.PREPOSITIONS
    return begin < place and (is_capital or (is_subject and not _ends(words[place + 1][0])))


def _is_noun_before_verb(words: list[re.Match[str]], place: int) -> bool:
    """Return whether a verb follows a word that may be one itself: 'work' in 'When did the roof work begin?'."""
    following = words[place + 1][0].casefold() if place + 1 < len(words) else ""
    is_verb = v.is_verb(following) and following not in v.PREDICATES | v.AUXILIARIES
    takes_a_verb = any(word[0].casefold() in _DO for word in words[:place])  # 'stand' in 'did the music stand cost'
    return is_verb and (takes_a_verb or words[place][0].casefold() in v.NOUNS_BEHIND_BE)


def _last_verb(words: list[re.Match[str]]) -> int:
    """Return the place of the verb in 'Did the dishwasher leak?': the last word, if no known verb follows 'did'."""
    low = [word[0].casefold() for word in words]
    auxiliary = next((place for place, word in enumerate(low) if word in _TAKE_A_VERB), len(low))
    if auxiliary and low[auxiliary - 1] == "who" and low[auxiliary] in _DO:  # 'Who does the accounts?'
        return len(low)
    rest = low[auxiliary + 1 :]
    if len(rest) < 3 or any(v.is_verb(word) for word in rest) or v.is_name(words[-1][0]):
        return len(low)
    before_phrase = next((place for place, word in enumerate(rest) if place > 1 and word in v.PREPOSITIONS), len(rest))
    return auxiliary + before_phrase if before_phrase > 2 else len(low)


def _continues(words: list[re.Match[str]], place: int) -> bool:
    """Return whether the preposition at `place` is followed by a noun that belongs to the phrase."""
    following = [word[0] for word in words[place + 1 : place + 3]]
    if following and following[0].casefold() in v.DETERMINERS:
        return len(following) > 1 and not _is_small(following[1])
    return bool(following) and not _ends(following[0])


def _ends(word: str) -> bool:
    """Return whether no noun phrase continues with this word."""
    return _is_small(word) or (not v.is_name(word) and v.is_verb(word.casefold()))


def _is_small(word: str) -> bool:
    low = word.casefold()
    is_name = v.is_name(word) and low not in v.WH_WORDS | v.AUXILIARIES | v.DETERMINERS
    return not is_name and low in _SMALL
