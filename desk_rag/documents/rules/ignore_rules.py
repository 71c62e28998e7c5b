"""Rules by which files are left out: patterns of ignore files, of the user, and of names that hold secrets.

Patterns use git's syntax. One that begins with the path of the indexed folder, or with '~/', is about that path alone.
"""

from __future__ import annotations

import functools
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from desk_rag.documents.rules.sensitive import NAME_PATTERNS, NAME_RULES, NAME_WORDS

_MOST_IGNORE_BYTES = 256 * 1024
_MOST_PATTERNS = 1000
_LONGEST_PATTERN = 300
_MOST_STARS = 3
"""Per path segment: a name is matched in steps that grow with its length to the power of the stars."""
OWN = "exclude"
"""Beginning of the reason that a rule from the settings gives."""
_SPECIAL = re.compile(r"([\\*?\[\]!#])")


@dataclass(frozen=True, slots=True)
class Rule:
    """One pattern of one source."""

    matcher: re.Pattern[str]
    by_name: bool
    """The pattern has no slash but a last one: it looks at the entry's own name alone."""
    excludes: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one source, for paths below `base` (relative to the root, '' or 'a/b/')."""

    base: str
    rules: tuple[Rule, ...]
    some_name: re.Pattern[str]
    """Matches where any of the by-name rules does: one look instead of a hundred for most entries."""
    by_path: tuple[Rule, ...]

    @classmethod
    def of(cls, base: str, rules: tuple[Rule, ...]) -> Rules:
        some_name = re.compile(_any_name(rules) or r"(?!)")
        return cls(base, rules, some_name, tuple(rule for rule in rules if not rule.by_name))

    def verdict(self, relative: str) -> Rule | None:
        """The last rule that matches decides, as in git; `relative` ends in a slash for a directory."""
        below = relative[len(self.base) :]
        name = below[below.rfind("/", 0, -1) + 1 :]
        rules = self.rules if self.some_name.match(name) else self.by_path
        return next((rule for rule in reversed(rules) if rule.matcher.match(name if rule.by_name else below)), None)


def _any_name(rules: Sequence[Rule]) -> str:
    """A regular expression for the names that one of the by-name rules matches."""
    return "|".join(rule.matcher.pattern.replace("?P<ps_d>", "?:") for rule in rules if rule.by_name)


def read_patterns(file: Path) -> tuple[list[str], str]:
    """Lines of an ignore file, and a complaint when it was too long to be read to its end."""
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            return [], ""
        with file.open("rb") as stream:
            data = stream.read(_MOST_IGNORE_BYTES + 1)
    except (OSError, ValueError) as error:
        return [], f"ignore file not obeyed: {os_reason(error)}"
    lines = data[:_MOST_IGNORE_BYTES].decode("utf-8", "surrogateescape").removeprefix("\ufeff").splitlines()
    patterns = [line for line in lines if line.strip() and not line.startswith("#")]
    if len(data) > _MOST_IGNORE_BYTES or len(patterns) > _MOST_PATTERNS:
        return patterns[:_MOST_PATTERNS], f"ignore file obeyed only up to its first {_MOST_PATTERNS:,} patterns"
    return patterns, ""


def rules_of_user(patterns: Sequence[str], root: Path) -> Rules:
    """Return the rules under `exclude` in the settings, for paths below the indexed folder `root`."""
    return Rules.of("", compile_rules(patterns, OWN, _with_real(root))[0])


def pattern_of(path: Path, *, is_folder: bool) -> str:
    """Return the pattern of exactly this path; what a pattern cannot hold becomes `?`, any character."""
    home = next((home for home in _with_real(Path.home()) if home in path.parents), None)
    pattern = _escaped(path.as_posix()) if home is None else f"~/{_escaped(path.relative_to(home).as_posix())}"
    return re.sub(r"\s\Z", "?", pattern) + ("/" if is_folder else "")  # a pattern loses a space at its end


def _seen_from(roots: Sequence[Path], pattern: str) -> str:
    """Return a pattern that begins with the path of a root as one of that root: '/desk/old/' is '/old/' in '/desk'."""
    mark, rule = ("!", pattern[1:]) if pattern.startswith("!") else ("", pattern)
    in_home = rule.startswith("~/") and bool(roots)
    wholes = [_beginning(home) + rule[1:] for home in _with_real(Path.home())] if in_home else [rule]
    beginnings = [_beginning(root) for root in roots]
    insides = (
        whole[len(beginning) :] for whole in wholes for beginning in beginnings if whole.startswith(f"{beginning}/")
    )
    return mark + next(insides, rule)


def _with_real(path: Path) -> tuple[Path, ...]:
    """Return the path and, if it leads over links, where it leads to."""
    return tuple(dict.fromkeys((path, Path(os.path.realpath(path)))))


def _beginning(folder: Path) -> str:
    """Return how the patterns of all paths in `folder` begin, without the slash."""
    return _escaped(folder.as_posix().rstrip("/"))


def _escaped(path: str) -> str:
    return "".join("?" if ord(c) < 32 or 0xDC80 <= ord(c) <= 0xDCFF else c for c in _SPECIAL.sub(r"\\\1", path))


def compile_rules(lines: Sequence[str], source: str, roots: Sequence[Path] = ()) -> tuple[tuple[Rule, ...], str]:
    """Rules for the patterns that can be understood, and a complaint about those that cannot.

    Of patterns that begin with the path of one of `roots`, what follows it counts.
    """
    rules, odd = [], []
    for named in lines:
        line = _seen_from(roots, named)
        if len(line) > _LONGEST_PATTERN or any(_stars(segment) > _MOST_STARS for segment in line.split("/")):
            odd.append(named)
            continue
        try:
            pattern = GitIgnoreSpecPattern(line)
        except (ValueError, re.error, RecursionError, OverflowError):  # GitIgnorePatternError is a ValueError
            odd.append(named)
            continue
        if pattern.regex is not None and pattern.include is not None:
            by_name = "/" not in line.strip().removesuffix("/")
            rules.append(Rule(pattern.regex, by_name, pattern.include, f"{source}: {named.strip()}"))
    shown = ", ".join(pattern[:40] for pattern in odd[:3])
    return tuple(rules), f"{len(odd)} of its patterns not obeyed (malformed or too complex): {shown}" if odd else ""


@functools.cache
def secret_rules() -> Rules:
    """The rules for names of secrets, which tell no capital from a small letter."""
    patterns = [
        replace(rule, matcher=re.compile(rule.matcher.pattern, re.IGNORECASE))
        for rule in compile_rules(NAME_PATTERNS.split(), "secret")[0]
    ]
    names = [
        Rule(re.compile(rf"(?:{name})\Z", re.IGNORECASE), by_name=True, excludes=True, reason=f"secret: {what}")
        for what, name in NAME_RULES
    ]
    # Most names hold no such word, and are looked at once.
    some_name = re.compile(rf"{_any_name(patterns)}|.*(?:{NAME_WORDS})", re.IGNORECASE)
    by_path = tuple(rule for rule in patterns if not rule.by_name)
    return Rules("", (*patterns, *names), some_name, by_path)


def _stars(segment: str) -> int:
    return len(re.findall(r"\*+", segment))


def os_reason(error: OSError | ValueError) -> str:
    if isinstance(error, PermissionError):
        return "permission denied"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
