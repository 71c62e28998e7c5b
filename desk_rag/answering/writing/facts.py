"""Find numbers and names in a sentence, and say which of them a text does not hold.

They are what a reader relies on, and what a model gets wrong most easily: a sentence whose numbers or names stand in
none of its passages is not supported, however similar it sounds.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from desk_rag.store.catalog.words import STOP_WORDS

_NUMBER = re.compile(r"\d+(?:[.,:’'\u00a0\u202f]\d+)*")
_SPACED = re.compile(r"(?<![\d.,:/-])\d{1,3}(?: \d{3})+(?![\d.,:/-]*\d)")
"""A number whose thousands are parted by blanks, or several numbers side by side."""
_THOUSANDS = re.compile(r"\d{1,3}(?:([.,’'\u00a0\u202f])\d{3})(?:\1\d{3})*(?:[.,]\d+)?")
_CLOCK = re.compile(r"\b(\d{1,2})(?:[:.](\d\d))?\s?([ap])\.?m\b\.?", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_CODE = re.compile(r"\b(?=[\w/-]*\d)(?=[\w/-]*[^\W\d_])[\w]+(?:[/-]\w+)*")
_FORMS = {
    "clock": re.compile(r"\d{1,2}:\d\d|\d{1,2}(?:[:.]\d\d)?\s?[ap]\.?m\.?"),
    "year": re.compile(r"(?:19|20)\d\d"),
    "decimal": re.compile(r"[\d.,’' ]*\d[.,]\d{1,2}"),
    "whole": re.compile(r"[\d.,’' ]+"),
}
"""Forms of numbers, the first that fits; others are codes."""
_UNIT = re.compile(r"[\s-]?([^\W\d_]{2,}|%|°)")
_NUMBER_WORDS = {
    word: str(number)
    for number, words in {
        2: "two zwei deux dos due twee dois två to dwa",
        3: "three drei trois tres tre drie três tre trzy",
        4: "four vier quatre cuatro quattro quatro fyra fire cztery",
        5: "five fünf cinq cinco cinque vijf fem pięć",
        6: "six sechs seis sei zes sex seks sześć",
        7: "seven sieben sept siete sette zeven sete sju syv siedem",
        8: "eight acht huit ocho otto oito åtta otte osiem",
        9: "nine neun neuf nueve nove negen nio ni dziewięć",
        10: "ten zehn dix diez dieci tien dez tio ti dziesięć",
        11: "eleven elf onze once undici elva elleve jedenaście",
        12: "twelve zwölf douze doce dodici twaalf doze tolv dwanaście",
        13: "thirteen", 14: "fourteen", 15: "fifteen", 16: "sixteen", 17: "seventeen", 18: "eighteen",
        19: "nineteen", 20: "twenty zwanzig vingt veinte venti twintig vinte tjugo",
        30: "thirty dreißig trente treinta trenta dertig trinta trettio", 40: "forty", 50: "fifty", 60: "sixty",
        70: "seventy", 80: "eighty", 90: "ninety",
    }.items()
    for word in words.split()
}  # fmt: skip
_NUMBER_WORDS |= {
    f"{ten}-{one}": str(int(_NUMBER_WORDS[ten]) + count)
    for ten in ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
    for count, one in enumerate(["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"], start=1)
}
_SPOKEN_TIME = re.compile(
    r"\b(?:(half|quarter) (past|to) (\w+)|(\w+) o['’]clock|(noon|midday|midnight))\b", re.IGNORECASE
)
_SHORT_YEAR = re.compile(
    r"['’](\d\d)\b|\b(?:of|in|since) ((?:twen|thir|for|fif|six|seven|eigh|nine)ty-\w+)", re.IGNORECASE
)
"""A year without its century: "'58", 'the spring of fifty-eight'."""
_ISO_DATE = re.compile(r"\b(?:19|20)\d\d-?(0[1-9]|1[0-2])-?(?:0[1-9]|[12]\d|3[01])(?!\d)")
_MONTHS = tuple(
    frozenset(names.split())
    for names in (
        "january januar jänner janvier enero gennaio januari janeiro styczeń stycznia",
        "february februar février febrero febbraio februari fevereiro luty lutego",
        "march märz mars marzo maart março marts marzec marca",
        "april avril abril aprile kwiecień kwietnia",
        "may mai mayo maggio mei maio maj maja",
        "june juni juin junio giugno junho czerwiec czerwca",
        "july juli juillet julio luglio julho lipiec lipca",
        "august août agosto augustus augusti sierpień sierpnia",
        "september septembre septiembre settembre setembro wrzesień września",
        "october oktober octobre octubre ottobre outubro październik października",
        "november novembre noviembre novembro listopad listopada",
        "december dezember décembre diciembre dicembre dezembro grudzień grudnia",
    )
)
"""Names of the months, in the languages of answers."""
_MONTH_NUMBERS = {name: number for number, names in enumerate(_MONTHS, start=1) for name in names}
_DATE = re.compile(
    rf"\b(\d{{1,2}})\.?(?:st|nd|rd|th)?\s(?:of\s|de\s)?({'|'.join(sorted(_MONTH_NUMBERS))})\b(?:,?\s(?:of\s|de\s)?\d{{4}})?"
    rf"|\b({'|'.join(sorted(_MONTH_NUMBERS))})\s(\d{{1,2}})\b(?:st|nd|rd|th)?(?:,?\s\d{{4}})?",
    re.IGNORECASE,
)
"""A day with its month, with or without the year."""
_AMBIGUOUS = frozenset({"to", "ti", "ni", "sei", "once", "elf", "due", "tres", "sept", "fire", "sex", "otto"})
"""Number words of one language that are ordinary words of another."""
_WORDS_NO_NAMES = """i the a an this that these those it he she they we you yes no if when while after before in on
    at for from since until till during with as according based note however also english german french and but or
    euro euros celsius fahrenheit beaufort internet pdf document documents passage passages source sources"""
_NO_NAMES = frozenset(_WORDS_NO_NAMES.split())
_SENTENCE_START = re.compile(r"(?:^|[.!?:;\n|•]|[-*]\s|[\"“„«(])\s*$")
_GERMAN_WORDS = "der die das und ist nicht ein eine mit für auf wird sind von dem den des im zu zur zum"
_GERMAN = frozenset(_GERMAN_WORDS.split())


@dataclass(frozen=True, slots=True)
class Fact:
    """A number or a name in a sentence."""

    text: str
    """The fact as the sentence spells it."""
    is_number: bool
    begin: int
    end: int


def facts(text: str) -> list[Fact]:
    """The numbers and names of a sentence, in order."""
    return sorted([*_numbers(text), *_names(text)], key=lambda fact: fact.begin)


def missing(facts: list[Fact], text: str, also_known: str = "") -> list[Fact]:
    """Those facts that `text` does not hold; names may also stand in `also_known` (the question, file names)."""
    numbers = _number_forms(text)
    words = _words(text) | _words(also_known)
    return [fact for fact in facts if not (_holds(numbers, fact.text) if fact.is_number else _knows(words, fact.text))]


def whole_dates(text: str, facts: Sequence[Fact]) -> list[Fact]:
    """Return `facts` of a sentence with those that are parts of one date joined: '14 October 1987' is one fact."""
    dates = [Fact(match.group(), True, *match.span()) for match in _DATE.finditer(text)]
    rest = [fact for fact in facts if not any(date.begin <= fact.begin < date.end for date in dates)]
    return sorted([*rest, *dates], key=lambda fact: fact.begin)


def is_date(fact: Fact) -> bool:
    """True for a day with its month."""
    return _DATE.fullmatch(fact.text) is not None


def occurrences(fact: Fact, text: str) -> list[tuple[int, int]]:
    """Return the ranges of characters that hold a fact; of a date, its day and month are enough."""
    if is_date(fact):
        return [span for day, span in _days(text) if day in {own for own, _ in _days(fact.text)}]
    if not fact.is_number:
        pattern = re.compile(rf"(?<!\w){re.escape(fact.text)}(?!\w)", re.IGNORECASE)
        return [match.span() for match in pattern.finditer(text)]
    wanted = set(_forms_of_number(fact.text))
    spans = [match.span() for match in _NUMBER.finditer(text) if wanted & set(_forms_of_number(match.group()))]
    spans += [match.span() for match in _CODE.finditer(text) if match.group().casefold() in wanted]
    words = (match for match in _WORD.finditer(text) if match.group().casefold() in _NUMBER_WORDS)
    return spans + [match.span() for match in words if _NUMBER_WORDS[match.group().casefold()] in wanted]


def rivals(fact: Fact, claim: str, text: str) -> list[tuple[int, int]]:
    """Return the ranges of what could stand in `text` for a fact of `claim`, and does not stand in the claim.

    For a number these are numbers of the same form and, where the text has its unit, of that unit; for a name, names of
    as many words.
    """
    if is_date(fact):
        own_days = {day for day, _ in _days(claim)}
        return [span for day, span in _days(text) if day not in own_days]
    if fact.is_number:
        return _rival_numbers(fact, claim, text)
    known = _words(claim)
    length = next((len(run) for run in _runs(claim) if any(each.begin == fact.begin for each in run)), 0)
    return [
        (run[0].begin, run[-1].end)
        for run in _runs(text)
        if len(run) == length and not any(_knows(known, each.text) for each in run)
    ]


def _days(text: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return (month, day) of every date in a text, with its range of characters."""
    days = [
        ((_MONTH_NUMBERS[(match[2] or match[3]).casefold()], int(match[1] or match[4])), match.span())
        for match in _DATE.finditer(text)
    ]
    iso = ((int(match[1]), int(match.group()[-2:])) for match in _ISO_DATE.finditer(text))
    return days + list(zip(iso, (match.span() for match in _ISO_DATE.finditer(text)), strict=True))


