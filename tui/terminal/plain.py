"""Draw with ASCII signs only, for terminals and fonts that have no others."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Any

from textual.color import Color
from textual.filter import LineFilter

_SIGNS = {
    **dict.fromkeys("●█", "*"),
    **dict.fromkeys("◐◑▸▶❱›↳", ">"),
    **dict.fromkeys("○◌", "o"),
    **dict.fromkeys("░▒▓·•", "."),
    **dict.fromkeys("─━═▔▁", "-"),
    **dict.fromkeys("▂▃▄▅▆▇▀", " "),  # ends of scrollbars, whose colours show the rest
    **dict.fromkeys("│┃║▏▎▍▌▐▕", "|"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯", "+"),
    **dict.fromkeys("“”„", '"'),
    **dict.fromkeys("‘’‚", "'"),
    **dict.fromkeys("–—−", "-"),
    **dict.fromkeys("⟨", "<"),
    **dict.fromkeys("⟩", ">"),
    "…": "~",
    "‖": "=",
    "✗": "x",
    "✓": "v",
    "⏎": "<",
    "↑": "^",
    "↓": "v",
    "\xa0": " ",
}


class AsciiFilter(LineFilter):
    """Filter that replaces every sign by an ASCII one of the same width."""

    def apply(self, segments: list[Any], background: Color) -> list[Any]:
        return [
            segment if segment.control or segment.text.isascii() else segment._replace(text=to_ascii(segment.text))
            for segment in segments
        ]


@lru_cache(4096)
def to_ascii(text: str) -> str:
    """Return `text` in ASCII and in as many cells: letters lose their accents, what has no likeness becomes '?'."""
    text = text.replace("…/", "*/").replace("…  ", "...")  # '~/' would be the home folder
    return "".join(sign if sign.isascii() else _like(sign) for sign in text)


def _like(sign: str) -> str:
    known = _SIGNS.get(sign)
    if known is not None:
        return known
    if unicodedata.combining(sign) or unicodedata.category(sign) in ("Mn", "Me", "Cf"):
        return ""
    base = unicodedata.normalize("NFKD", sign)[:1]
    if unicodedata.east_asian_width(sign) in "WF":
        return "??"
    return base if base.isascii() and base.isprintable() and base else "?"
