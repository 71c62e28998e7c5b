"""Notice when a sentence says the opposite of a passage, or gives one of its facts to something else.

Opposites: one is negated and the other is not, or a word is reversed; both at once agree again ('not permitted',
'forbidden'). Swapped facts: all words and facts of 'Beans: 21 kilograms' stand in '21 kilograms of potatoes and 9
kilograms of beans'. What gives it away is where they stand: the sentence's other words are in a clause that has another
number in that place. The same goes for two facts around a word with a direction: 'A took over from B'.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from desk_rag.answering.requirements.stems import content_stems
from desk_rag.answering.writing import facts

_NEGATION = re.compile(
    r"\b(?:not|no|never|nothing|none|nobody|nowhere|without|cannot|neither|nor|unavailable|"
    r"unable|excluded|nicht|kein\w*|niemals|niemand|ohne|pas|aucun\w*|jamais|sans|nunca|ningun\w*|"
    r"senza|niet|geen|nooit|zonder|não|nenhum\w*|sem|inte|ingen|inget|"
    r"aldrig|utan|ikke|uden|nie|żaden|bez)\b|n['’]t\b",
    re.IGNORECASE,
)
_ANSWER_WORD = re.compile(r"^\W*(?:no|nein|non|nee|não|nej|nie)\s*[,.:;–—-]\s*", re.IGNORECASE)
"""'No, …': it answers the question and negates nothing in its own sentence."""
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
        (r"found|turned up|recovered", r"missing|lost"),
        (r"repaired|mended|fixed|restored", r"broken|thrown away|replaced"),
        (r"paid|settled", r"unpaid|outstanding|yet to be paid|owed|overdue"),
        (r"free|gratis", r"costs?|charged?|paid for"),
        (r"compulsory|mandatory|required|must", r"optional|voluntary|needn['’]t|need not"),
        (r"public", r"private"),
        (r"temporar\w+", r"permanent\w*"),
        (r"present|attended|attends?", r"absent|missed"),
        (r"safe", r"dangerous|unsafe|hazardous"),
        (r"same", r"different"),
        (r"strong\w*", r"weak\w*"),
        (r"warm|hot|heated", r"cold|cool|freezing|unheated"),
        (r"dry", r"wet|damp"),
        (r"clean", r"dirty"),
        (r"quiet|silent", r"loud|noisy"),
        (r"deep", r"shallow"),
        (r"wide|broad", r"narrow"),
        (r"thick", r"thin"),
        (r"new", r"old|used|second-hand"),
        (r"fast(?:er|est)?|quick\w*", r"slow\w*"),
        (r"good|well|excellent", r"bad|badly|poor|poorly|ill|sick"),
        (r"better|best", r"worse|worst"),
        (r"uphill|upstairs", r"downhill|downstairs"),
        (r"above", r"below|beneath"),
        (r"north\w*", r"south\w*"),
        (r"east\w*", r"west\w*"),
        (r"arriv(?:es?|ed|al)", r"depart(?:s|ed|ure)?|leaves?"),
        (r"borrow(?:s|ed)?", r"len[dt]s?"),
        (r"agreed?|agrees|consent(?:s|ed)?", r"disagree[sd]?|objected|objects"),
        (r"alive|living|survived", r"dead|died"),
        (r"guilty", r"innocent"),
        (r"success\w*|succeed\w*", r"failure|unsuccessful\w*"),
        (r"sunny", r"rainy|cloudy"),
        (r"tight", r"loose"),
        (r"visible|seen", r"hidden|invisible"),
        (r"valid", r"expired|invalid|void"),
        (r"always|every time", r"never|rarely|seldom"),
        (r"all|every|everybody|everyone|most", r"none|nobody|few"),
        (r"both", r"neither|only one"),
        (r"many", r"few"),
        (r"manual\w*|by hand", r"automatic\w*"),
        (r"online", r"in person|by post"),
        (r"domestic|at home", r"abroad|foreign"),
        (r"direct(?:ly)?", r"change[sd]?|indirect(?:ly)?"),
        (r"true", r"false"),
        (r"healthy", r"ill|sick"),
        (r"awake", r"asleep"),
        (r"gain\w*|profit", r"loss"),
        (r"erhöht\w*|steigt|gestiegen|höher", r"gesenkt|sinkt|gesunken|niedriger"),
    )
)
_CLAUSE_END = re.compile(r"[,;]\s+|\n|\|\s|\s(?=(?:and|but|while|whereas|und|aber|während|et|mais|y|pero|e|ma)\s)")
_DIRECTED = re.compile(
    r"\b(?:from|instead of|rather than|in place of|to|than|von|statt|zu|als|de|au lieu de|à|en lugar de|da|"
    r"invece di)\b",
    re.IGNORECASE,
)
_LEAST_SHARE = 0.99
"""Share of a sentence's words that the clause with another fact must have."""
_LEAST_LEAD = 0.34
"""Share by which it must have more than any clause with the sentence's own fact."""
_LEAST_WORDS = 2
_MEANS_NOT = re.compile(
    r"\b(?:left (?:\w+ )?out|separately|refus\w+|declin\w+|fail(?:s|ed)? to|lacks?|forbid\w*|banned|otherwise|unless|"
    r"instead of|rather than|out of the question|hardly|barely|impossible|would have (?:liked|appreciated|preferred)|"
    r"too (?!many\b)\w+)\b",
    re.IGNORECASE,
)
"""Words that negate without a word for not."""


