"""Tell what the sender of a message wrote from what is quoted in it, in plain text and in HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from email.message import Message

from selectolax.lexbor import LexborHTMLParser

from desk_rag.documents.parsers.building import Builder
from desk_rag.documents.parsers.markup.html import add_html

_QUOTE_MARKS = re.compile(r"^(?:>\s?)+")
_REPLY_LINE = re.compile(
    r"^(?:On|Am|Le|El|Il|Op|Em) .{6,200}(?:wrote|schrieb|écrit|escribió|scritto|schreef|escreveu)\b.*:\s*$"
)
_SIGNATURE = re.compile(r"^-- ?$")
_ORIGINAL = re.compile(
    r"\s*-{3,} ?(?:Original Message|Ursprüngliche Nachricht|Message d'origine|Mensaje original|Messaggio originale|"
    r"Oorspronkelijk bericht|Mensagem original) ?-{3,}\s*$",
    re.IGNORECASE,
)
_RULE = re.compile(r"\s*_{20,}\s*$")
_SENDER_LINE = re.compile(r"\*?(?:From|Von|De|Da|Van):\*? ")
_QUOTED_HTML = (
    "blockquote[type=cite], .gmail_quote, .moz-cite-prefix + blockquote, .yahoo_quoted, .protonmail_quote, "
    "#divRplyFwdMsg, #appendonsend"
)
_OUTLOOK_MARKS = frozenset({"divRplyFwdMsg", "appendonsend"})
_FORWARDED = re.compile(r"-{5,} ?(?:Forwarded message|Weitergeleitete Nachricht|Message transféré)", re.IGNORECASE)


def unwrapped(text: str, part: Message[str, str]) -> str:
    """Return text with the lines of a paragraph as one, if it is marked as flowing (RFC 3676)."""
    try:
        if str(part.get_param("format", "")).lower() != "flowed":
            return text
        takes_space = str(part.get_param("delsp", "")).lower() == "yes"
    except Exception:  # the stdlib's header parser raises many kinds of errors on malformed headers
        return text
    lines: list[str] = []
    open_depth: int | None = None
    """Marks of quotation before the line that goes on; None if none does."""
    for line in text.split("\n"):
        depth = len(line) - len(line.lstrip(">"))
        words = line[depth:].removeprefix(" ")
        goes_on = words.endswith(" ") and words != "-- "
        shown = words[:-1] if goes_on and takes_space else words
        if open_depth == depth and words != "-- ":
            lines[-1] += shown
        else:
            lines.append(f"{'>' * depth} {shown}" if depth else shown)
        open_depth = depth if goes_on else None
    return "\n".join(lines)


def parted_html(text: str) -> tuple[str, str]:
    """Return the sender's own part of a message in HTML, and what is quoted in it from an earlier one."""
    tree = LexborHTMLParser(text)
    mark = next(iter(tree.css(_QUOTED_HTML)), None)
    if mark is None or tree.body is None or _FORWARDED.match(mark.text().strip()):
        return text, ""
    parts = [mark]
    if (mark.attributes.get("id") or "") in _OUTLOOK_MARKS:  # what follows is quoted
        while (following := parts[-1].next) is not None:
            parts.append(following)
    quoted = "".join(part.html or "" for part in parts)
    for part in parts:
        part.decompose()
    own = tree.html or ""
    return (own, quoted) if tree.body.text().strip() else (text, "")


def html_lines(html: str) -> list[str]:
    """Return the texts of an HTML part, with an empty line after each."""
    scratch = Builder()
    if html:
        add_html(scratch, html)
    return [line for block in scratch.done().blocks for line in (block.text, "")]


def parted(lines: Iterable[str], seen_lines: set[str]) -> tuple[list[str], list[str]]:
    """The sender's own lines up to the signature, and those quoted from others that were not seen before."""
    own: list[str] = []
    of_others: list[str] = []
    rest = list(lines)
    for index, line in enumerate(rest):
        if _begins_original(rest, index) and any(earlier.strip() for earlier in own):
            of_others += [other for other in rest[index + 1 :] if not other.strip() or other.strip() not in seen_lines]
            break
        if _SIGNATURE.match(line):
            break
        quoted = _QUOTE_MARKS.match(line)
        bare = line[quoted.end() :] if quoted else line
        if quoted:
            of_others += [] if bare.strip() and bare.strip() in seen_lines else [bare]
            own += [""] if own and own[-1].strip() else []
        elif _REPLY_LINE.match(line):
            of_others += [] if seen_lines else [line, ""]
        else:
            own.append(line)
            of_others += [""] if of_others and of_others[-1].strip() else []
    return own, of_others


def _begins_original(lines: Sequence[str], index: int) -> bool:
    """Return whether Outlook begins to quote a whole message at this line."""
    if _ORIGINAL.match(lines[index]):
        return True
    return bool(_RULE.match(lines[index])) and index + 1 < len(lines) and bool(_SENDER_LINE.match(lines[index + 1]))
