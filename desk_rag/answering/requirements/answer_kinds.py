"""Decide which kind of answer a question asks for, and whether a short answer is of that kind.

'Which supplier ...?' asks for a name, 'when' for a time, 'how much' for a number, 'which colour' for a colour. An
account number answers only the third. 'How many sockets?' is not answered by a sentence that proposes some.
"""

from __future__ import annotations

import re
from enum import Enum

from desk_rag.answering.requirements.dates import without_dates
from desk_rag.answering.requirements.mentions import is_time

_PERSON_NOUNS = (
    "supplier company firm shop person man woman landlord landlady doctor tenant contractor plumber painter insurer"
    " bank customer client employee colleague neighbour dealer provider manufacturer"
)
_ASKS_NAME = re.compile(
    r"^(?:(?:to|from|by|with|for|at)\s+)?"
    rf"(?:who|whom|whose|(?:which|what)\s+(?:{_PERSON_NOUNS.replace(' ', '|')}))\b",
    re.I,
)
_ASKS_TIME = re.compile(
    r"^(?:(?:since|until|from|by)\s+)?when\b"
    r"|^(?:(?:on|in|at|by|from|since|until)\s+)?(?:which|what)\s+(?:day|date|year|month|weekday|time)\b",
    re.I,
)
_ASKS_YEAR = re.compile(r"^(?:(?:in|since|until|from|by)\s+)?(?:which|what)\s+years?\b", re.I)
_ASKS_COLOUR = re.compile(r"^(?:in\s+)?(?:what|which)(?:\s+is\s+the|\s+are\s+the|\s+was\s+the)?\s+colou?rs?\b", re.I)
_ASKS_LANGUAGE = re.compile(r"^(?:in\s+|into\s+)?(?:what|which)\s+languages?\b", re.I)
_ASKS_PHONE = re.compile(
    r"\b(?:(?:tele)?phone|mobile|cell|fax)\s+numbers?\b|\b(?:[^\W\d_]+['’]s?|his|her|their)\s+number\W*$"
    r"|\b(?:which|what)\s+number\b.*\b(?:call|ring|dial|phone)\b", re.I
)
_ASKS_ADDRESS = re.compile(r"\be-?mail\s+address\b", re.I)
_ASKS_POSTAL = re.compile(
    r"^(?:what|which)\b.*(?<!mail\s)(?<!web\s)(?<!ip\s)(?<!net\s)\baddress\b(?!\s+book)"
    r"|^where\s+(?:do|does|did)\s+.+\s+lived?\b",
    re.I,
)
_QUANTITIES = (
    "rent price costs? fees? deposit premium salary wages? fine budget turnover excess balance charge fare income"
    " revenue profit debt weight height length width depth distance temperature pressure capacity duration"
)
_ASKS_QUANTITY = re.compile(
    r"^what(?:['’]s|\s+(?:is|was|are|were))\s+(?:(?!(?:of|for|in|on|at|to|from|with|about|by|and|or|behind|under)\b)[\w’'-]+\s+){1,5}?"
    rf"(?:{_QUANTITIES.replace(' ', '|')})"
    r"(?=\s*\?*$|\s+(?:of|for|in|on|at|per|to|from|during|since|with|without)\b)",
    re.I,
)
"""'What is the rent of the flat?', which a text answers with a number."""
_ROW = re.compile(r"^[^:;]{1,40}:\s[^;]*;\s[^:;]{1,40}:\s")
_PHONE_CELL = re.compile(
    r"(?:phone|tel|mobile|cell|fax|contact|call|ring|number_?s?(?=:\s(?:\+|\(?0)))[^:;]*:\s[^;]*(?:(?:\d[\s()/.-]{0,2}){5})",
    re.I,
)
"""A cell of a row whose column is of telephones, or of numbers that begin like one."""
MONEY_WORDS = r"(?:crowns?|euros?|dollars?|pounds?|francs?|kroner|kronor|cents?|EUR|USD|GBP|CHF|SEK|NOK|DKK|[€$£¥])"
_ASKS_MONEY = re.compile(
    r"^(?:what|how\s+much)\b(?!.*\btime\b).*\b(?:pay|paid|spend|spent|costs?|price|charged?|owe|expenses)\b"
    r"|\b(?:sum|total)\b.*\b(?:costs|expenses)\b|^(?:what|how\s+much)\s+(?:do|does|did)\b.*\b(?:get|earn|receive)\b.*\bfor\b"
    r"|^how\s+much\s+(?:is|are)\s+(?:an?|one)\s",
    re.I,
)
_ASKS_WHETHER = re.compile(
    r"^(?:is|are|was|were|am|do|does|did|has|have|had|can|could|may|must|will|would|should)\b", re.I
)
_ASKS_FREQUENCY = re.compile(r"^how\s+(?:often|frequently|regularly)\b", re.I)
_ASKS_AMOUNT = re.compile(r"^how\s+(?:much|many)\b", re.I)
_ASKS_NUMBER = re.compile(
    r"^how\s+(?:high|long|old|far|large|heavy|tall|wide|deep)\b|^(?:from|until|up\s+to|at)\s+(?:what|which)\s+age\b"
    r"|\bwhat\s+(?:is|was)\s+(?:the\s+)?(?:phone\s+)?number\b",
    re.I,
)
_WORD_NUMBERS = re.compile(
    r"\b(?:no|none|nothing|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundred|thousand|million|half|a|an|once|twice|both|several|few|free|dozen|quarter)\b",
    re.I,
)
_COUNTED = re.compile(
    rf"(?!.*(?:\b{MONEY_WORDS}|[€$£¥]|\b(?:an?|per)\b))(?:[^\d]*\s)?(?:(?:\d+|{_WORD_NUMBERS.pattern})\s+[a-z]+s"
    r"|\d+(?:[.,]\d+)?\s?(?:k?g|[kcm]?m|m?l|kWh))", re.I
)
"""Ends with a number of things that are no money: 'prolonged by two years', 'twelve copies', '12.5 kg'."""
_ARTICLE = re.compile(r"\ban?\b(?!\s+(?:third|fifth|tenth|pair|couple|hundred|thousand|lot)\b)", re.I)
_TIME_WORDS = re.compile(
    r"\d|\b(?:(?:at|by|from|until|since|in|past|before|after|to)\s+(?:one|two|three|four|five|six|seven|eight|nine|ten"
    r"|eleven|twelve|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)|half\s+past|o['’]clock"
    r"|(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day|jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?"
    r"|aug(?:ust)?|sep(?:t|tember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?|spring|summer|autumn|winter|noon|midnight"
    r"|morning|afternoon|evening|night|weekend|week|month|year|quarter|day|hour|minute)s?"
    r"|today|tonight|tomorrow|yesterday|after|before|when|while|until|during|once|soon|never|always|now|daily|weekly"
    r"|monthly|yearly|annually|easter|christmas|end|beginning|start|as\s+soon)\b",
    re.I,
)
_CODE = re.compile(r"\S+@\S+|\b(?:IBAN|BIC|VAT|No|Nr|ID)\b\.?|\b[A-Z]{2,}[-/]?\d[\w/-]*\b|\d+")
_WORD = re.compile(r"[^\W\d_]{2,}")
_NO_TIME = re.compile(
    r"(?:[€$£¥]|\b(?:EUR|USD|GBP|CHF|SEK|NOK|DKK)\b)\s?\d[\d.,]*|\d[\d.,]*\s?(?:[€$£¥%°]|(?:EUR|USD|GBP|CHF|SEK|NOK|DKK"
    r"|crowns?|euros?|dollars?|pounds?|francs?|per\s?cent|[cm]?m2?|km|k?g|k?Wh?|litres?|[CF])\b)"
    r"|\b\d{1,3}(?:,\d{3})+(?:\.\d+)?|(?<![\d.:])(?:0\.\d+|\d+\.(?:[6-9]\d|\d{3}))(?![\d.])"
    r"|\b[A-Z]{2,}-\d[\w-]*|\b(?:flat|room|floor|house|page|part|chapter|table|seat|platform|gate"
    r"|number|no\.?|unit|building|apartment|suite|box|shelf|row)\s\d+[a-z]?\b",
    re.I,
)
"""Amounts, measures and numbered things, whose digits say no time."""
_YEAR = re.compile(r"\b(?:1\d|20)\d\d\b|['’]\d\d\b|\b(?:last|this|next|previous|same)\s+year\b", re.I)
_COLOUR = re.compile(
    r"\bRAL\s?\d|#[0-9a-f]{6}\b|\bcolou?r|(?:white|black|gr[ae]y|silver|red|blue|green|yellow|orange|purple|violet|pink"
    r"|brown|beige|cream|ivory|gold|golden|bronze|copper|turquoise|cyan|teal|magenta|maroon|crimson|scarlet|ochre|olive"
    r"|indigo|lilac|mauve|navy|tan|amber|russet|sand|charcoal|anthracite|transparent|colourless|natural)(?:ish)?\b",
    re.I,
)
_LANGUAGE = re.compile(
    r"\b(?:English|German|French|Spanish|Italian|Portuguese|Dutch|Swedish|Norwegian|Danish|Finnish|Icelandic|Polish|Czech"
    r"|Slovak|Hungarian|Romanian|Bulgarian|Greek|Turkish|Russian|Ukrainian|Arabic|Hebrew|Persian|Hindi|Urdu|Bengali|Tamil"
    r"|Chinese|Mandarin|Cantonese|Japanese|Korean|Vietnamese|Thai|Indonesian|Malay|Swahili|Latin|Welsh|Irish|Gaelic"
    r"|Catalan|Basque|Croatian|Serbian|Slovenian|Estonian|Latvian|Lithuanian|Albanian|Afrikaans|Yiddish|Python|JavaScript"
    r"|TypeScript|Java|Rust|Go|Ruby|Perl|Kotlin|Swift|Scala|Haskell|Fortran|COBOL|Pascal|Lua|PHP|SQL|C(?:\+\+|#)?)(?!\w)"
    r"|\blanguages\b"
)
_PHONE = re.compile(
    r"(?<!\d)(?!(?:19|20)\d\d\W{1,2}\d\d?(?![\s()/.-]*\d{3}))(?:\d[\s()/.-]{0,2}){5}|\bext(?:ension)?\.?\s*\d", re.I
)
_FREQUENCY = re.compile(
    r"\d|\b(?:every|each|once|twice|thrice|times|daily|nightly|weekly|monthly|quarterly|yearly|annual(?:ly)?|hourly|per|never"
    r"|always|seldom|rarely|(?:a|an)\s+(?:hour|day|week|month|quarter|year|season)|on\s+\w+days|\w+days|after|when)\b",
    re.I,
)
_PROPOSES = re.compile(r"\b(?:propos|suggest)\w*|\bwould\s+(?:like|prefer)\b", re.I)
_CLAUSE = re.compile(r"[,;]\s+")
_ASKS_DONE = re.compile(
    r"^when\s+(?:was|were|did|has|have)\b(?!.*(?<!\bthe\s)(?<!\bour\s)(?<!\bmy\s)(?<!\ban\s)"
    r"\b(?:writ(?:e|ten)|wrote|dated?|issued?|invoiced?|made|drawn|signe?d?|held)\b(?!\s+\S*\d))",
    re.I,
)
_PREPOSITION = (
    r"(?:in|at|on|under|behind|near|by|from|to|into|inside|outside|beside|between|below|above|over|off|along|around|opposite"
    r"|next|within|towards?|through|across|via|onto|among|against|after|past|beyond|up|down|here|there|home|abroad)"
)
_AT_PLACE = re.compile(rf"(?:\b{_PREPOSITION}\b(?:\W+\w+){{0,3}}?\W*|[:–—=|]\s*)$", re.I)
_ASKS_PLACE = re.compile(
    r"^(?:where|(?:in|at)\s+(?:which|what)\s+(?:hospital|school|church|hall|room|town|city|village|country|street|pub|hotel"
    r"|building|house|place|shop|station|theatre|restaurant))\b",
    re.I,
)
_ASKS_WHAT_DOES = re.compile(r"^what\s+(?:do|does|did)\s+\S+(?:\s+\S+){0,2}?\s+do\W*$", re.I)
_ASKS_WHERE_IS = re.compile(r"^where\s+(?:is|are|was|were)\s+", re.I)
_IS = re.compile(r"\b(?:is|are|was|were)\s+$", re.I)
_OF_PLACE = re.compile(r"(?:(?:the|an?|our|my|his|her|their)\s|[^\W\d_a-z])")
"""'The assembly point is the gate' says where it is; 'is open' does not."""
_IS_PLACE = re.compile(rf"\W*{_PREPOSITION}\b", re.I)
_ASKS_WHO_DID = re.compile(
    r"^who\s+(?!(?:is|are|was|were|has|have|had|did|do|does|will|would|can|could|may|must|should|else|of|in)\b)(?P<verb>[a-z]{3,})\b",
    re.I,
)
_DATE_LINE = re.compile(r"^\W*date:\s*[^:;]*$", re.I)
_NAME = r"[^\W\d_a-z][\w.’'-]*"
_ASKS_WHO_IS = re.compile(rf"^[Ww]ho(?:['’]s|\s+is|\s+was)\s+{_NAME}(?:\s+{_NAME})*\?*$")
_ONLY_DATE = re.compile(
    r"\d{4}-\d\d-\d\d|\d{1,2}[./]\d{1,2}[./](?:\d\d){1,2}|(?:on\s+)?\d{1,2}(?:st|nd|rd|th)?\s+(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct"
    r"|nov|dec)[a-z]*(?:\s+\d{4})?",
    re.I,
)
"""A day, which counts nothing."""
_PRONOUN = re.compile(r"(?:s?he|they|it|him|hers?|his|them|their|this|that|these|those|you|who|one)", re.I)
_LONGEST_NAME = 3
"""Words of an answer that is nothing but a name."""


