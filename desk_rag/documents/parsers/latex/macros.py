"""Write out the macros that a LaTeX file defines for itself."""

from __future__ import annotations

import re

_DEFINITION = re.compile(
    r"\\(?:(?:re)?newcommand|providecommand|DeclareRobustCommand)\*?\s*\{?\\(?P<name>[A-Za-z]+)\}?\s*"
    r"(?:\[(?P<count>\d)\])?(?P<default>\[[^\]]*\])?\s*(?=\{)"
    r"|\\def\s*\\(?P<plain_name>[A-Za-z]+)(?P<parameters>(?:#\d)*)\s*(?=\{)"
)
_CALL = re.compile(r"\\(?P<name>[A-Za-z]+)\s*")
_MOST_MACROS = 500
_MOST_BODY = 500
"""Characters of a macro's body; longer ones lay out pages."""
_MOST_ROUNDS = 5
_MOST_LINE = 4000
"""Characters of a line in which macros are written out, and to which it may grow."""


class Macros:
    """The macros of one file by their names, each with its number of arguments and its body."""

    def __init__(self, text: str) -> None:
        self._bodies: dict[str, tuple[int, str]] = {}
        for definition in _DEFINITION.finditer(text):
            body = _group(text, definition.end(), _MOST_BODY)
            name = definition["name"] or definition["plain_name"]
            count = int(definition["count"] or 0) or len(definition["parameters"] or "") // 2
            if body is not None and definition["default"] is None and len(self._bodies) < _MOST_MACROS:
                self._bodies[name] = count, " ".join(body.split())

    def written_out(self, line: str) -> str:
        """Return a line with its macros replaced by what they stand for."""
        for _ in range(_MOST_ROUNDS if self._bodies else 0):
            new = self._once(line) if len(line) <= _MOST_LINE else line
            if new == line or len(new) > _MOST_LINE:
                break
            line = new
        return line

    def _once(self, line: str) -> str:
        parts, position = [], 0
        for call in _CALL.finditer(line):
            if call["name"] not in self._bodies or call.start() < position or _defines(line, call.start()):
                continue
            count, body = self._bodies[call["name"]]
            end, arguments = call.end(), list[str]()
            while len(arguments) < count and (argument := _group(line, end, _MOST_LINE)) is not None:
                arguments.append(argument)
                end += len(argument) + 2
            if len(arguments) < count:
                continue
            for number, argument in enumerate(arguments, start=1):
                body = body.replace(f"#{number}", argument)
            space = " " if not count and call[0].endswith(" ") and line[call.end() - 1] == " " else ""
            parts += [line[position : call.start()], body, space]
            position = end
        return "".join([*parts, line[position:]])


def _defines(line: str, position: int) -> bool:
    """Return whether a macro stands where it is defined."""
    return bool(re.search(r"(?:command\*?\s*\{?|\\def\s*)$", line[:position]))


def _group(text: str, start: int, most: int) -> str | None:
    """Return what stands between the braces that open at `start`; None if they do not close soon."""
    if text[start : start + 1] != "{":
        return None
    depth = 0
    for position in range(start, min(len(text), start + most + 2)):
        if text[position - 1 : position] == "\\":
            continue
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if not depth:
            return text[start + 1 : position]
    return None
