"""Split a question that asks for two things, or for one thing by way of another.

'When was the one bought, and who repaired the other?' is asked as two questions. 'What is the phone number of the man
who repaired it?' is asked as 'Who repaired it?' and then with the name that this gave.
'With the charger, and without it?' asks for two values, too, and 'Which is cheaper, larch or oak?' for two
that are compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from desk_rag.answering.requirements.answer_kinds import asks_quantity

_ASKING = (
    r"(?:(?:at|by|in|on|from|to|for|with|of|since|until)\s+)?"
    r"(?:who|whom|whose|what|which|when|where|why|how)\b"
)
_TWO = re.compile(rf"^(?P<first>{_ASKING}.+?)(?:\?\s*|,\s*|;\s*)(?:and\s+)(?P<second>{_ASKING}.+?)\??$", re.I | re.S)
_TWO_SENTENCES = re.compile(rf"^(?P<first>{_ASKING}[^?]+)\?\s*(?:and\s+)?(?P<second>{_ASKING}[^?]+)\?$", re.I | re.S)
_FEWEST_WORDS = 3
_WH = r"(?:who|whom|when|where|why|what|which|how(?:\s+(?:much|many|long|often|far|old))?)"
_WITH_PREPOSITION = rf"(?:(?:at|by|in|on|from|to|for|with|until|since)\s+)?{_WH}(?:\s+(?:time|day|date|price|place))?"
_WITHOUT_COMMA = re.compile(rf"^(?P<first>{_ASKING}.+?)\s+and\s+(?P<second>{_ASKING}.+?)\??$", re.I | re.S)
_SECOND_BARE = re.compile(
    rf"^(?P<asks>{_WITH_PREPOSITION})\s+(?P<rest>.+?),?\s+and\s+(?P<second>{_WITH_PREPOSITION})\??$", re.I
)
_BOTH_FIRST = re.compile(
    rf"^(?P<asks>{_WITH_PREPOSITION})\s+and\s+(?P<second>{_WITH_PREPOSITION})\s+(?P<rest>.+?)\??$", re.I
)
_OF_BOTH = re.compile(
    r"^what\s+(?P<verb>are|were)\s+the\s+(?P<noun>[\w-]+(?:\s[\w-]+)?)s\s+of\s+"
    r"(?P<first>.+?)\s+and\s+(?:of\s+)?(?P<second>.+?)(?P<time>\s(?:in|on|during|for|of)\s(?:[A-Z]\w+\s)?\d{4})?\??$",
    re.I,
)
_TWO_OF_ONE = re.compile(
    r"^(?P<asks>what\s+(?:is|are|was|were))\s+(?P<first>(?:the|my|our|his|her|their)\s+[\w-]+(?:\s[\w-]+)?)\s+and\s+"
    r"(?P<second>(?:the\s+)?[\w-]+(?:\s[\w-]+)?)\s+(?P<of>of\s+.+?)\??$",
    re.I,
)
_WITH_AND_WITHOUT = re.compile(
    r"^(?P<asks>.+?)\s+(?P<one>with|without)\s+(?P<thing>.+?),?\s+and\s+(?P<other>with|without)(?:\s+.+?)?\??$", re.I
)
_BOTH_WAYS = re.compile(
    r"^(?P<asks>.+?)\s+(?P<one>with|without)\s+and\s+(?P<other>with|without)\s+(?P<thing>.+?)\??$", re.I
)
_IN_TWO_YEARS = re.compile(
    r"^(?P<asks>.+?)\s+in\s+(?P<one>(?:19|20)\d\d(?:/\d\d)?)\s+and\s+(?:in\s+)?(?P<other>(?:19|20)\d\d(?:/\d\d)?)\??$",
    re.I,
)
_HAS_ARTICLE = r"(?:the|our|my|his|her|their)\s"
_OF = r"(?:of|in|from|for|on|at|by)"
_SIDE_BY_SIDE = (
    re.compile(
        rf"^(?:please\s+)?compare\s+(?P<thing>{_HAS_ARTICLE}.+?)\s+(?P<of>{_OF})\s+(?P<one>.+?)\s+(?:with|to|and|against)\s+"
        r"(?:(?:that|those|the\s+one)\s+)?(?P=of)\s+(?P<other>.+?)[.?]*$",
        re.I,
    ),
    re.compile(
        rf"^(?:please\s+)?compare\s+(?P<thing>{_HAS_ARTICLE}.+)\s+(?P<of>{_OF})\s+(?P<one>.+?)\s+(?:with|to|and|against)\s+"
        r"(?P<other>.+?)[.?]*$",
        re.I,
    ),
    re.compile(
        r"^how\s+(?:did|has|have)\s+(?P<thing>.+?)\s+(?:change|move|rise|go\s+up|fall|develop|differ|grow)[a-z]*\s+"
        r"(?:between|from)\s+(?P<one>.+?)\s+(?:and|to)\s+(?P<other>.+?)\??$",
        re.I,
    ),
)
"""Questions for one property of two things, which are asked as two."""
_AGAINST = re.compile(
    rf"^(?P<asks>(?:within\s+)?{_ASKING}.+?),\s+(?P<one>[^,]+?)\s+(?:against|versus|vs\.?|compared\s+(?:with|to))\s+"
    r"(?P<other>[^,]+?)\??$",
    re.I,
)
_YEAR = re.compile(r"\b(?:19|20)\d\d\b")
_RELATIVE = re.compile(r"\b(?:who|whom|whose|which|that|what|when|where|why|how)\b", re.I)
_PERSONS = (
    "man woman person one guy lady people teacher painter carpenter doctor vet lawyer clerk owner author writer"
    " composer engineer technician driver tenant landlord landlady guest customer leader chair editor dentist plumber"
    " supplier dealer provider manufacturer contractor insurer officer secretary treasurer tuner conductor"
)
_BY_WAY_OF = re.compile(
    r"^(?P<before>.+?\s)(?P<noun_phrase>the\s+(?P<noun>[\w-]+(?:\s[\w-]+)?)\s+(?:who|that|which)\s+(?P<clause>.+?))"
    r"(?P<after>\s+(?:live|work|come)s?(?:\s+(?:for|from|in|at))?)?\?*$",
    re.I | re.S,
)
_BY_ROLE = re.compile(
    rf"^(?P<before>(?!who\b).+?\s)(?P<noun_phrase>the\s+(?:{'|'.join(_PERSONS.split())})\s+of\s+.+?)"
    r"(?P<after>\s+(?:live|work|come|earn|get|charge|want|ask)s?(?:\s+(?:for|from|in|at))?)?\?*$",
    re.I | re.S,
)
_CONTACT_OF_ROLE = re.compile(
    r"^(?P<before>what(?:['’]s|\s+is)\s+the\s+(?:(?:tele)?phone|mobile|e-?mail|address)(?:\s+(?:number|address))?\s+of\s+)"
    rf"(?P<noun_phrase>(?:the|my|our)\s+(?:[\w-]+\s+)?(?:{'|'.join(_PERSONS.split())}))\?*$",
    re.I,
)
_MOST_NAME_WORDS = 6


_LESS = "cheaper shorter lower narrower lighter smaller younger thinner shallower".split()  # noqa: SIM905
_ASKED_OF = {
    "cheaper": "How much does {} cost?", "dearer": "How much does {} cost?", "more expensive": "How much does {} cost?",
    "taller": "How tall is {}?", "shorter": "How long is {}?", "longer": "How long is {}?", "higher": "How high is {}?",
    "lower": "How high is {}?", "wider": "How wide is {}?", "narrower": "How wide is {}?", "deeper": "How deep is {}?",
    "shallower": "How deep is {}?", "heavier": "How heavy is {}?", "lighter": "How heavy is {}?",
    "larger": "How large is {}?", "bigger": "How big is {}?", "smaller": "How large is {}?", "older": "How old is {}?",
    "younger": "How old is {}?", "thicker": "How thick is {}?", "thinner": "How thick is {}?",
}  # fmt: skip
_COMPARED = re.compile(
    rf"^(?:which|who|what)(?P<noun>(?:\s+[\w-]+){{0,2}}?)\s+(?:is|was)\s+(?:the\s+)?(?P<word>{'|'.join(_ASKED_OF)})\s*[,:]?\s+"
    r"(?P<first>.+?)\s+or\s+(?P<second>.+?)\?*$",
    re.I,
)
_DIFFERENCE = re.compile(
    rf"^how\s+(?P<how>much|many)\s+(?P<word>{'|'.join(_ASKED_OF)}|more|less|fewer|higher)(?P<noun>(?:\s+[\w-]+){{0,2}}?)\s+"
    r"(?P<auxiliary>is|was|are|were|do|does|did)\s+"
    r"(?P<first>.+?)(?:\s+(?P<verb>cost|pay|earn|weigh|charge|get|need|use))?\s+than\s+(?P<second>.+?)\?*$",
    re.I,
)
_LEANS = re.compile(r"(?P<preposition>of|from|in|for|at|on|by)\s+\S")
_NAMES = re.compile(r"(?<=\s)[A-Z][\w’-]*(?:\s[A-Z][\w’-]*)*")
_BARE = re.compile(r"[A-Z]|\d+\w?")
_MEASURE = re.compile(
    r"(?<![\w.,])(?P<before>[€$£¥]|[A-Z]{3}\b)?\s?(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(?![\d.,:/-]*\d)"
    r"\s?(?P<unit>[^\W_][\w/]*|[€$£¥%])?"
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A question which of two things has more of something, or less, or by how much."""

    word: str
    names: tuple[str, str]
    asks: str
    """The question for the measure of one, with '{}' for its name."""
    by_how_much: bool = False

    @property
    def questions(self) -> tuple[str, str]:
        """The question for the measure of each."""
        return self.asks.format(self.names[0]), self.asks.format(self.names[1])

    def verdict(self, first: str, second: str) -> str:
        """Which it is, with the two answers compared; empty if they are no two numbers of one unit."""
        one, other = _measure(first), _measure(second)
        if one is None or other is None or one[1] != other[1]:
            return ""
        shown = first.strip(" ."), second.strip(" .")
        if self.by_how_much:
            by = f"{abs(one[0] - other[0]):,}"
            difference = _MEASURE.sub(lambda match: match[0].replace(match["number"], by), shown[0])
            return f"{difference} (computed: between {shown[0]} and {shown[1]})"
        if one[0] == other[0]:
            return f"Neither (computed: {shown[0]} and {shown[1]})"
        wins = int((one[0] > other[0]) is (self.word in _LESS))
        relation = "less" if self.word in _LESS else "more"
        name = self.names[wins]
        return f"{name[0].upper()}{name[1:]} (computed: {shown[wins]} is {relation} than {shown[1 - wins]})"


