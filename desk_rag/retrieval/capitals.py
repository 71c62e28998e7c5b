"""Write the names of a question with the capitals that the documents give them.

Many people type in small letters: 'when does bruno's passport expire'. Rules that tell a person, a place or a month
from other words look at capitals, so a word that no document writes small, and that stands capital within sentences,
gets its capital back. Search does not depend on it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from desk_rag.store.catalog.words import STOP_WORDS

if TYPE_CHECKING:
    from desk_rag.store.store import Store

_TYPED = re.compile(r"(?<![\w@./:'’-])(?:[a-z]{3,24}|[A-Z][a-z]{2,23}s)(?![\w@/:-]|['’]\w\w|\.\w)")
"""A word in small letters, or one that may be a possessive without its mark."""
_CHUNKS = 48
"""Chunks with words of the question that are looked at."""
_TIMES = (
    "january february april june july august september october november december"
    " monday tuesday wednesday thursday friday saturday sunday"
)
_TIME = re.compile(
    rf"\b(?:{_TIMES.replace(' ', '|')})\b"
    r"|(?P<before>\b(?:in|of|by|last|next|this|from|till|since|until|during|before|after|\d{1,2})\s)(?P<name>may|march)\b"
    r"|\b(?:may|march)(?=\s+(?:19|20)\d\d\b)"
)
_TITLES = frozenset("mr mrs ms miss dr prof aunt uncle st dear".split())  # noqa: SIM905


def as_in_documents(store: Store, question: str) -> str:
    """The question with capitals for names, months and weekdays that were typed in small letters."""
    question = _TIME.sub(_capital, question)
    typed = [word for word in _TYPED.findall(question) if word.lower() not in STOP_WORDS]
    if not typed:
        return question
    hits = store.search_words(" ".join(typed), _CHUNKS)
    texts = [passage.chunk.text for hit in hits if (passage := store.passage(hit.chunk_id)) is not None]
    names = {word: name for word in dict.fromkeys(typed) if (name := _name(word, texts))}
    return _TYPED.sub(lambda match: names.get(match.group(), match.group()), question) if names else question


def _capital(match: re.Match[str]) -> str:
    return f"{match['before']}{match['name'].capitalize()}" if match["name"] else match.group().capitalize()


def _name(word: str, texts: list[str]) -> str:
    """The word as a name, if the texts know it only as one; 'brunos' is "Bruno's". Empty otherwise."""
    if word.islower() and _is_name(word, texts):
        return word.capitalize()
    owner = word.removesuffix("s")
    is_owner = owner != word and len(owner) > 2 and not _stands(word, texts) and _is_name(owner, texts)
    return f"{owner.capitalize()}'s" if is_owner else ""


def _stands(word: str, texts: list[str]) -> bool:
    return any(re.search(rf"(?<!\w){word}(?!\w)", text, re.I) for text in texts)


def _is_name(word: str, texts: list[str]) -> bool:
    """True if no text has the word in small letters, and one has it capital behind a word in small letters."""
    any_form = re.compile(rf"(?:(?P<before>[^\W\d_]+)[,;]?[ ](?:['\"“‘(])?)?(?<!\w)(?P<word>{word})(?!\w)", re.I)
    is_name = False
    for text in texts:
        for match in any_form.finditer(text):
            if match["word"][0].islower():
                return False
            before = match["before"] or ""
            is_name = is_name or before.islower() or before.lower() in STOP_WORDS or before.lower() in _TITLES
    return is_name
