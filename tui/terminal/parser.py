"""Turn the bytes of a terminal into keys and pastes, where Textual's parser gets them wrong.

Textual maps ESC and a digit, which legacy terminals send for Alt and the digit, to the characters of a Mac keyboard,
takes ESC and CR for Enter, and leaves a bracketed paste at the first ESC inside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from textual import events
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.message import Message

_ESC = "\x1b"
_STAND_IN = "\ue01b"
"""Takes the place of ESC inside a paste until the paste has left Textual's parser; a private-use character."""
_NEW_LINES = {"\x1b\r": "alt+enter", "\x1b\n": "alt+enter"}
_DIGITS = frozenset("0123456789")
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz")


class TerminalParser(XTermParser):
    """Textual's parser with whole pastes, Alt+digit, and Alt+Enter."""

    def __init__(self, debug: bool = False) -> None:
        self._pasting = False
        self._before = ""
        """The last characters outside a paste: a start marker may be cut in two by a read."""
        self._held = ""
        """The last characters inside a paste that may begin its end marker."""
        super().__init__(debug)

    def feed(self, data: str) -> Iterable[Message]:
        """Yield the messages of `data`; an empty string is the end of the input."""
        for message in super().feed(self._without_escapes_in_pastes(data) if data else ""):
            if isinstance(message, events.Paste):
                message.text = message.text.replace(_STAND_IN, _ESC)
            yield message

    def _without_escapes_in_pastes(self, data: str) -> str:
        parts: list[str] = []
        while data:
            if self._pasting:
                data, self._held = self._held + data, ""
                inside, end, data = data.partition(BRACKETED_PASTE_END)
                if not end:
                    inside, self._held = _hold_back(inside, BRACKETED_PASTE_END)
                parts += [inside.replace(_STAND_IN, "").replace(_ESC, _STAND_IN), end]
                self._pasting = not end
            else:
                known = len(self._before)
                start = (self._before + data).find(BRACKETED_PASTE_START)
                if start < 0:
                    parts.append(data)
                    self._before = (self._before + data)[1 - len(BRACKETED_PASTE_START) :]
                    break
                cut = start + len(BRACKETED_PASTE_START) - known
                parts.append(data[:cut])
                data, self._before, self._pasting = data[cut:], "", True
        return "".join(parts)

    def _sequence_to_key_events(self, sequence: str, alt: bool = False) -> Iterator[events.Key]:
        key = _with_alt(sequence)
        if key:
            yield events.Key(key, None)
        else:
            yield from super()._sequence_to_key_events(sequence, alt)


def _with_alt(sequence: str) -> str:
    """Return the name of the key that a legacy terminal sends as ESC and one character; '' for other sequences."""
    if len(sequence) != 2 or sequence[0] != _ESC:
        return ""
    letter = sequence[1]
    if letter in _DIGITS or (letter in _LETTERS and sequence not in ANSI_SEQUENCES_KEYS):
        return f"alt+{letter}"
    return _NEW_LINES.get(sequence, "")


def _hold_back(text: str, marker: str) -> tuple[str, str]:
    """Return `text` in two parts, the second of which may be the beginning of `marker`."""
    for size in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:size]):
            return text[:-size], text[-size:]
    return text, ""