def comparison(question: str) -> Comparison | None:
    """The two things of 'Which is cheaper, larch or oak?' or 'How much more is oak than larch?'; None for others."""
    plain = " ".join(question.split())
    match = _COMPARED.match(plain) or _DIFFERENCE.match(plain)
    if match is None:
        return None
    word, first, second = match["word"].lower(), match["first"], match["second"]
    if leaned := _LEANS.match(second):  # 'the insurance of 2025 or of 2026'
        head, preposition, _ = first.partition(f" {leaned['preposition']} ")
        second = f"{head} {second}" if preposition else second
    if auxiliary := match.groupdict().get("auxiliary"):
        asks = f"How {match['how']}{match['noun']} {auxiliary} {{}} {match['verb'] or ''}".rstrip() + "?"
        return Comparison(word, (first, second), _ASKED_OF.get(word, asks), by_how_much=True)
    noun = match["noun"].strip()
    if asks_quantity(f"What is the {noun} of {first}?"):
        return Comparison(word, (first, second), f"What is the {noun} of {{}}?")
    if noun and all(_BARE.fullmatch(name) for name in (first, second)):  # 'Which shed is larger, C or D?'
        first, second = f"{noun} {first}", f"{noun} {second}"
    return Comparison(word, (first, second), _ASKED_OF[word])


