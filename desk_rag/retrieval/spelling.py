"""Correct words of a question that stand in no document and in no English word list, by the documents' own words.

'What does the kingfishr room cost?' is searched as 'What does the kingfisher room cost?', and the answer says so. A
word that is known to the embedder is never taken for a slip: 'rodents' may well be asked about mice. 'Waht' and 'meny'
become the question words that they are one letter, or two letters in the wrong order, away from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from desk_rag.assets import assets_dir
from desk_rag.store.catalog.words import STOP_WORDS

if TYPE_CHECKING:
    from desk_rag.store.store import Store

_WORD = re.compile(r"(?<![\w@./:'’-])[^\W\d_]{5,24}(?![\w@/:-]|['’]\w|\.\w)")
_ENDINGS = ("", "s", "es", "d", "ed", "ing", "r", "rs", "er", "est", "ly")
_LONGER = ("e", "d", "ed", "ing", "s")
_MOST_CORRECTED = 3
_SHORT_WORD = re.compile(r"(?<![\w@./:'’-])[^\W\d_]{3,6}(?![\w@/:-]|['’]\w|\.\w)")
_QUESTION_WORDS = ("what", "when", "where", "which", "who", "whose", "how", "many", "much", "does")


@dataclass(frozen=True, slots=True)
class Spelled:
    """A question with the spelling of the documents."""

    question: str
    replaced: tuple[tuple[str, str], ...]
    """Each word as it was typed and as the documents spell it."""

    @property
    def notice(self) -> str:
        """A sentence that says what was replaced."""
        pairs = ", ".join(f"“{typed}” was read as “{spelled}”" for typed, spelled in self.replaced)
        return f"{pairs}; no document has it as typed"

    @property
    def names(self) -> tuple[str, ...]:
        """The replaced words that may be the name of somebody else."""
        return tuple(
            typed for typed, word in self.replaced if typed[0].isupper() and word.lower() not in _QUESTION_WORDS
        )


def spelled_as_documents(store: Store, question: str, *, in_english: bool = True) -> Spelled | None:
    """The question with its misspelled words corrected; None if there are none.

    Only one that is `in_english` has slips of English words: "Hoe" is Dutch, and "werden" no slip of "were".
    """
    replaced: list[tuple[str, str]] = []
    text = _SHORT_WORD.sub(lambda match: _question_word(match, replaced), question) if in_english else question
    replaced.reverse()
    question = text
    words = list(_WORD.finditer(question))
    near = store.spellings([match.group() for match in words], _is_known) if words else {}
    for match in [match for match in words if match.group() in near][:_MOST_CORRECTED][::-1]:
        word = match.group()
        fitting = [one for one in near[word] if in_english or not _is_known(one)]
        spelled = _fitting(word, fitting, first=match.start() == 0)
        if spelled:
            text = f"{text[: match.start()]}{spelled}{text[match.end() :]}"
            replaced.append((word, spelled))
    return Spelled(text, tuple(reversed(replaced))) if replaced else None


def _question_word(match: re.Match[str], replaced: list[tuple[str, str]]) -> str:
    """The question word that a word is a slip of, noted in `replaced`; the word itself if it is none, or a name."""
    word = match.group()
    near = [one for one in _QUESTION_WORDS if _is_one_slip(word.lower(), one)]
    is_name = any(letter.isupper() for letter in (word[1:] if match.start() == 0 else word))
    if len(near) != 1 or is_name or _is_known(word):
        return word
    spelled = near[0].capitalize() if word[0].isupper() else near[0]
    replaced.append((word, spelled))
    return spelled


def _is_one_slip(typed: str, word: str) -> bool:
    """True if one letter of `word` is missing, added or another, or two neighbours are swapped."""
    if typed == word or abs(len(typed) - len(word)) > 1:
        return False
    begin = next((n for n, (a, b) in enumerate(zip(typed, word, strict=False)) if a != b), min(len(typed), len(word)))
    rest, wanted = typed[begin:], word[begin:]
    if len(typed) == len(word):
        return rest[1:] == wanted[1:] or (rest[:2] == wanted[:2][::-1] and rest[2:] == wanted[2:])
    return rest[1:] == wanted if len(typed) > len(word) else rest == wanted[1:]


def _fitting(word: str, near: Sequence[str], *, first: bool) -> str:
    """The spelling of the documents; a word in small letters is no name, and a name is no other word."""
    is_name = word[0].isupper() and not first
    fitting = [one for one in near if not is_name or one[0].isupper()]
    return "" if not fitting else fitting[0] if word[0].isupper() else fitting[0].lower()


def _is_known(typed: str) -> bool:
    """True for an English word, with or without an ending."""
    word = typed.casefold()
    if word in STOP_WORDS:
        return True
    forms = {word.removesuffix(ending) for ending in _ENDINGS}
    longer = {f"{form}{ending}" for form in forms for ending in _LONGER}  # 'revised' is known, and 'revise' is not
    return not _known_words().isdisjoint(forms | longer)


@cache
def _known_words() -> frozenset[str]:
    """The whole words that the embedder knows, some 20,000."""
    file = assets_dir() / "embedder" / "tokenizer.json"
    vocabulary = json.loads(file.read_text(encoding="utf-8"))["model"]["vocab"]
    return frozenset(word for word in vocabulary if word.isalpha())
