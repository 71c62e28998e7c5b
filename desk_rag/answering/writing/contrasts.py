"""Notice when a sentence says the opposite of a passage: one is negated and the other is not, or a word is reversed.

Both at once agree again: 'not permitted' is what 'forbidden' says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from desk_rag.answering.requirements.stems import content_stems

_NEGATION = re.compile(
    r"\b(?:not|no|never|nothing|none|nobody|nowhere|without|cannot|neither|nor|unavailable|"
    r"unable|excluded|nicht|kein\w*|niemals|niemand|ohne|pas|aucun\w*|jamais|sans|nunca|ningun\w*|"
    r"senza|niet|geen|nooit|zonder|não|nenhum\w*|sem|inte|ingen|inget|"
    r"aldrig|utan|ikke|uden|nie|żaden|bez)\b|n['’]t\b",
    re.IGNORECASE,
)
_NO_NEGATION = re.compile(
    r"\b(?:no (?:more|less|later|earlier|fewer) than|not (?:only|just|more than|less than|until)|"
    r"nicht nur|nicht mehr als|"
    r"pas plus de|"
    r"no más de|no solo|non più di|non solo)\b",
    re.IGNORECASE,
)
_PAIRS = tuple(
    (re.compile(rf"\b(?:{one})\b", re.IGNORECASE), re.compile(rf"\b(?:{other})\b", re.IGNORECASE))
    for one, other in (
        (
            r"increas\w*|rais\w+|r[io]se[sn]?|higher|went up|goes up|dearer|more expensive",
            r"decreas\w*|reduc\w*|lower\w*|f[ae]ll[sn]?|cheaper",
        ),
        (
            r"allowed|permitted|possible|erlaubt|gestattet|permis|permitid\w*|permess\w*|toegestaan|tillåtet|tilladt",
            r"forbidden|prohibited|banned|verboten|untersagt|interdit\w*|prohibid\w*|vietat\w*|verboden|förbjud\w*|forbudt",
        ),
        (r"inside|indoors", r"outside|outdoors"),
        (r"before", r"after"),
        (r"includ(?:ed|es|ing)|free of charge|at no cost", r"separately|on top|extra|not included|excluded"),
        (r"opened|open", r"closed|shut"),
        (r"first|oldest|earliest", r"last|newest|latest"),
        (r"easy|easiest", r"hard|hardest|difficult"),
        (r"more than|larger|bigger|longer", r"less than|fewer than|smaller|shorter|lower"),
        (r"at most|no more than|maximum|up to", r"at least|no less than|minimum"),
        (r"earlier|early", r"later|late"),
        (r"w[io]ns?", r"los(?:t|es?)"),
        (r"pass(?:ed|es)", r"fail(?:ed|s)?"),
        (r"bought|buys?", r"sold|sells?"),
        (r"on time|punctual\w*", r"delayed|late"),
        (r"full", r"empty"),
        (r"added|adds?|kept|keeps?", r"removed?|removes|left out|leaves? out"),
        (r"accept(?:ed|s)?|approved", r"reject(?:ed|s)?|refused|declined"),
        (r"erhöht\w*|steigt|gestiegen|höher", r"gesenkt|sinkt|gesunken|niedriger"),
    )
)
_MEANS_NOT = re.compile(
    r"\b(?:left (?:\w+ )?out|separately|refus\w+|declin\w+|fail(?:s|ed)? to|lacks?|forbid\w*|banned)\b", re.IGNORECASE
)
"""Words that negate without a word for not."""


def contradicts(claim: str, core: str, passage: str, parts: Sequence[str] = ()) -> bool:
    """True if `claim` reads like the opposite of `core`, the part of `passage` about the same thing.

    `parts` are the sentences and clauses of the passage. A claim may be negated because of any of them that shares a
    word with it, and a word may be reversed in any that is about the same things; a claim that is not negated only
    answers for its own part.
    """
    if _is_negated(claim):
        stems = content_stems(claim)
        near = [part for part in parts if stems & content_stems(part)] or [passage]
        differs = not any(_is_negated(part) or _MEANS_NOT.search(part) for part in near)
    else:
        differs = _is_negated(core) and not _MEANS_NOT.search(claim)
    rest = [part for part in parts if part != core]
    turned = any(
        _reversed(claim, core, *pair) or _reversed(core, claim, *pair) or _reversed_elsewhere(claim, rest, core, *pair)
        for pair in _PAIRS
    )
    if turned and _is_negated(claim) != _is_negated(core):
        return False
    return differs or turned


def _is_negated(text: str) -> bool:
    return _NEGATION.search(_NO_NEGATION.sub("", text)) is not None


def _reversed(one: str, other: str, this: re.Pattern[str], that: re.Pattern[str]) -> bool:
    """True if `one` has a word and `other` only its opposite."""
    has_this = this.search(one) and not that.search(one)
    return bool(has_this and that.search(other) and not this.search(other))


def _reversed_elsewhere(
    claim: str, parts: Sequence[str], core: str, this: re.Pattern[str], that: re.Pattern[str]
) -> bool:
    """True if the part that shares most with `claim` among those with either word has the opposite one."""
    for mine, opposite in ((this, that), (that, this)):
        if not mine.search(claim) or opposite.search(claim) or mine.search(core):
            continue
        stems = content_stems(mine.sub("", claim))
        shared = {
            kind: max((len(stems & content_stems(part)) for part in parts if kind.search(part)), default=0)
            for kind in (mine, opposite)
        }
        if shared[opposite] > shared[mine]:
            return True
    return False