class AnswerKind(Enum):
    """A kind of short answer, with the words that name it."""

    NAME = "a name"
    TIME = "a time"
    NUMBER = "a number"
    AMOUNT = "an amount"
    YEAR = "a year"
    COLOUR = "a colour"
    LANGUAGE = "a language"
    PHONE = "a phone number"
    ADDRESS = "a mail address"
    POSTAL = "an address"
    FREQUENCY = "a number of times"


_ASKS = (
    (_ASKS_NAME, AnswerKind.NAME), (_ASKS_YEAR, AnswerKind.YEAR), (_ASKS_TIME, AnswerKind.TIME),
    (_ASKS_COLOUR, AnswerKind.COLOUR), (_ASKS_LANGUAGE, AnswerKind.LANGUAGE),
    (_ASKS_PHONE, AnswerKind.PHONE), (_ASKS_ADDRESS, AnswerKind.ADDRESS), (_ASKS_POSTAL, AnswerKind.POSTAL),
    (_ASKS_FREQUENCY, AnswerKind.FREQUENCY), (_ASKS_AMOUNT, AnswerKind.AMOUNT), (_ASKS_NUMBER, AnswerKind.NUMBER),
    (_ASKS_QUANTITY, AnswerKind.NUMBER),
)  # fmt: skip
_SAYS = {
    AnswerKind.YEAR: _YEAR, AnswerKind.COLOUR: _COLOUR, AnswerKind.PHONE: _PHONE, AnswerKind.FREQUENCY: _FREQUENCY,
    AnswerKind.ADDRESS: re.compile(r"\S@\S"), AnswerKind.LANGUAGE: _LANGUAGE,
    AnswerKind.POSTAL: re.compile(
        r"^(?![\s\S]*\S@\S|[^:;]*,\s(?:Organisation|Position|Phone|Birthday|Website|Nickname)\b[^:]*:|\D*(?:\d[\s/-]?){8,}\D*$)"
        r"(?=[\s\S]*(?:[^\W\d_]{2}|\d\.\d))|\baddress\b(?!:\s*\S+@)|;\s",
        re.I,
    ),
}  # fmt: skip


