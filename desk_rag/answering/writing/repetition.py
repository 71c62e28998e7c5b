"""Notice when a model repeats itself without end, or begins to write the next turn of the conversation."""

from __future__ import annotations

import re
from collections import Counter

_LOOP_TIMES = 3
"""Times in a row that a sequence of units may stand."""
_LONGEST_LOOP = 6
_MOST_EQUAL = 4
"""Times that one long unit may stand anywhere in an answer."""
_LONG = 24
_WHOLE_STATEMENT = 40
"""Least characters of a sentence that is not shown a second time: short ones may be said of several things."""
_ITEM_NUMBER = re.compile(r"^\W*\d{1,3}[.)]\s+")
_TAIL_TIMES, _TAIL_LONGEST, _TAIL_LEAST = 8, 60, 160
_NEXT_TURN = re.compile(
    r"^\s*(?:<\|?/?(?:im_start|im_end|user|system|assistant|eot_id|end|start_header_id|start_of_turn|end_of_turn|turn)\b"
    r"|</?documents?>|\[/?INST\]|#{1,4}\s*(?:user|human|instruction)\b|(?:user|human|question)\s*:\s)",
    re.IGNORECASE,
)


class RepetitionGuard:
    """Looks at the units of one answer."""

    def __init__(self) -> None:
        self._units: list[str] = []
        self._counts: Counter[str] = Counter()
        self._statements: set[str] = set()

    def has_said(self, statement: str) -> bool:
        """Take the words of the next sentence; True if it is long and stood in the answer before, word for word."""
        key = " ".join(statement.casefold().split())
        if len(key) < _WHOLE_STATEMENT:
            return False
        repeated = key in self._statements
        self._statements.add(key)
        return repeated

    def loops(self, unit: str) -> bool:
        """Take the next unit; True if the model is repeating itself."""
        key = " ".join(_ITEM_NUMBER.sub("", unit).casefold().split())
        if not any(character.isalnum() for character in key):
            return False
        self._units.append(key)
        self._counts[key] += 1
        if len(key) >= _LONG and self._counts[key] >= _MOST_EQUAL:
            return True
        return any(self._ends_in_loop(length) for length in range(1, _LONGEST_LOOP + 1))

    def _ends_in_loop(self, length: int) -> bool:
        units = self._units
        if len(units) < length * _LOOP_TIMES:
            return False
        last = units[-length:]
        return all(units[-length * (turn + 1) : len(units) - length * turn] == last for turn in range(1, _LOOP_TIMES))


def tail_loops(text: str) -> bool:
    """True if a unit that does not end goes on with the same few characters."""
    if len(text) < _TAIL_LEAST:
        return False
    end = text[-_TAIL_LEAST * 3 :]
    for length in range(1, _TAIL_LONGEST + 1):
        piece = end[-length:]
        if (
            piece.strip()
            and len(end) >= length * _TAIL_TIMES
            and end.endswith(piece * max(_TAIL_TIMES, _TAIL_LEAST // length))
        ):
            return True
    return False


def begins_next_turn(unit: str) -> bool:
    """True if a unit is the beginning of another turn or of the prompt: the answer has ended before it."""
    return _NEXT_TURN.match(unit) is not None
