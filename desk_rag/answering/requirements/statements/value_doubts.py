"""Say why a value of a sentence is not the one that a question asks for, by the words around it.

'Pip drives the quad bike, Josh may not' answers 'Who may not drive it?' with Josh alone. 'Not 250 pounds but 350'
denies its first amount, and 'after 17.30' is no charge.
"""

from __future__ import annotations

import re
from functools import cached_property

from desk_rag.answering.requirements.answer_kinds import AnswerKind, asks_money, counts_things, is_of_kind, kind_asked
from desk_rag.answering.requirements.requirements import Requirement, Requirements
from desk_rag.answering.requirements.statements import other_values
from desk_rag.answering.requirements.statements.offices import office_asked
from desk_rag.answering.requirements.stems import content_stems

_AUXILIARY = r"(?:may|can|could|do|does|did|is|are|was|were|has|have|had|must|should|shall|will|would|need)"
_ASKS_NEGATED = re.compile(
    rf"^(?:(?:to|from|by|with|for|at|on|in)\s+)?(?:who|whom|which|what|where)\b.*\b{_AUXILIARY}(?:n['’]t|\s+not|\s+never)\b"
    r"|^(?:who|which|what)\b.*\b(?:cannot|never)\b",
    re.I,
)
_NEGATIVE = re.compile(
    r"\b(?:not|no|none|never|neither|nor|nobody|nothing|nowhere|without|except|only|cannot|forbidden|prohibited|banned"
    r"|exempt\w*|exclu\w+|refus\w+|reject\w+|den(?:y|ied|ies)|closed|missing|lack\w*|fail\w*|out\s+of|instead|open|due|owed|overdue"
    r"|outstanding|un(?!til|der|ion|it|iv|iq)[a-z]+|in(?:valid|complete|eligible|active|correct)|im(?:possible|proper))\b"
    r"|n['’]t\b",
    re.I,
)
_DENIED_BEFORE = re.compile(r"\bnot\s+(?:(?:on|at|in|by|from|to|until|for|the|an?)\s+){0,2}$", re.I)
_BUT = re.compile(r"[^.;:!?]{0,40}?,?\s+but\s", re.I)
_DOES_NOT = re.compile(rf"\s+(?:{_AUXILIARY}(?:n['’]t|\s+not)|cannot|never)\b", re.I)
_CLAUSE_END = re.compile(r"[,;]\s+|\.\s+(?=[^\W\d_a-z])|\s[–—]\s|\s+(?:but|while|whereas)\s+", re.I)
_PART_END, _CELL = re.compile(r"(?<=[;,]\s)"), re.compile(r"[;,]\s[^:;]{1,40}:\s")
"""Ends of the parts of a sentence; a cell of a row, whose parts are no clauses."""
_CLOCK = re.compile(r"\d{1,2}[.:]\d\d(?:\s?[ap]\.?m\.?)?", re.I)
_CLOCK_BEFORE = re.compile(r"\b(?:after|before|at|until|till|by|since|from)\s+$", re.I)
_OPPOSITES = (
    re.compile(r"\b(?P<one>open(?:s|ed)?)\b|\b(?P<other>closed?s?|shut)\b", re.I),
    re.compile(r"\b(?P<one>begins?|began|starts?|started)\b|\b(?P<other>ends?|ended|finish(?:es|ed)?)\b", re.I),
    re.compile(r"\b(?P<one>arriv(?:e|es|ed|al))\b|\b(?P<other>depart(?:s|ed|ure)?|leaves?|left)\b", re.I),
)
"""Words of which a sentence may have both; each value belongs to the one before it."""
_ASKS_PATIENT = re.compile(r"^who\s+(?:is|was|were|has\s+been)\s+[a-z]{3,}\s+(?:\w+\s+){0,2}?by\b", re.I)
_ASKS_WHICH = re.compile(r"^which\s+(?P<thing>[a-z]{3,})\b(?!\s+of\b)", re.I)
_DEED = re.compile(
    r"\b(?:must|should|shall|do|does|did)\s+(?:we|I|you|they|one)\s+(?:(?:have|need)\s+to\s+)?(?P<verb>[a-z]{3,})\b"
)
"""'When must we return the keys?'"""
_KEY = re.compile(r"(?:^|;\s)(?:[\w ]{1,30}:\s(?=[\w ]{1,30}:\s))?(?P<key>[^:;]{1,40}):\s")
_FEWEST_COLUMNS = 3
_ROLE = re.compile(
    r"\b(?P<role>owner|customer|client|tenant|guest|patient)(?:'s\s+name)?:?\s+(?:Mrs?\.?\s|Ms\.?\s|Dr\.?\s)?$", re.I
)
"""Before a name, the role in which it is named."""
_BELONGS = re.compile(r"\b(?:owns?|owned|belong\w*|has|have|rents?|rented|hired?|booked|stayed|lives?)\b", re.I)
"""Verbs of a question that a card with such a role answers."""
_BY = re.compile(r"\bby\s+(?:(?:the|our|my|Mrs?|Dr)\.?\s+)?$", re.I)
_NUMBERS = ("mobile|cell", "fax", "home|private", "work|office|business")
"""Kinds of telephone numbers, each in the words that documents label them with."""
_DURING = r"\b(?:in|on|during)\s+(?:early\s+|late\s+|mid-?\s?)?"
_RELATIVE = re.compile(r"\b(?:that|which|who|whose|where)\b", re.I)
_FOR_YEAR = re.compile(rf"(?:{_DURING}|\b(?:for|of)\s+)(?P<year>(?:19|20)\d\d)\b(?!-)", re.I)
"""'The fee for 2024 will be …', which is none of 2023."""