def kind_asked(question: str) -> AnswerKind | None:
    """Return the kind of answer that a question asks for; None if it does not say."""
    plain = question.strip()
    return next((kind for pattern, kind in _ASKS if pattern.search(plain)), None)


def asks_whether(question: str) -> bool:
    """True if a question asks for yes or no."""
    return _ASKS_WHETHER.match(question.strip()) is not None


def verb_of_who(question: str) -> str:
    """The verb of 'Who borrowed it?' in lower case; '' for other questions, and for 'Who is …?'."""
    asks = _ASKS_WHO_DID.match(question.strip())
    return asks["verb"].lower() if asks is not None else ""


def asks_quantity(question: str) -> bool:
    """True if a question asks for something that is a number, such as a rent, a price or a weight."""
    return _ASKS_QUANTITY.search(question.strip()) is not None


def asks_money(question: str) -> bool:
    """True for a question of what was paid, or what something costs."""
    return _ASKS_MONEY.search(question.strip()) is not None


def counts_things(value: str) -> bool:
    """True for 'two years' and 'twelve copies', which are no money."""
    return _COUNTED.fullmatch(value.strip(" .")) is not None


def is_of_kind(kind: AnswerKind, text: str) -> bool:
    """Return whether a short answer may be of a kind: a name has words besides codes, a time names one."""
    if kind is AnswerKind.PHONE and _ROW.search(text):
        return _PHONE_CELL.search(text) is not None
    if kind in _SAYS:
        return _SAYS[kind].search(text) is not None
    if kind is AnswerKind.TIME:
        return _TIME_WORDS.search(_NO_TIME.sub(" ", text)) is not None
    if kind in (AnswerKind.NUMBER, AnswerKind.AMOUNT):
        if _ONLY_DATE.fullmatch(text.strip()):
            return False
        plain = text if kind is AnswerKind.NUMBER else _ARTICLE.sub(" ", text)  # 'a megabyte' says not how many
        return any(map(str.isdigit, text)) or _WORD_NUMBERS.search(plain) is not None
    return _WORD.search(_CODE.sub(" ", text)) is not None


