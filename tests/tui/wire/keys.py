"""The bytes that a terminal without newer protocols sends for a key."""

from __future__ import annotations

_FUNCTION_KEYS = ("\x1bOP", "\x1bOQ", "\x1bOR", "\x1bOS", *(f"\x1b[{n}~" for n in (15, 17, 18, 19, 20, 21, 23, 24)))
_NAMED = {"up": "A", "down": "B", "right": "C", "left": "D"}


def sent(key: str) -> str:
    """Return what is sent for a key that Textual calls `key`."""
    modifier, _, last = key.rpartition("+")
    if last[0] == "f" and last[1:].isdigit():
        return _FUNCTION_KEYS[int(last[1:]) - 1]
    if last == "escape":
        return "\x1b"
    if last in _NAMED:
        return f"\x1b[1;3{_NAMED[last]}" if modifier == "alt" else f"\x1b[{_NAMED[last]}"
    if modifier == "ctrl":
        return chr(ord(last) - 96)
    assert modifier == "alt", key
    return f"\x1b{last}"