class ValueDoubts:
    """What speaks against the values of one sentence as answers to one question."""

    def __init__(self, question: str, sentence: str) -> None:
        self._question, self._sentence = question.strip(), sentence
        self._kind = kind_asked(question)

    def reason(self, begin: int, end: int) -> str:
        """A sentence about characters [begin, end); empty if nothing around them speaks against them."""
        value = self._sentence[begin:end].strip()
        if self._negated:
            doubt = f"The question asks for what is not so, and the quote does not say “not” of “{value}”"
            return "" if _NEGATIVE.search(self._clause(begin, end)) else doubt
        if self._is_denied(begin, end):
            return f"The quote says that it is not “{value}”"
        before = self._sentence[:begin]
        if (
            self._kind in (AnswerKind.AMOUNT, AnswerKind.NUMBER)
            and _CLOCK.fullmatch(value)
            and _CLOCK_BEFORE.search(before)
        ):
            return f"The question asks for {self._kind.value}, and “{value}” is a time of day"
        if self._kind is AnswerKind.TIME and (other := self._other_time(value)):
            return f"The question asks about “{other}”, and “{value}” is another time"
        if other := self._nearer_clause(begin):
            return f"The part of the quote that is about the question is “{other}”"
        if self._kind is AnswerKind.AMOUNT and asks_money(self._question) and counts_things(value):
            return f"The question asks for money, and “{value}” is none"
        if self._kind is AnswerKind.PHONE and (number_kind := self._other_number()):
            return f"The quote does not call “{value}” a {number_kind} number"
        if column := self._other_column(before):
            return f"The question asks which, and “{value}” stands under “{column}”"
        if self._is_opposite(begin):
            return f"The quote says “{value}” of the opposite"
        return self._other_value(begin, end) or self._of_other_role(value, before) or self._of_other_year

    def _other_value(self, begin: int, end: int) -> str:
        """A sentence about the holder of the office that is asked for, or another value than this."""
        office, value = office_asked(self._question), self._sentence[begin:end]
        holder = office.holder_in(self._sentence) if office is not None else None
        if holder and self._kind is AnswerKind.NAME and not content_stems(holder) & content_stems(value):
            return f"The quote names “{holder}” in that office"
        is_number = self._kind in (AnswerKind.AMOUNT, AnswerKind.NUMBER)
        return other_values.reason(self._question, self._sentence, begin, end, is_number=is_number)

    @cached_property
    def _negated(self) -> bool:
        return _ASKS_NEGATED.search(self._question) is not None

    @cached_property
    def _times(self) -> tuple[Requirement, ...]:
        """The months and days in which something happens by the question."""
        if _RELATIVE.search(self._question):
            return ()
        return tuple(
            one
            for one in Requirements(self._question).timed
            if re.search(_DURING + re.escape(one.asked), self._question, re.I)
        )

    @cached_property
    def _of_other_year(self) -> str:
        """A sentence about the years of the question and of the quote, if it is what held in another one."""
        asked = [match["year"] for match in _FOR_YEAR.finditer(self._question)]
        said = {match["year"] for match in _FOR_YEAR.finditer(self._sentence)}
        if self._kind is AnswerKind.TIME or len(asked) != 1 or not said or asked[0] in self._sentence:
            return ""
        return f"The question asks about {asked[0]}, and the quote is about {', '.join(sorted(said))}"

    def _is_denied(self, begin: int, end: int) -> bool:
        """True for Josh in 'Josh may not', and for 250 in 'not 250 but 350'."""
        after = self._sentence[end:]
        if _DENIED_BEFORE.search(self._sentence[:begin]) and _BUT.match(after):
            return True
        return self._kind is AnswerKind.NAME and _DOES_NOT.match(after) is not None

    def _of_other_role(self, value: str, before: str) -> str:
        """A sentence about who did it, where the question asks to whom it was done; about an owner who did nothing."""
        asks_which = self._question.lower().startswith(("who ", "which "))
        role = _ROLE.search(before) if asks_which and value[:1].isupper() else None
        stems = content_stems(role["role"]) if role is not None else set[str]()
        if role is not None and not _BELONGS.search(self._question) and not stems & content_stems(self._question):
            return f"The quote only says that “{value}” is the {role['role'].lower()}"
        if _ASKS_PATIENT.match(self._question) and _BY.search(before):
            return f"The quote says that it was done by “{value}”"
        return ""

    def _other_column(self, before: str) -> str:
        """The column of a value, if the question asks which one, and another column of the row has the names."""
        which = _ASKS_WHICH.match(self._question)
        keys = [match["key"].strip() for match in _KEY.finditer(self._sentence)]
        if which is None or len(keys) < _FEWEST_COLUMNS:
            return ""
        naming = [key for key in keys if key.lower() == "name" or content_stems(which["thing"]) & content_stems(key)]
        own = [match["key"].strip() for match in _KEY.finditer(before)]
        return own[-1] if naming and own and own[-1] not in naming else ""

    def _is_opposite(self, begin: int) -> bool:
        """True for the hours of opening in a sentence that says both when it is open and when it is closed."""
        for pattern in _OPPOSITES:
            sides = {match.lastgroup for match in pattern.finditer(self._question)}
            of_quote = {match.lastgroup for match in pattern.finditer(self._sentence)}
            before = [match.lastgroup for match in pattern.finditer(self._sentence, 0, begin)]
            if len(sides) == 1 and len(of_quote) == 2 and before and before[-1] not in sides:
                return True
        return False

    def _clause(self, begin: int, end: int) -> str:
        """The clause with a value; of a row of a table all of it."""
        if "; " in self._sentence:
            return self._sentence
        first = max((one.end() for one in _CLAUSE_END.finditer(self._sentence, 0, begin)), default=0)
        last = _CLAUSE_END.search(self._sentence, end)
        return self._sentence[first : last.start() if last is not None else len(self._sentence)]

    def _nearer_clause(self, begin: int) -> str:
        """A clause with words of the question and a value of its kind, where that of the value has none; or ''."""
        if self._kind not in (AnswerKind.TIME, AnswerKind.AMOUNT) or _CELL.search(self._sentence):
            return ""
        stems, parts = content_stems(self._question), _PART_END.split(self._sentence)
        own = next((part for part in parts if (begin := begin - len(part)) < 0), "")
        deed = _DEED.search(self._question)
        if stems & content_stems(own):  # of a deed, the verb decides
            stems = content_stems(deed["verb"]) if deed is not None else set()
        if stems & content_stems(own):
            return ""
        nearer = (part.strip(" ,;.") for part in parts if stems & content_stems(part) and is_of_kind(self._kind, part))
        return next((part for part in nearer if self._kind is AnswerKind.TIME or re.search(r"\d", part)), "")

    def _other_time(self, value: str) -> str:
        """The month or day of the question, if the value has only others."""
        mentioned = ((one, one.kind.values(value)) for one in self._times)
        return next((one.asked for one, values in mentioned if values and not values & one.wanted), "")

    def _other_number(self) -> str:
        """The kind of number that the question asks for, if the quote names only another one."""
        of_question, of_quote = (
            [words for words in _NUMBERS if re.search(rf"\b(?:{words})\b", text, re.I)]
            for text in (self._question, self._sentence)
        )
        return of_question[0].split("|")[0] if of_question and of_quote and of_question[0] not in of_quote else ""
