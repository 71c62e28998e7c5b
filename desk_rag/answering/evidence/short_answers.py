"""Cut or extend a span of the quote to the whole value that it is part of, and to nothing but that.

'15:00' of '28 November 2024 14:00 to 15:00' says neither the day nor when it begins; the '2.' in front of a line of a
list is no answer; '1,975.00)' has a bracket too many.
"""

from __future__ import annotations

import re

from desk_rag.answering.requirements.answer_kinds import AnswerKind, is_of_kind, kind_asked
from desk_rag.answering.requirements.dates import MONTHS
from desk_rag.answering.requirements.statements.languages import foreign_language
from desk_rag.answering.requirements.statements.numbers import IN_WORDS
from desk_rag.answering.requirements.stems import content_stems

_MONTH = rf"(?:{'|'.join(f'{name}|{name[:3]}' for name in MONTHS)}|sept)\.?"
_DATE = rf"(?:\d{{1,2}}\s+{_MONTH}(?:\s+\d{{4}})?|{_MONTH}\s+\d{{1,2}}(?:,?\s+\d{{4}})?|\d{{4}}-\d{{2}}-\d{{2}})"
_CLOCK = r"\d{1,2}[:.]\d{2}(?:\s?[ap]\.?m\b\.?)?"
_PERIOD = re.compile(
    rf"\b(?P<first>(?:{_DATE},?\s+(?:at\s+)?)?{_CLOCK})\s*(?:to|until|till|-|–|—)\s*(?P<last>(?:{_DATE},?\s+)?{_CLOCK})(?!\d)",
    re.I,
)
"""A time of day with the one until which it lasts, and its day."""
_DATES = re.compile(rf"\b(?P<first>{_DATE})\s*(?:to|until|till|-|–|—)\s*(?P<last>{_DATE})(?!\d)", re.I)
"""A period of days; only its first or last is cut out of it, where the question asks for that."""
_WORD = re.compile(r"[^\W\d_]{3}")
_ASKS_START = re.compile(r"^(?:from\s+when|since\s+when)\b|\b(?:start|begin|open)s?\b", re.I)
_ASKS_END = re.compile(
    r"^(?:until|till)\s+(?:when|what\s+time)\b|\b(?:(?:end|finish|close|over)(?:s|es)?|expires?)\b", re.I
)
_NUMBER_MARK = re.compile(r"^[^\w\n]{0,4}\d{1,3}(?:(?:\.\d{1,3})+[.)]?|[.)])(?:\s*\[[ xX]?\])?\s+(?=[^\W\d_a-z])")
_NOT = r"not|never|no\s+(?:longer|earlier|later|more|less|fewer)|\w*n['’]t|cannot"
_NEGATION = re.compile(
    rf"\b(?P<verb>(?:can|may|must|shall|should|will|would|could|is|are|was|were|do|does|did)\s+(?={_NOT})|(?=\w+n['’]t|cannot))?"
    rf"(?:{_NOT})\b(?P<between>[^,;:.()?!]*)$",
    re.I,
)
_ASKS_NEGATED = re.compile(
    rf"\b(?:{_NOT}|no|none|nobody|nothing|without|closed?|shut|forbidden|prohibited|except)\b", re.I
)
_OPEN = re.compile(r"\b(?:open|opens|opened|available|running)\b", re.I)
_CLOSED = re.compile(
    r"(?P<verb>\b(?:is|are|was|were|stays?|remains?)\s+)?\b(?:closed|shut|unavailable)\b(?P<between>[^,;:.()?!]*)$",
    re.I,
)
"""Says the opposite of open without a negation."""
_EXCEPTING = re.compile(
    r"\b(?:any|every|all|daily|always)\b[^,;:.()?!]*\b(?:but|except(?:\s+for|\s+on)?|other\s+than)\s*$", re.I
)
"""Before what is excepted: 'any afternoon but Thursday'."""
_MOST_BETWEEN = 8
"""Words between a negated verb and the value that it is about; without a verb, there must be none."""
_UNTIL = re.compile(r"\b(?:until|till|only|but|just)\b", re.I)
"""After a negation: 'not until nine' says when it is."""
_WHICH_IS = re.compile(r",\s+which\s+(?:is|are|was|will|means)\b[^;.?!]*", re.I)
_NEGATED_KINDS = frozenset(
    {AnswerKind.TIME, AnswerKind.YEAR, AnswerKind.NUMBER, AnswerKind.AMOUNT, AnswerKind.FREQUENCY}
)
_COLUMNS = re.compile(r"^(?:\d[\d.,]*\s+)+(?=\d[\d.,]*[.,]\d\d$)")
"""Numbers of a line in columns before its last: '1 865.00' is a quantity and a price, where no currency follows."""
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?:\s?[A-Z0-9]{4}){2,7}(?:\s?[A-Z0-9]{1,3})?\b")
_ASKS_AGE = re.compile(
    r"(?P<first>^from\s+(?:what|which)\s+age\b|\b(?:minimum|lowest|least|youngest)\s+age\b|\bhow\s+old\s+must\b)"
    r"|(?P<last>^(?:until|up\s+to)\s+(?:what|which)\s+age\b|\b(?:maximum|highest|oldest)\s+age\b)",
    re.I,
)
_AGES = re.compile(r"\b(?P<first>\d{1,2})(?:\s+years?)?\s*(?:to|and|until|-|–)\s*(?P<last>\d{1,2}(?:\s+years?)?)\b")
_REST_OF_NUMBER = re.compile(r"\d*(?:[.:,]\d+)+|\d+")
_BEGIN_OF_NUMBER = re.compile(r"(?<![\d.:,/-])\d+[.:,](?:\d+[.:,])*\d*$")
_GOES_ON = re.compile(r",?\s+(?:and|but)\s+(?:is|are|was|were|has|have|will|may|must|can)\b.*$", re.I | re.S)
_BRACKETS = {")": "(", "]": "["}
_CODE = re.compile(
    r"\b(?:sort\s+code|bank\s+code|account(?:\s+(?:no\.?|number))?|IBAN|BIC|SWIFT|(?:tele)?phone|tel\.?|fax|mobile|cell|ref(?:erence)?"
    r"|(?:VAT|tax|customer|client|policy|order|company)\s+(?:no\.?|number|reg(?:istration)?))[\s:.]*(?:no\.?|number)?[\s:]*$",
    re.I,
)
"""Words directly before a number that name what kind of code it is."""
_PHONE = re.compile(r"(?:\+\d|\(?0)\d[\d\s()/-]{6,}\d")
_ASKS_CODE = re.compile(
    r"\b(?:numbers?|no\.|codes?|phones?|telephone|tel|fax|mobile|call|ring|reach|contact|accounts?|IBAN|BIC|references?|ref"
    r"|ID|details|where\s+(?:do|should|can)\s+(?:I|we)\s+(?:pay|transfer))\b",
    re.I,
)
_SHARE_OF = re.compile(
    r"(?P<verb>[a-z]+)\s+(?:only\s+|just\s+)?(?P<share>(?:half|an?\s+(?:third|quarter|fifth|tenth)|two\s+thirds|three\s+quarters"
    r"|\d+\s?(?:%|per\s?cent))\s+of\s+(?:(?:the|our|its|their|my|a)\s+)?(?:[a-z]+\s+){0,2}?(?:of\s+)?)$",
    re.I,
)
"""Before the whole of which a share is paid: 'We pay half of the fee of 780 pounds'."""