def only_proposed(question: str, sentence: str) -> bool:
    """True if a question asks for a number or a time, and a sentence has one only in a clause that proposes it."""
    kind = kind_asked(question)
    if kind not in (AnswerKind.NUMBER, AnswerKind.AMOUNT, AnswerKind.TIME, AnswerKind.YEAR):
        return False
    if _PROPOSES.search(question) or not _PROPOSES.search(sentence):
        return False
    return not any(is_of_kind(kind, clause) for clause in _CLAUSE.split(sentence) if not _PROPOSES.search(clause))


def only_dates_document(question: str, sentence: str) -> bool:
    """True if a question asks when something was done, and the line is only the date of its document."""
    return _ASKS_DONE.search(question.strip()) is not None and _DATE_LINE.match(sentence) is not None


def misfit(question: str, answer: str, quotes: str) -> str:
    """Return a sentence that says why an answer is not what was asked for; empty if nothing speaks against it."""
    kind = kind_asked(question)
    is_word = kind is AnswerKind.POSTAL and "address" in question.lower() and answer.strip(" .").isalpha()
    is_word = is_word or (kind is AnswerKind.NAME and _PRONOUN.fullmatch(answer.strip(" .")) is not None)
    if kind is not None and (is_word or not is_of_kind(kind, answer)):
        return f"The question asks for {kind.value}, and “{answer}” is none"
    asks_who_is = _ASKS_WHO_IS.match(question.strip()) is not None
    if kind is AnswerKind.NAME and not asks_who_is and (known := _known_name(question, answer)):
        return f"The question names “{known}” itself"
    return _of_other_role(question.strip(), answer.strip(), quotes)


