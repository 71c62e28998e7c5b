"""Rewrite a follow-up question so that it stands alone, by rule.

The embedded reader cannot rewrite, so pronouns and left-out words are filled in from the last question, its answer and
the heading of what was quoted. A question that leans on nothing is returned as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from desk_rag.answering.conversation import antecedents, ellipsis
from desk_rag.answering.conversation import vocabulary as v
from desk_rag.answering.conversation.talk import Talk, no_texts
from desk_rag.answering.conversation.turns import Turn
from desk_rag.answering.questions.folder.follow_on import of_list

_CONNECTIVE = re.compile(r"^(?:(?:and|but|or|also|so|then|ok|okay|well|thanks|thank you)\b[,.!]?\s+)+", re.IGNORECASE)
_ABOUT = re.compile(r"^(?:what|how)\s+about\s+|^same\s+(?:question\s+)?for\s+", re.IGNORECASE)
_MOST_TURNS = 5
_MOST_THIN = 3
"""Content words up to which a question without names may lean on the last one."""


def stand_alone(
    question: str,
    turns: Sequence[Turn],
    quoted_stems: frozenset[str] = frozenset(),
    *,
    texts_about: Callable[[str], Sequence[str]] = no_texts,
    in_named_file: Callable[[str], bool] | None = None,
) -> str:
    """Return the question with what it leans on filled in.

    `quoted_stems` holds the stems of the words of the documents quoted last: a short question without pronouns leans on
    the last one only if it uses some of these words. `texts_about` finds what the documents say of a name.
    `in_named_file` tells whether a name stands in the file that the question names; None if it names none. In a whole
    question that names its file only 'he' and 'her' are filled in, and only by somebody of that file.
    """
    plain = question.strip()
    if not turns or not plain:
        return question
    talk = Talk(tuple(turns[-_MOST_TURNS:]), texts_about)
    body = _CONNECTIVE.sub("", plain)
    joined = body != plain
    about = _ABOUT.sub("", body)
    bare = about.strip().rstrip("?.! ")
    is_part = about != body or ellipsis.is_fragment(body, joined=joined)
    if in_named_file is not None and not is_part:
        filled = antecedents.fill_in(body, talk, only_people=True, is_meant=in_named_file)
        return _sentence(filled, question) if joined or filled != body else question
    if carried_over := of_list(bare, talk.asked) or ellipsis.of_same_noun(bare, talk.asked):
        return _sentence(carried_over, question)
    if is_part:
        return _sentence(ellipsis.complete(bare, talk), question)
    if doer := antecedents.doer_asked(body, talk):
        return _sentence(doer, question)
    if antecedents.leans(body):
        return _sentence(antecedents.fill_in(body, talk), question)
    own = v.content_words(body)
    is_thin = len(own) <= _MOST_THIN and not any(map(v.is_name, v.words_of(body)[1:]))
    is_bill = bool(own) and v.BILLS.issuperset(own)
    if is_thin and (own and v.stems(own) <= quoted_stems or (joined and len(own) == 1) or is_bill):
        return _sentence(antecedents.attach(body, talk), question)
    return _sentence(body, question) if joined and len(own) > 1 else question


def is_open(question: str, rewritten: str) -> bool:
    """Return whether a pronoun stood for nothing sure, so that the words of the last question follow in brackets."""
    return rewritten.endswith(")?") and ")" not in question


def _sentence(text: str, question: str) -> str:
    """Return the text as a question: one line, capital first, a question mark last; the question if it is empty."""
    plain = " ".join(text.split()).rstrip("?.! ")
    return f"{plain[:1].upper()}{plain[1:]}?" if plain else question
