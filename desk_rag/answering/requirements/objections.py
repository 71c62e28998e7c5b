"""Penalize sentences that cannot answer a question, however high the models score them.

'Keys are stored before the rotary position is applied' does not answer why they are. A line of code seldom answers a
question in plain words, and a sentence that names no time never answers 'when'.
"""

from __future__ import annotations

import re
from datetime import date

from desk_rag.answering.requirements.answer_kinds import (
    AnswerKind,
    asks_whether,
    is_of_kind,
    kind_asked,
    only_dates_document,
    only_proposed,
)
from desk_rag.answering.requirements.correspondence import asks_of_header, asks_of_letters, is_header
from desk_rag.answering.requirements.dates import without_dates
from desk_rag.answering.requirements.places import Place
from desk_rag.answering.requirements.statements.dated_lines import dated_heading
from desk_rag.answering.requirements.statements.drafts import asks_of_draft, is_draft
from desk_rag.answering.requirements.statements.matters import is_contrary, is_of_another_kind
from desk_rag.answering.requirements.statements.other_values import only_taken_off
from desk_rag.answering.requirements.statements.prices import asks_price, is_event, is_price_list
from desk_rag.answering.requirements.statements.standing import asks_what_holds, asks_when_done, is_over, only_planned
from desk_rag.answering.requirements.stems import content_stems, has_stem

_NAMES_CODE = re.compile(
    r"\w_\w|[a-z][A-Z]|\w\.\w|\w\(|::|`"
    r"|\b(?:functions?|methods?|class(?:es)?|modules?|constants?|variables?|tests?|code|source|implement\w*|defined)\b"
)
_CODE_LINE = re.compile(
    r"^from\s+[\w.]+\s+import\b|^(?:(?:async\s+)?def|class|import|return|yield|raise|assert|elif|else|try|except|with|for|if"
    r"|func|fn|pub|static|const|let|var|void|public|private)\b.*[:;({,]$|^@\w|^(?:return|import|raise|assert)\s\S+$|^(?:return|raise|yield)\s+(?:[frb]?[\"'{\[]|\w+\()"
    r"|^[\w.]+(?:,\s*[\w.]+)*\s*=\s*[\w.]+[(\[]|->\s*[\w\[\], |]+:?$|\(self\b"
)
_SEVERAL_CONSTANTS = re.compile(r"^[A-Z_][\w.]*(?:,\s*[A-Z_][\w.]*)+\s*=\s")
_CONSTANT = re.compile(r"^[A-Z_][A-Z\d_]*\s*(?::[^=]+)?=\s")
_ASKS_MEANING = re.compile(r"^what(?:['’]s|\s+is)\s+an?\s+(?P<thing>[\w-]+(?:\s[\w-]+)?)\W*$", re.I)
_MEANS = (
    r"(?:\s+\([^)]*\))?,?\s+(?:(?:is|are)\s+(?:an?|the|one|any)|means|stands\s+for|denotes)\b|\s*[:=|–—]\s+\S+\s+\S|;\s"
)
_ASKS_STORAGE = re.compile(
    r"^how\s+(?:much|many)\s+(?:\w+\s+)?(?:disk|memory|storage|ram\b|space\s+on\s+the\s+(?:disk|drive)|\w*bytes\b)",
    re.I,
)
_STORAGE = re.compile(
    r"\d\s?(?:[kmgt]i?b|\w*bytes?|%|per\s?cent)\b|_(?:[kmgt]i?b|bytes)\b|\b(?:none|no|nothing|half)\b", re.I
)
_OF_A_NAME = re.compile(r"^[^\W\d_a-z][\w.’'-]*(?:\s[^\W\d_a-z][\w.’'-]*)+,\s[^:;]{2,30}:\s")
_CONTACT = content_stems(
    "phone telephone mobile cell fax number email mail e-mail address call ring dial reach live lives lived"
)
_HOW = content_stems("how much many long often far high large")
_ASKS_WHY = re.compile(r"^why\b|\breasons?\s+(?:for|why|that|of)\b|\bfor\s+(?:what|which)\s+reason\b", re.I)
_HOW_MANY_DID = re.compile(r"^how\s+many\s+(?:[a-z’'-]+\s+){1,3}?(?P<verb>[a-z]{2,}ed)\b", re.I)
"""'How many lamps failed the test?', which the number of lamps tested does not answer."""
_GIVES_REASON = re.compile(
    r"\b(?:because|since|as|so|due\s+to|owing\s+to|thanks\s+to|therefore|thus|hence|otherwise|reasons?|cause[sd]?|why|in\s+order"
    r"|too|after|to\s+(?:avoid|prevent|save|keep|make|let|protect)|lest|for\s+fear)\b|:\s",
    re.I,
)
_FEWEST_NEW = 4
"""Words that a sentence without a word for a reason says beyond the question; fewer only say that it was so."""
_GREETING = re.compile(
    r"^(?:Dear|Hello|Hi|Hey)\s[^.?!:]{0,40}[,!]?$|^(?:(?:Kind|Best|Warm)\s+(?:regards|wishes)|Yours|Sincerely|Regards)\b.{0,40}$"
)
_INSTEAD = tuple(
    (content_stems(asked), content_stems(instead))
    for asked, instead in (
        ("return give back", "lend lent loan borrow"), ("deliver arrive", "order depart"), ("depart leave", "arrive"),
        ("pay paid", "order issue"), ("repair mend fix", "break broke broken crack"), ("find found", "lose lost"),
        ("cancel", "book reserve"), ("sell sold", "buy bought purchase"),
        ("approve accept", "reject refuse decline propose"), ("die", "born"),
        ("born", "die"),
    )
)  # fmt: skip
"""Deeds, each with the deeds that come before it or in its place."""
_OTHER_KIND, _NOTHING_NEW, _CODE, _OF_CODE = 2.5, 5.0, 3.0, 1.5
"""Log-odds that a sentence loses; see "A repository as a folder" in bench/LOG.md."""
_PRICED, _PAID_ONCE = 4.0, 0.5
"""The same that a line of a price list gains, and a booking or payment loses, where a question asks for a price."""
_DRAFT = 4.0
"""Log-odds that a sentence of a draft loses, so that it comes after one of the final text that says as much."""
_OVER, _CONTRARY, _ANOTHER_THING = 5.0, 2.5, 4.0
"""The same where it says that something is over or only planned, or is about another thing.

See "What holds now" in bench/LOG.md.
"""