def _rival_numbers(fact: Fact, claim: str, text: str) -> list[tuple[int, int]]:
    own = {form for each in _numbers(claim) for form in _forms_of_number(each.text)}
    alike = [each for each in _numbers(text) if _form(each.text) == _form(fact.text)]
    unit = _unit(claim, fact.end)
    if unit and any(_unit(text, each.end) == unit for each in alike):
        alike = [each for each in alike if _unit(text, each.end) == unit]
    return [(each.begin, each.end) for each in alike if not own & set(_forms_of_number(each.text))]


def _runs(text: str) -> list[list[Fact]]:
    """Names that stand side by side, as first and last names do; letters of codes are none."""
    runs: list[list[Fact]] = []
    codes = [match.span() for match in _CODE.finditer(text)]
    for name in _names(text):
        if any(begin <= name.begin < end for begin, end in codes):
            continue
        if runs and text[runs[-1][-1].end : name.begin].strip(" .") == "":
            runs[-1].append(name)
        else:
            runs.append([name])
    return runs


def _form(number: str) -> str:
    lowered = number.casefold()
    if lowered in _NUMBER_WORDS:
        return "whole"
    return next((form for form, pattern in _FORMS.items() if pattern.fullmatch(lowered)), "code")


def _unit(text: str, end: int) -> str:
    """The beginning of the word behind a number, without its ending."""
    match = _UNIT.match(text, end)
    return match.group(1).casefold()[:4] if match else ""