def _measure(text: str) -> tuple[Decimal, str] | None:
    """The one number of a short answer, with its unit."""
    numbers = list(_MEASURE.finditer(text))
    if len(numbers) != 1:
        return None
    unit = numbers[0]["before"] or numbers[0]["unit"] or ""
    return Decimal(numbers[0]["number"].replace(",", "")), unit.casefold().removesuffix("s")


@dataclass(frozen=True, slots=True)
class ByWayOf:
    """A question about something that another question names."""

    first: str
    """The question for the name."""
    before: str
    after: str

    def then(self, name: str) -> str:
        """The question about `name`."""
        return f"{self.before}{name.strip(' .')}{self.after}?"


def two_questions(question: str) -> tuple[str, str] | None:
    """The two questions that `question` consists of; None if it is one."""
    question = question.strip()
    if both := _both_ways(question) or _side_by_side(question):
        return both
    match = _TWO_SENTENCES.match(question) or _TWO.match(question)
    if match is None:
        return _without_comma(question)
    first, second = (_as_question(match[part]) for part in ("first", "second"))
    second = _with_name(second, first)
    if min(len(first.split()), len(second.split())) < _FEWEST_WORDS:
        return _without_comma(question)
    return first, second


def _both_ways(question: str) -> tuple[str, str] | None:
    """The two questions of one about something with and without a thing, or in two years; None for others."""
    match = _BOTH_WAYS.match(question) or _WITH_AND_WITHOUT.match(question)
    if match is not None and match["one"].lower() != match["other"].lower() and re.match(_ASKING, question, re.I):
        begin, thing = match["asks"], match["thing"]
        return _as_question(f"{begin} {match['one']} {thing}"), _as_question(f"{begin} {match['other']} {thing}")
    match = _IN_TWO_YEARS.match(question)
    if match is None or not re.match(_ASKING, question, re.I):
        return None
    return _as_question(f"{match['asks']} in {match['one']}"), _as_question(f"{match['asks']} in {match['other']}")