class Objections:
    """Objections to sentences as answers to one question."""

    def __init__(self, question: str) -> None:
        self._question = question
        self._kind = kind_asked(question)
        self._plain = not names_code(question)
        self._known = set[str]() if asks_whether(question) else content_stems(question)
        self._why = _ASKS_WHY.search(question.strip()) is not None
        self._price = asks_price(question)
        did = _HOW_MANY_DID.match(question.strip())
        self._deed = content_stems(did["verb"]) if did is not None else set[str]()
        self._storage = _ASKS_STORAGE.search(question.strip()) is not None
        asks_contact = self._kind in (AnswerKind.PHONE, AnswerKind.ADDRESS, AnswerKind.POSTAL)
        self._whose = content_stems(question) - _CONTACT if asks_contact else set[str]()
        self._says_meaning = definition_asked(question)
        of_event = self._kind in (AnswerKind.TIME, AnswerKind.YEAR, AnswerKind.NAME)
        stems = content_stems(question)
        pairs = [(asked, instead) for asked, instead in _INSTEAD if asked & stems and not instead & stems]
        self._instead = pairs if of_event else []
        self._finals = not asks_of_draft(question)
        self._holds = asks_what_holds(question)
        self._done = asks_when_done(question)
        asks_of_mails = asks_of_header(question) if of_event else asks_of_letters(question)
        self._no_header = not asks_of_mails

    def penalty(self, sentence: str) -> float:
        """Log-odds to subtract from a sentence's score."""
        plain = sentence.strip()
        stems = content_stems(sentence)
        is_other = (
            self._kind is not None and not is_of_kind(self._kind, sentence),
            self._kind is AnswerKind.NUMBER and only_taken_off(self._question, sentence),
            only_proposed(self._question, sentence) or only_dates_document(self._question, sentence),
            self._whose and _OF_A_NAME.match(sentence) and not any(has_stem(one, stems) for one in self._whose),
            self._says_meaning is not None and not self._says_meaning.search(sentence),
            any(not asked & stems and instead & stems for asked, instead in self._instead),
            self._storage and not _STORAGE.search(sentence),
            self._why and not _GIVES_REASON.search(sentence) and not self._says_more(sentence),
        )
        lost = _OTHER_KIND * sum(map(bool, is_other))
        lost += _NOTHING_NEW * ((self._no_header and is_header(sentence)) or _GREETING.match(plain) is not None)
        lost += _NOTHING_NEW * (bool(self._known) and stems <= self._known)
        if _SEVERAL_CONSTANTS.search(sentence) or (self._plain and _CODE_LINE.search(plain)):
            lost += _CODE
        lost += _OVER * (self._holds and is_over(sentence, date.today()))
        lost += _OVER * (self._done and only_planned(sentence))
        return lost + _CONTRARY * is_contrary(self._question, sentence)

    def _says_more(self, sentence: str) -> bool:
        """True if a sentence says several words beyond the question, besides when it was."""
        return len(content_stems(without_dates(sentence)) - self._known) >= _FEWEST_NEW

    def of_origin(self, place: Place, sentence: str) -> float:
        """Log-odds to subtract for the place of the sentence.

        Program code loses where the question is in plain words, but constants lose nothing; so do words of a draft.
        """
        lost = _DRAFT * (self._finals and is_draft(place))
        lost += self._price * (_PAID_ONCE * is_event(sentence) - _PRICED * is_price_list(place))
        lost += _OF_CODE if place.is_code and self._plain and not _CONSTANT.search(sentence) else 0.0
        return lost + self.of_passage(place, sentence)

    def of_passage(self, place: Place, sentence: str) -> float:
        """Log-odds to subtract if the passage shows that the sentence is about another thing.

        An entry below the date of a diary regains what it lost for naming no time or only repeating the question.
        """
        lost = _ANOTHER_THING * is_of_another_kind(self._question, sentence, place)
        if self._deed and not self._deed & content_stems(sentence) and self._deed & content_stems(place.text):
            lost += _OTHER_KIND
        if self._kind is not AnswerKind.TIME or not dated_heading(place, sentence):
            return lost
        says_known = bool(self._known) and content_stems(sentence) <= self._known
        return lost - _OTHER_KIND * (not is_of_kind(self._kind, sentence)) - _NOTHING_NEW * says_known


def definition_asked(question: str) -> re.Pattern[str] | None:
    """Pattern of sentences that define the thing of 'What is a …?'; None for other questions.

    'A chunk is …', 'word: chunk; means: …'
    """
    meaning = _ASKS_MEANING.match(question.strip())
    if meaning is None:
        return None
    thing = re.escape(meaning["thing"])
    return re.compile(rf"(?:^|:\s|\b(?:an?|the)\s)\W?{thing}s?\W?(?:{_MEANS})", re.I | re.M)

def says_all(question: str, sentence: str, labels: str = "") -> bool:
    """True if a sentence and its labels have all content words of a question, and an answer of the kind asked for."""
    kind, wanted = kind_asked(question), content_stems(question) - _HOW
    stems = content_stems(f"{sentence}\n{labels}")
    of_kind = kind is not None and is_of_kind(kind, sentence)
    return of_kind and len(wanted) > 1 and all(has_stem(stem, stems) for stem in wanted)


def names_code(question: str) -> bool:
    """True if a question speaks of functions or constants, or holds a name as programs have them."""
    return _NAMES_CODE.search(question) is not None
