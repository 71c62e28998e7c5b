"""English function words, and which words of a question carry its topic."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from desk_rag.answering.requirements import dates
from desk_rag.store.catalog.words import STOP_WORDS as STOP_WORDS


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


WORD = re.compile(r"[^\W_]+(?:[-.'’:/@&][^\W_]+)*")
AUXILIARIES = _words(
    "is are was were be been am do does did has have had can could will would shall should may might must"
)
WH_WORDS = _words("who whom whose what which when where why how")
DETERMINERS = _words("the a an my our your his her their its this that these those")
PREPOSITIONS = _words("of in on at to for from by with about as into over under after before during until since per")
JOINING = _words("of in on at for from with about by")
"""Prepositions that continue a noun phrase if a noun follows."""
PERSONAL = _words("he him she they them")
POSSESSIVE = _words("his her hers their theirs its")
THINGS = _words("it this that these those them they")
PLACES = _words("there")
TIMES = _words("then")
SEXES = {"he": "he", "him": "he", "his": "he", "she": "she", "her": "she", "hers": "she"}
"""The pronouns of one person, and for whom they stand."""
PRONOUNS = PERSONAL | POSSESSIVE | THINGS | SEXES.keys() | _words("i we you me us")
NOW = re.compile(r"\b(?:now|nowadays|today|currently|at\s+present|at\s+the\s+moment)\b", re.IGNORECASE)
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
MONTHS = frozenset(dates.MONTHS)
WEEKDAYS = _words("monday tuesday wednesday thursday friday saturday sunday")
SEASONS = _words("spring summer autumn fall winter")
TIME_NOUNS = SEASONS | _words("year month week morning evening afternoon time day weekend")
BARE_WH = WH_WORDS | PREPOSITIONS | _words("much many long often far old exactly else")
"""Words of a fragment such as 'By whom?' or 'Since when exactly?'."""
ATTRIBUTES = _words(
    "excess premium price cost costs fee fees deposit rent salary amount total budget discount fine penalty tax date "
    "deadline time times duration length width height weight size colour color capacity area distance temperature "
    "speed age name names number phone telephone address email e-mail owner author reason cause result outcome status "
    "warranty guarantee model brand type version password code contact supplier manufacturer maker address place "
    "location venue room hours website recipe ingredients dose dosage notice term interest rate"
)
"""Nouns that name a property, so that 'and the price?' asks about what was spoken of before."""
OF_PEOPLE = _words("phone telephone number email e-mail address name names age salary contact")
"""Properties that a person has; others belong to the thing that was spoken of."""
GIVEN_NAMES = dict.fromkeys(
    _words(
        "Alice Anita Anna Anne Barbara Beatriz Carla Carmen Caroline Catherine Charlotte Christine Clara Claire Diana "
        "Dorothy Edith Elena Elizabeth Emily Emma Esther Eva Fiona Hannah Helen Helena Helga Ines Ingrid Irene Isabel "
        "Jane Janet Joanna Judith Julia Karen Laura Linda Louise Lucy Margaret Maria Marie Martha Mary Miriam Mirjam "
        "Nadia Nina Nora Olivia Patricia Paula Petra Priya Rachel Rebecca Rosa Ruth Sarah Sofia Sophie Susan Ursula"
    ),
    "she",
) | dict.fromkeys(
    _words(
        "Adam Adrian Alan Albert Andrew Anthony Arthur Ben Bernard Boris Brian Callum Carl Daniel David Derek Edward "
        "Eric Frank Frederick George Gerald Gordon Graham Harold Henry Howard Hugh Ian Ivan James Jeremy John Jonas "
        "Josh Karl Keith Kenneth Kevin Lars Malcolm Marco Martin Matthew Michael Neil Nicholas Nigel Oliver Omar Otto "
        "Patrick Paul Peter Philip Piet Richard Robert Roger Simon Stephen Sven Thomas Tim Tobias Tom Walter William"
    ),
    "he",
)
"""Given names that tell whether 'he' or 'she' stands for a person."""
PAYABLE = _words("price cost costs fee fees deposit rent salary fine penalty premium tax amount invoice bill")
BILLS = _words("bill bills invoice invoices price fee")
"""Amounts of which 'How much was the bill?' asks for that of what was spoken of."""
VERBS = _words(
    "agree allow allows answer apply arrive ask attend begin begins belong belongs book bought break bring build built "
    "buy call came change charge charges check choose chose close closes come comes contain contains cost costs cover "
    "covers cut decide describe die do done drive drove eat end ends expire expires fail fall fell find finish "
    "finishes fit fits fix gave get gets give given gives go goes going gone got grow had hang hangs happen happened "
    "hear held help hold holds hire include includes join keep keeps kept know last lasts lay lead leads learn leave "
    "leaves left lend lie lies like live lives look lost made make makes mean means meet meets met move need needs "
    "offer open opens order own owns paid paint park pay pays pick plan play print prove put quote quoted quotes raise "
    "ran reach read receive remove rent repair replace report reports return rise rises run runs said sang sat save "
    "say says see sell sells send sent serve serves set share show sign sing sit sits sleep sold speak spent stand "
    "stands start starts stay stays stood stop stops store support take takes taken talk taught teach teaches tell "
    "think throw told took train travel tune turn use uses visit wait want wants wash watch water wear weigh weighs "
    "went win won work works write wrote written"
)
PREDICATES = _words(
    "valid due open old long large big heavy high wide deep far fast expensive cheap available allowed included "
    "responsible missing located ready free full late early broken important needed necessary possible best insured "
    "closed kept sold made paid bought held found hidden lost stored"
)
"""Adjectives and participles that end a noun phrase which the question asks something about."""
PARTICIPLES = _words(
    "built bought brought sold made paid found lost kept held left lent sent spent taught told won cut put set hung"
)
"""Irregular verbs whose past form is also the participle."""
NOUNS_BEHIND_BE = _words(
    "book build call change charge charges check close cost costs cover cut drive end ends fall fit grow help hire lay "
    "lead lie look make move need needs offer order park pay pick plan play print rent repair report reports return "
    "rise run show sign start stay stop store support talk train travel turn use uses visit wait watch water work "
    "works"
)
"""Verbs that are nouns too, and nouns they are behind 'is': 'What is the monthly rent for the flat?'"""
_VAGUE = _words(
    "much many long often far old big large high exactly also too else then still now please tell say says said "
    "mention happen happened cost costs"
)
_NOT_PARTICIPLES = _words("bed shed seed feed need speed weed red hundred unit-linked united embed")


def words_of(text: str) -> list[str]:
    """Return the words of a text as they are written."""
    return WORD.findall(text)


def content_words(text: str) -> list[str]:
    """Return the words that a question is about, in lower case."""
    return [word for word in words_of(text.casefold()) if is_content(word)]


def is_content(word: str) -> bool:
    """Return whether a lower-case word says what a question is about."""
    plain = word.removesuffix("'s").removesuffix("’s")
    leaning = PRONOUNS | PLACES | TIMES | {"one", "ones"}
    return plain not in STOP_WORDS and plain not in _VAGUE and plain not in leaning


def is_verb(word: str) -> bool:
    """Return whether a lower-case word ends the noun phrase before it: a verb, a participle or a predicate."""
    participle = len(word) > 4 and word.endswith("ed") and word not in _NOT_PARTICIPLES
    return word in VERBS or word in PREDICATES or word in AUXILIARIES or participle


def is_participle(word: str) -> bool:
    """Return whether a lower-case word says what was done: 'repaired', 'built'."""
    return word.endswith("ed") or word in PARTICIPLES


def is_auxiliary(words: Sequence[str], place: int) -> bool:
    """Return whether a word is 'is', 'does' or the like; 'may' after a preposition or before a year is the month."""
    low = words[place].casefold()
    if low == "may" and place:
        following = words[place + 1] if place + 1 < len(words) else ""
        return not (words[place - 1].casefold() in PREPOSITIONS or following.isdecimal() or not following)
    return low in AUXILIARIES


def is_name(word: str) -> bool:
    """Return whether a word is written like a name or contains a digit."""
    return (word[:1].isupper() and word != "I") or any(character.isdigit() for character in word)


def are_names(words: Sequence[str]) -> bool:
    """Return whether words are written like a name; 'the' may stand within it: 'Bella the Labrador'."""
    if not words or not is_name(words[0]):
        return False
    return all(is_name(word) or "the" in (word, before) for before, word in pairwise(words))


def stem(word: str) -> str:
    """Return the beginning that forms of one word share: 'repaired', 'repairs', 'repair'."""
    plain = word.removesuffix("'s").removesuffix("’s")
    for ending in ("ing", "ies", "ed", "es", "s", "e", "y"):
        if plain.endswith(ending) and len(plain) - len(ending) >= 3:
            return plain[: -len(ending)]
    return plain


def stems(words: Sequence[str]) -> frozenset[str]:
    """Return the stems of content words."""
    return frozenset(map(stem, words))