_PERSON = r"[A-Z][\w'’.-]+(?:\s(?:[a-z]{2,3}\s)?[A-Z][\w'’-]+)+"
_PEOPLE = re.compile(rf"(?<=: ){_PERSON}(?:(?:,\s+|\s+and\s+|,\s+and\s+|\s*&\s*){_PERSON})+(?=;|\.?$)")
"""A cell with several people: 'holders: Irma Janssen, Nadia Ferrer'."""
_COMMA = r",\s+(?!and\b|or\b)"
_JOINS = r"(?:to|of|with|from|for|by)\b"
_THING = rf"(?!{_JOINS})[^\s,;:.()!?]+(?:\s(?!(?:and|or|in|on|at)\b|[–—-]\s|{_JOINS})[^\s,;:.()!?]+){{0,3}}?"
_LISTS = re.compile(
    r"(?:^(?=[^\s,]+,)|[:(]\s|\b(?i:to|of|with|from|for|by|is|are|was|were|(?:eat|drink|use|contain|include|hold|need|get|bring|buy|take|make|play"
    r"|sell|grow|keep|wear|have|like|bought|took|made|sold|grew|kept|wore|had|has|brought|got|held|ate)(?:s|ed|d)?)\s)"
    rf"(?P<items>{_THING}(?:{_COMMA}{_THING})*)(?P<joined>,?\s+(?:and|or)\s+)(?P<last>{_THING})"
    r"(?=$|[,;:.()!?]|\s(?:to|for|with|from|in|on|at|by)\b)"
)
"""Things that a sentence names together: 'allergic to latex and wool', 'made of whiting, quartz and flint'."""
_ASKS_WHAT = re.compile(
    r"^(?:(?:in|of|to|with|from|for|on|by)\s+)?(?:what|which)\b(?!\s+(?:is|was)\s+(?:the|our|my|his|her)\s)"
    r"(?!(?<=which)\s+[a-z]{3,}(?<!s)\b)",
    re.I,
)
_MOST_OF_ITEM = 4
"""Words of one of several things in a list; more are a clause."""
_CLAUSE_WORD = re.compile(
    r"\b(?:is|are|was|were|be|been|has|have|had|do|does|did|can|could|may|might|must|will|would|should|that|which|who|it|he|she"
    r"|they|we|I|you|not|no|but|if|when|because|then|so|as|[a-z]{3,}ed|came|went|gave|got|took|made)\b"
)