def _known_name(question: str, answer: str) -> str:
    """The name that answer and question share, if any: 'Who was chair before Oswin?' does not ask for Oswin."""
    names = re.findall(_NAME, question)[1:]  # the first word of a question has its capital anyway
    asked = {name.removesuffix("'s").removesuffix("’s").strip(".?") for name in names}
    words = answer.strip(" .").split()
    return next((word for word in words if word in asked), "") if 0 < len(words) <= _LONGEST_NAME else ""


def _of_other_role(question: str, answer: str, quotes: str) -> str:
    """A sentence that says which other role the answer has in the quote; empty if its role may be the right one.

    'borrowed from the school' does not tell who borrowed, nor 'Present: Ana, Ben' where Ben works.
    """
    before = quotes[: max(0, quotes.find(answer))]
    is_named = _ASKS_WHERE_IS.match(question) and _IS.search(before) and _OF_PLACE.match(answer)
    is_place = _IS_PLACE.match(answer) or _AT_PLACE.search(before) or not before.strip() or "; " in quotes or is_named
    asks_place = _ASKS_PLACE.match(question)
    is_day = all(map(is_time, without_dates(answer).strip(" .,").split()))
    asks_who = kind_asked(question) is AnswerKind.NAME and any(map(str.isdigit, answer))
    if is_day and (asks_place or asks_who or _ASKS_WHAT_DOES.match(question)):
        return f"The question does not ask for a time, and “{answer}” is one"
    if asks_place and not is_place:
        return f"The question asks where, and the quote does not say that it is at “{answer}”"
    verb = verb_of_who(question)
    from_other = rf"\b{re.escape(verb)}\s+(?:\w+\s+){{0,3}}?(?:from|to)\s+(?:(?:the|an?|our|my)\s+)?$"
    if verb and re.search(from_other, before, re.I):
        return f"The quote names “{answer}” as the other side, not as who {verb}"
    return ""
