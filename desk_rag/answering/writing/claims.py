"""Take the Markdown off a sentence and say whether it claims something that documents can support."""

from __future__ import annotations

import re

MARKER = re.compile(
    r"[ \t]*(?:\[\^?\s*(?:(?:doc(?:ument)?s?|sources?|passages?|dokument|quelle|document)\s*)?#?"
    r"(\d{1,3}(?:\s*[,;–-]\s*(?:(?:doc(?:ument)?|source)\s*)?\d{1,3})*)\s*\](?!\()|【(\d{1,3})[^】\n]{0,40}】)",
    re.IGNORECASE,
)
"""A citation as models write it: [2], [1, 3], [1-3], [^2], [Document 2], 【2†source】; no link."""
_CITED_LINK = re.compile(r"\[(\[\^?\d{1,3}\])\]\([^)\n]*\)")
"""[[2]](https://…), a citation with an address of the model's own."""
_DOCUMENT = (
    r"(?:the )?(?:documents?|docs?\.?|sources?|passages?|excerpts?|dokument\w*|quellen?|passagen?|auszug|fuente|fonte|"
    r"documento|extrait|passage|bron|källa|kilde)\s*#?(\d{1,3}(?:\s*(?:,|and|und|et|y|e|en|och|og)\s*\d{1,3})*)"
)
_IN_BRACKETS = re.compile(rf"[ \t]*\((?:see |siehe |voir )?{_DOCUMENT}\)", re.IGNORECASE)
_ACCORDING_TO = re.compile(
    r"\b(?:according to|as (?:stated|mentioned|described|noted|shown) in|as per|per|laut|gemäß|nach|selon|d['’]après|"
    rf"según|secondo|volgens|segundo|enligt|ifølge|według) {_DOCUMENT}\b[,:]?\s*",
    re.IGNORECASE,
)
"""A document that a sentence names by its number; the passages say nothing of numbers."""
_NUMBER = re.compile(r"\d{1,3}")
_RANGE = re.compile(r"(\d{1,3})\s*[–-]\s*(\d{1,3})")
_CODE_SPAN = re.compile(r"(`+[^`]*`+)")
_PREFIX = re.compile(r"^\s*(?:>\s*)*(?:[-*+•]\s+(?:\[[ xX]\]\s+)?|\d{1,3}[.)]\s+)?")
_EMPHASIS = re.compile(r"(\*\*|__|~~|(?<!\w)[*_](?=\S)|(?<=\S)[*_](?!\w))")
_LINK = re.compile(r"!?\[([^\]\n]*)\]\([^)\n]*\)")
_HEADING = re.compile(r"^\s{0,3}#{1,6}\s")
_RULE = re.compile(r"^\s*(?:[-*_=]\s*){3,}$")
_DELIMITER_ROW = re.compile(r"^\s*\|?(?:\s*:?-{2,}:?\s*\|)+(?:\s*:?-{2,}:?\s*)?$")
_OFFER = re.compile(
    r"^(?:let me know|feel free|if you (?:have|need|would like|want)|would you like|i hope (?:this|that) helps|"
    r"please (?:let me know|note that i)|do you want|sag(?:en sie)? (?:mir )?bescheid|n'h[ée]sitez pas|"
    r"i can (?:also )?help|is there anything)",
    re.IGNORECASE,
)


def without_markers(text: str) -> tuple[str, tuple[int, ...]]:
    """The text without citations, and the numbers that it cited, in order; code keeps its brackets."""
    cited: list[int] = []

    def take(marker: re.Match[str]) -> str:
        inside = marker.group(1) or marker.group(2)
        for first, last in _RANGE.findall(inside):
            cited.extend(range(int(first), min(int(last), int(first) + 20) + 1))
        cited.extend(int(number) for number in _NUMBER.findall(inside))
        return ""

    def plain(part: str) -> str:
        if part.startswith("`"):
            return part
        part = MARKER.sub(take, _CITED_LINK.sub(r"\1", part))
        for words in (_IN_BRACKETS, _ACCORDING_TO):
            cited.extend(int(number) for named in words.finditer(part) for number in _NUMBER.findall(named[1]))
        return _IN_BRACKETS.sub("", part)

    return "".join(plain(part) for part in _CODE_SPAN.split(text)), tuple(dict.fromkeys(cited))


def without_references(words: str) -> str:
    """A sentence without 'According to document 2,', of which the passages say nothing."""
    return _ACCORDING_TO.sub("", words).strip() or words


def plain_words(text: str) -> str:
    """The words of a sentence, list item or table row, without Markdown."""
    text = _LINK.sub(r"\1", _PREFIX.sub("", text, count=1))
    if is_table_row(text):
        text = "; ".join(cell.strip() for cell in text.strip().strip("|").split("|") if cell.strip())
    return " ".join(_EMPHASIS.sub("", text).replace("`", "").split())


def is_table_row(line: str) -> bool:
    """True if a line is a row of a table."""
    stripped = line.strip()
    return stripped.startswith("|") and stripped.count("|") > 1


def is_delimiter_row(line: str) -> bool:
    """True for the rule below a table's header."""
    return _DELIMITER_ROW.match(line) is not None


def is_claim(text: str) -> bool:
    """True if a sentence says something about its subject.

    Headings, lines that introduce others, rules, questions and offers of help do not.
    """
    stripped = text.strip()
    if _HEADING.match(stripped) or _RULE.match(stripped) or _DELIMITER_ROW.match(stripped):
        return False
    words = plain_words(stripped)
    if not any(character.isalnum() for character in words):
        return False
    is_label = stripped.startswith("**") and stripped.endswith("**") and stripped.count("**") == 2
    if words.endswith((":", "?")) or (is_label and not any(character.isdigit() for character in words)):
        return False
    return _OFFER.match(words) is None