class ShortAnswers:
    """The parts of one quote that may be the short answer to one question."""

    def __init__(self, question: str, sentence: str) -> None:
        self._question, self._sentence = question, sentence
        self._kind, self._is_abroad = kind_asked(question), foreign_language(question) != ""
        mark = _NUMBER_MARK.match(sentence)
        self._mark_end = mark.end() if mark is not None else 0
        asks_open = _OPEN.search(question) is not None
        self._negation = _CLOSED if asks_open else _NEGATION
        self._is_plain = self._kind in _NEGATED_KINDS and _ASKS_NEGATED.search(question) is None
        asks_who = re.match(r"who(?:se|m)?\b", question.strip(), re.I) is not None
        wholes = (_IBAN, _PEOPLE) if asks_who else (_IBAN,)
        self._fixed = [whole.span() for pattern in wholes for whole in pattern.finditer(sentence)]
        self._age = _ASKS_AGE.search(question)
        asks_side = _ASKS_START.search(question) or _ASKS_END.search(question)
        patterns = (_PERIOD, _DATES) if asks_side else (_PERIOD,)
        is_time = self._kind is AnswerKind.TIME
        self._periods = [period for one in patterns for period in one.finditer(sentence)] if is_time else []

    def whole(self, begin: int, end: int) -> tuple[int, int] | None:
        """Return the range of the whole value around [begin, end) of the sentence; None if it is no value."""
        if end <= self._mark_end:
            return None
        begin = max(begin, self._mark_end)
        for first, last in self._fixed:
            if first <= begin and end <= last:
                return first, last
        for ages in _AGES.finditer(self._sentence) if self._age is not None else ():
            if self._age is not None and ages.start() < end and begin < ages.end():
                return ages.span(self._age.lastgroup or 0)
        for period in self._periods:
            if period.start() <= begin and end <= period.end():
                return self._of_period(period)
        if self._is_abroad and not _WORD.search(self._sentence[begin:end]):
            return self._mark_end, len(self._sentence)  # '3' of '3. Mai 2024' in a language whose dates are not known
        trimmed = self._trimmed(begin, end)
        trimmed = (self._with_share(trimmed[0]), trimmed[1]) if trimmed is not None else None
        if trimmed is not None and self._kind is None and _ASKS_WHAT.match(self._question):
            trimmed = self._with_list(*trimmed)
        return self._with_negation(*trimmed) if trimmed is not None and self._is_plain else trimmed

    def _with_list(self, begin: int, end: int) -> tuple[int, int]:
        """'latex and wool' for 'latex', which is one of the two things that the sentence names."""
        for listing in _LISTS.finditer(self._sentence):
            items, last = re.split(_COMMA, listing["items"]), listing["last"]
            is_list = all(map(_is_item, [*items, last])) and not (len(items) == 1 and listing["joined"].startswith(","))
            if is_list and listing.start() <= begin and end <= listing.end():
                return listing.start("items"), listing.end()
        return begin, end

    def _with_share(self, begin: int) -> int:
        """The begin of 'half of the fee of 780 pounds', if the question asks for what is done with that half."""
        share = _SHARE_OF.search(self._sentence, 0, begin) if self._kind is AnswerKind.AMOUNT else None
        is_asked = share is not None and content_stems(share["verb"]) <= content_stems(self._question)
        return share.start("share") if share is not None and is_asked else begin

    def _with_negation(self, begin: int, end: int) -> tuple[int, int]:
        """'cannot be loaded before noon' for 'before noon', which alone would say the opposite."""
        excepting = _EXCEPTING.search(self._sentence, 0, begin)
        if excepting is not None:
            return excepting.start(), end
        negation = self._negation.search(self._sentence, 0, begin)
        negation = _NEGATION.search(self._sentence, 0, begin) if negation is None else negation
        most = _MOST_BETWEEN if negation is not None and negation["verb"] is not None else 0
        if negation is None or len(negation["between"].split()) > most:
            return begin, end
        if _UNTIL.search(self._sentence, negation.start(), end):
            return begin, end
        more = _WHICH_IS.match(self._sentence, end)
        return negation.start(), end if more is None else more.end()

    def _of_period(self, period: re.Match[str]) -> tuple[int, int]:
        if _ASKS_START.search(self._question):
            return period.span("first")
        return period.span("last") if _ASKS_END.search(self._question) else period.span()

    def _trimmed(self, begin: int, end: int) -> tuple[int, int] | None:
        """Cut off an unmatched bracket and a second statement that follows the value."""
        text = self._sentence[begin:end]
        more = _GOES_ON.search(text)
        if self._kind is not None and more is not None and is_of_kind(self._kind, text[: more.start()]):
            text = text[: more.start()]
        if self._sentence.rstrip().endswith(text) and (columns := _COLUMNS.match(text)) is not None:
            begin, text = begin + columns.end(), text[columns.end() :]
        for close, opening in _BRACKETS.items():
            while text.endswith(close) and text.count(close) > text.count(opening):
                text = text[:-1].rstrip()
        return self._whole_number(begin, begin + len(text)) if text.strip() else None

    def _whole_number(self, begin: int, end: int) -> tuple[int, int]:
        """'15.30' for the '15' that a span ends or begins with inside of a number; also of one in words."""
        for number in IN_WORDS.finditer(self._sentence):
            if number.start() < begin < number.end():
                begin = number.start()
            if number.start() < end < number.end():
                end = number.end()
        behind = _REST_OF_NUMBER.match(self._sentence, end) if self._sentence[end - 1].isdigit() else None
        before = _BEGIN_OF_NUMBER.search(self._sentence, 0, begin) if self._sentence[begin].isdigit() else None
        return (begin if before is None else before.start()), (end if behind is None else behind.end())


def _is_item(text: str) -> bool:
    """True for a thing of a list, False for a clause."""
    words = text.split()
    return 0 < len(words) <= _MOST_OF_ITEM and _CLAUSE_WORD.search(text) is None and not re.search(r"\d", text)


def is_unasked_code(question: str, words: str, quote: str) -> bool:
    """Return whether a short answer is a code or phone number, and the question asks for none."""
    plain, line = words.strip(), " ".join(quote.split())
    if not plain or any(map(str.isalpha, plain)) or _ASKS_CODE.search(question):
        return False
    place = line.find(" ".join(plain.split()))
    return _PHONE.fullmatch(plain) is not None or (place > 0 and _CODE.search(line[:place]) is not None)