def is_german(text: str) -> bool:
    """True if a text is German, whose nouns are written like names."""
    words = [word.casefold() for word in _WORD.findall(text)]
    return bool(words) and sum(word in _GERMAN for word in words) >= max(1, len(words) // 8)


def _numbers(text: str) -> Iterator[Fact]:
    taken_spans: list[tuple[int, int]] = []
    for pattern in (_CLOCK, _CODE, _SPACED, _NUMBER):
        for match in pattern.finditer(text):
            if not any(match.start() < end and begin < match.end() for begin, end in taken_spans):
                taken_spans.append(match.span())
                yield Fact(match.group(), True, *match.span())
    for match in _WORD.finditer(text):
        word = match.group().casefold()
        if word in _NUMBER_WORDS and word not in _AMBIGUOUS:
            yield Fact(match.group(), True, *match.span())


def _names(text: str) -> Iterator[Fact]:
    german = is_german(text)
    run: list[re.Match[str]] = []
    for match in [*_WORD.finditer(text), None]:
        joined = match is not None and match.group()[0].isupper() and len(match.group()) > 1
        adjacent = not run or (match is not None and text[run[-1].end() : match.start()].strip(" .") == "")
        if match is not None and joined and adjacent:
            run.append(match)
            continue
        yield from _names_of_run(text, run, german=german)
        run = [match] if match is not None and joined else []


def _names_of_run(text: str, run: list[re.Match[str]], *, german: bool) -> Iterator[Fact]:
    if german:
        run = run[-1:] if len(run) > 1 else []
    elif run and _SENTENCE_START.search(text[: run[0].start()]):
        # The first word of a sentence is a name only if another follows: 'Radko Ames', not 'Bookings'.
        first = run[0].group().casefold()
        run = run if len(run) > 1 and first not in _NO_NAMES and first not in STOP_WORDS else run[1:]
    for match in run:
        name = re.sub(r"['’]s?$", "", match.group())
        if name.casefold() not in _NO_NAMES and len(name) > 1:
            yield Fact(name, False, match.start(), match.start() + len(name))


def _holds(numbers: frozenset[str], text: str) -> bool:
    if any(form in numbers for form in _forms_of_number(text)):
        return True
    return _SPACED.fullmatch(text) is not None and all(_normal(part) in numbers for part in text.split(" "))


def _forms_of_number(text: str) -> list[str]:
    """The normal forms of a number; one of them must stand in a passage."""
    lowered = text.casefold().strip()
    if lowered in _NUMBER_WORDS:
        return [_NUMBER_WORDS[lowered]]
    if (clock := _CLOCK.fullmatch(lowered)) is not None:
        hour, minutes = int(clock.group(1)), clock.group(2) or "00"
        late = hour % 12 + (12 if clock.group(3) == "p" else 0)
        return [f"{late}:{minutes}", f"{hour}:{minutes}" if clock.group(2) else str(hour)]
    if _SPACED.fullmatch(lowered):
        return [lowered.replace(" ", "")]
    if not _NUMBER.fullmatch(lowered):
        return [lowered]
    return [_normal(lowered)]


def _normal(number: str) -> str:
    if ":" in number:
        return ":".join(
            str(int(part)) if part.isdigit() and i == 0 else part for i, part in enumerate(number.split(":"))
        )
    if _THOUSANDS.fullmatch(number):
        head, _, tail = _decimal(number)
        number = re.sub(r"\D", "", head) + (f".{tail}" if tail else "")
    number = number.replace(",", ".")
    if number.count(".") == 1:
        number = number.rstrip("0").rstrip(".")
    return number.lstrip("0") or "0" if not number.startswith("0.") else number


def _decimal(number: str) -> tuple[str, str, str]:
    """A number with separators of thousands, taken apart at its decimal mark, if it has one."""
    mark = max(number.rfind("."), number.rfind(","))
    digits_after = len(number) - mark - 1
    return (number[:mark], ".", number[mark + 1 :]) if mark >= 0 and digits_after != 3 else (number, "", "")


@lru_cache(maxsize=256)
def _number_forms(text: str) -> frozenset[str]:
    forms: set[str] = set()
    for match in _NUMBER.finditer(text):
        forms.add(_normal(match.group()))
        forms.update(_normal(part) for part in re.split(r"\D", match.group()) if part)
    forms.update(match.group().replace(" ", "") for match in _SPACED.finditer(text))
    forms.update(form for match in _SPOKEN_TIME.finditer(text) for form in _clock_forms(match))
    forms.update(form for match in _SHORT_YEAR.finditer(text) for form in _year_forms(match[1] or match[2]))
    forms.update(match.group().casefold() for match in _CODE.finditer(text))
    forms.update(_NUMBER_WORDS[word.casefold()] for word in _WORD.findall(text) if word.casefold() in _NUMBER_WORDS)
    return frozenset(forms)


def _clock_forms(match: re.Match[str]) -> list[str]:
    """The hours and minutes of a time in words, before and after noon: 'half past seven' is 7:30 and 19:30."""
    part, side, spoken, whole, named = (group.casefold() if group else "" for group in match.groups())
    if named:
        return ["0:00", "24:00"] if named == "midnight" else ["12:00"]
    spoken = spoken or whole
    hour = _NUMBER_WORDS.get(spoken, {"one": "1"}.get(spoken, spoken))
    if not hour.isdigit() or int(hour) > 12:
        return []
    minutes = {"half": 30, "quarter": 15}.get(part, 0)
    total = int(hour) * 60 + (-minutes if side == "to" else minutes)
    return [f"{late // 60 % 24}:{late % 60:02}" for late in (total, total + 720)]


def _year_forms(short: str) -> list[str]:
    digits = _NUMBER_WORDS.get(short.casefold(), short)
    return [f"19{digits}", f"20{digits}"] if digits.isdigit() and len(digits) == 2 else []


def _knows(words: frozenset[str], name: str) -> bool:
    folded = _folded(name)
    parts = [part for part in re.split(r"[-'’]", folded) if part]
    known = all(part in words or part.rstrip("s") in words for part in parts)
    return folded in words or known or folded.rstrip("s") in words


@lru_cache(maxsize=256)
def _words(text: str) -> frozenset[str]:
    folded = _folded(text)
    words = {part for word in _WORD.findall(folded) for part in (word, *re.split(r"['’-]", word)) if part}
    for match in _ISO_DATE.finditer(text):
        words |= {_folded(month) for month in _MONTHS[int(match[1]) - 1]}
    return frozenset(words)


def _folded(text: str) -> str:
    """Return the text without case and accents."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(character for character in decomposed if not unicodedata.combining(character))