def _side_by_side(question: str) -> tuple[str, str] | None:
    """The two questions of 'Compare the rent of 2021 with that of 2024' and the like; None for others."""
    for pattern in _SIDE_BY_SIDE:
        if match := pattern.match(question):
            preposition = match.groupdict().get("of") or "of"
            one, other = _named_alike(match["one"].strip(), match["other"].strip())
            asks = f"What is {match['thing']} {preposition}"
            return _as_question(f"{asks} {one}"), _as_question(f"{asks} {other}")
    match = _AGAINST.match(question)
    if match is None:
        return None
    one, other = (_with_article(name) for name in _named_alike(match["one"].strip(), match["other"].strip()))
    return _as_question(f"{match['asks']} in {one}"), _as_question(f"{match['asks']} in {other}")


def _with_article(name: str) -> str:
    return name if re.match(r"(?:the|our|my|his|her|their)\s|\W?[A-Z]|\d+$", name) else f"the {name}"


def _named_alike(one: str, other: str) -> tuple[str, str]:
    """'the policy of 2022' and 'the policy of 2024' for '… of 2022' and '2024'; 'the 2022 bill' for 'the 2022'."""
    bare = re.compile(r"(?:the\s+)?((?:19|20)\d\d)")
    if (match := bare.fullmatch(other)) and _YEAR.search(one) and not bare.fullmatch(one):
        return one, _YEAR.sub(match[1], one)
    if (match := bare.fullmatch(one)) and _YEAR.search(other) and not bare.fullmatch(other):
        return _YEAR.sub(match[1], other), other
    return one, other


def _without_comma(question: str) -> tuple[str, str] | None:
    """The two questions of one whose parts share words: 'When and where …', 'Who repaired it and when?'."""
    if match := _BOTH_FIRST.match(question):
        return _as_question(f"{match['asks']} {match['rest']}"), _as_question(f"{match['second']} {match['rest']}")
    if match := _SECOND_BARE.match(question):
        first = _as_question(f"{match['asks']} {match['rest']}")
        return first, _as_question(f"{match['second']} {match['rest']}")
    if match := _OF_BOTH.match(question):
        asks = f"What {'is' if match['verb'].lower() == 'are' else 'was'} the {match['noun']} of"
        time = match["time"] or ""
        return _as_question(f"{asks} {match['first']}{time}"), _as_question(f"{asks} {match['second']}{time}")
    if match := _TWO_OF_ONE.match(question):
        second = match["second"] if match["second"].lower().startswith("the ") else f"the {match['second']}"
        asks, owner = match["asks"], match["of"]
        return _as_question(f"{asks} {match['first']} {owner}"), _as_question(f"{asks} {second} {owner}")
    match = _WITHOUT_COMMA.match(question)
    if match is None:
        return None
    begins = match["first"].split(maxsplit=2)
    is_relative = len(begins) > 2 and _RELATIVE.search(begins[2])
    enough = min(len(match["first"].split()), len(match["second"].split())) >= _FEWEST_WORDS
    if not enough or is_relative:
        return None
    return (first := _as_question(match["first"])), _with_name(_as_question(match["second"]), first)


def _with_name(second: str, first: str) -> str:
    """The second question with the name of the first for 'her': 'Who is Ana Gray, and what is her number?'."""
    names = _NAMES.findall(first)
    if len(names) != 1:
        return second
    owned = re.sub(r"\b(?:his|her|their)\b(?=\s(?!(?:out|in|to|on|off|up|for|at|and)\b)\w)", f"{names[0]}'s", second)
    return re.sub(r"\b(?:he|she|they|him|her)\b", names[0], owned, count=1) if owned == second else owned


def by_way_of(question: str) -> ByWayOf | None:
    """The two steps of a question such as 'Where does the man who wrote the letter live?'; None for others."""
    contact = _CONTACT_OF_ROLE.match(question.strip())
    if contact is not None:
        return ByWayOf(f"Who is {contact['noun_phrase']}?", contact["before"], "")
    role = _BY_ROLE.match(question.strip())
    if role is not None:
        return ByWayOf(f"Who is {role['noun_phrase'].strip()}?", role["before"], role["after"] or "")
    match = _BY_WAY_OF.match(question.strip())
    if match is None:
        return None
    noun, clause = match["noun"].lower(), match["clause"].strip()
    asks = "Who" if noun.split()[-1] in _PERSONS.split() else f"Which {match['noun']}"
    return ByWayOf(f"{asks} {clause}?", match["before"], match["after"] or "")


def names_something(answer: str) -> bool:
    """True if a short answer can stand in another question."""
    return 0 < len(answer.split()) <= _MOST_NAME_WORDS and "\n" not in answer


def _as_question(text: str) -> str:
    text = text.strip().rstrip("?,; ")
    return f"{text[0].upper()}{text[1:]}?"