def contradicts(claim: str, core: str, passage: str, parts: Sequence[str] = ()) -> bool:
    """True if `claim` reads like the opposite of `core`, the part of `passage` about the same thing.

    `parts` are the sentences and clauses of the passage. A claim may be negated because of any of them that shares a
    word with it, and a word may be reversed in any that is about the same things; a claim that is not negated only
    answers for its own part.
    """
    claim = _ANSWER_WORD.sub("", claim)
    if _is_negated(claim):
        stems = content_stems(claim)
        near = [part for part in parts if stems & content_stems(part)] or [passage]
        differs = not any(_is_negated(part) or _MEANS_NOT.search(part) for part in near)
    else:
        differs = _is_negated(core) and not _MEANS_NOT.search(claim)
    rest = [part for part in parts if part != core]
    turned = (
        _prefixed(claim, core)
        or _prefixed(core, claim)
        or any(
            _reversed(claim, core, *pair)
            or _reversed(core, claim, *pair)
            or _reversed_elsewhere(claim, rest, core, *pair)
            for pair in _PAIRS
        )
    )
    if turned and _is_negated(claim) != _is_negated(core):
        return False
    return differs or turned


def swapped(claim: str, passage: str) -> bool:
    """True if a fact of `claim` stands in `passage` in a place where the claim has another."""
    sentences = [sentence for sentence in re.split(r"(?<=[.!?])\s+|\n", passage) if sentence.strip()]
    claimed = facts.facts(claim)
    if not claimed:
        return False
    return any(_turned(claim, claimed, sentence) for sentence in sentences) or _in_another_clause(
        claim, claimed, [clause for sentence in sentences for clause in _clauses(sentence)]
    )


def _clauses(sentence: str) -> list[str]:
    """Return the parts of a sentence that each may say something of their own."""
    parts = [part for part in _CLAUSE_END.split(sentence) if part and part.strip()]
    return parts or [sentence]


def _turned(claim: str, claimed: Sequence[facts.Fact], sentence: str) -> bool:
    """True if claim and sentence have the same two facts around the same directed word, the other way round."""
    for word in _DIRECTED.finditer(claim):
        before = [fact for fact in claimed if fact.end <= word.start()]
        after = [fact for fact in claimed if fact.begin >= word.end()]
        if not before or not after:
            continue
        for other in re.finditer(rf"\b{re.escape(word.group())}\b", sentence, re.IGNORECASE):
            left, right = sentence[: other.start()], sentence[other.end() :]
            ahead = next(iter(facts.facts(f"x {right}")), None)
            if ahead is None or not _holds([after[0]], left) or _holds([after[0]], right):
                continue
            kind = after[0].is_number
            same = [fact for fact in before if fact.is_number == ahead.is_number == kind]
            if any(_holds([fact], ahead.text) for fact in same):
                return True
    return False


def _in_another_clause(claim: str, claimed: Sequence[facts.Fact], candidates: Sequence[str]) -> bool:
    for fact in claimed:
        alike = [each for each in claimed if each.is_number == fact.is_number]
        words = content_stems(_own_clause(claim, fact)) - content_stems(" ".join(each.text for each in alike))
        with_fact = [clause for clause in candidates if _holds([fact], clause)]
        others = [clause for clause in candidates if not any(_holds([each], clause) for each in alike)]
        if len(words) < _LEAST_WORDS or not with_fact or not others:
            continue
        own = max(_share(words, clause) for clause in with_fact)
        best = max(others, key=lambda clause: _share(words, clause))
        if facts.rivals(fact, claim, f"x {best}") and _share(words, best) >= max(_LEAST_SHARE, own + _LEAST_LEAD):
            return True
    return False


def _own_clause(claim: str, fact: facts.Fact) -> str:
    begin = 0
    for part in _clauses(claim):
        start = claim.index(part, begin)
        begin = start + len(part)
        if start <= fact.begin < begin:
            return part if len(content_stems(part)) > _LEAST_WORDS else claim
    return claim


def _share(words: set[str], clause: str) -> float:
    return len(words & content_stems(clause)) / len(words)


def _holds(wanted: Sequence[facts.Fact], text: str) -> bool:
    return not facts.missing(list(wanted), text)


_PREFIXED = re.compile(r"\b(?:un|in|im|ir|il|dis|non-?)(\w{4,})", re.IGNORECASE)


def _prefixed(one: str, other: str) -> bool:
    """True if `one` has a word with a prefix that reverses it, and `other` has it without: 'unlocked', 'locked'."""
    words = set(re.findall(r"\w+", other.casefold()))
    return any(match[1].casefold() in words and match[0].casefold() not in words for match in _PREFIXED.finditer(one))


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
