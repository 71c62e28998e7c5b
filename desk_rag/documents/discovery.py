"""Walk a folder: yield its files one at a time, and every file that is left out with the rule for it.

Rules, from weakest to strongest: built-in rules for tool folders and editor leftovers; `.gitignore` and
`.deskragignore` of each directory with git's precedence; built-in rules for secrets; the user's own `exclude`. No
document is read, and no link to a directory is followed.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.documents.formats import readable_in_part
from desk_rag.documents.rules.ignore_rules import (
    OWN,
    Rule,
    Rules,
    compile_rules,
    os_reason,
    read_patterns,
    rules_of_user,
    secret_rules,
)
from desk_rag.documents.rules.sensitive import linked_secrets
from desk_rag.errors import ConfigError, UnreadableDocument
from desk_rag.sanitize import home_path

if TYPE_CHECKING:
    from desk_rag.config import IndexSettings

_DEFAULTS = """
    .git/ .hg/ .svn/ .bzr/ CVS/ .jj/ __pycache__/ .mypy_cache/ .pytest_cache/ .ruff_cache/ .hypothesis/ .tox/ .nox/
    .cache/ .venv/ venv/ .virtualenv/ .direnv/ node_modules/ bower_components/ .npm/ .yarn/ .gradle/ .terraform/
    .idea/ .vs/ .ipynb_checkpoints/ .Trash/ .Trash-*/ $RECYCLE.BIN/ lost+found/ .thumbnails/ .Spotlight-V100/
    .fseventsd/ *.pyc *.pyo *.o *.a *.so *.class *.min.js *.min.css *.map *~ .#* \\#*# *.sw? *.swp *.swo 4913
    .~lock.* ~$* *.tmp *.temp *.part *.crdownload *.partial *___jb_* .DS_Store Thumbs.db desktop.ini
"""
HIDDEN = "hidden"
"""Beginning of the reason why files and folders with a dot before their name are left out."""
_IGNORE_FILES = (".gitignore", ".deskragignore")
_LINKED_FOLDER = "link to a folder"
_NAME_SURROGATE = 0x20000000
"""Bit of the tags of links and junctions on Windows; folders that a cloud service fills have a tag without it."""
_CACHE_FOLDER = "cache folder: CACHEDIR.TAG"
_LOOP = "link in a loop, or over too many links"
_LISTED_AT_ONCE = 4096
"""Entries of one directory listed between two calls of `stop`."""
_CACHE_TAG = b"Signature: 8a477f597d28d172789f06886806bc55"


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A regular file to be read."""

    path: Path
    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int = 0
    allowed: bool = False
    """A `!pattern` of the user's `exclude` matches: the file is read even if its content is a secret."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something that is not read, and why."""

    path: Path
    reason: str
    """The rule, as a user would look for it: '.gitignore: *.log', 'larger than 50 MiB', 'secret: *.pem'."""
    is_folder: bool = False
    """True for a folder that is left out as a whole; the files in it are not counted."""


def _never() -> bool:
    return False


def check_root(root: Path) -> None:
    """Make sure a folder can be walked.

    Raises ConfigError (missing, not a folder) or UnreadableDocument (not permitted).
    """
    try:
        mode = root.stat().st_mode
    except FileNotFoundError as error:
        raise ConfigError(
            f"There is no folder {home_path(root)}.", remedy="Check the spelling; is its drive connected?"
        ) from error
    except (OSError, ValueError) as error:
        raise UnreadableDocument(f"{root} cannot be opened: {error}.", remedy="Check its permissions.") from error
    if not stat.S_ISDIR(mode):
        raise ConfigError(f"{root} is a file, not a folder.", remedy=f"Name the folder it is in: {root.parent}")
    try:
        with os.scandir(root):
            pass
    except OSError as error:
        raise UnreadableDocument(
            f"{root} cannot be listed: {error.strerror}.", remedy="Check its permissions."
        ) from error


def walk(root: Path, settings: IndexSettings, stop: Callable[[], bool] = _never) -> Iterator[FoundFile | LeftOut]:
    """Yield every regular file below `root` and everything left out, directory by directory in name order.

    Holds one directory's names at a time. A directory that vanishes or refuses is reported, the rest goes on; call
    `check_root` first to tell a missing root from an empty one. Ends early when `stop` answers True, which is asked
    between directories and while a long one is listed.
    """
    walker = _Walker(root.absolute(), settings)
    yield from walker.walk(stop)


def examine(root: Path, path: Path, settings: IndexSettings) -> FoundFile | LeftOut | None:
    """Return what `walk(root)` would yield for one path; None if it would not meet the path.

    Only the ignore files on the way down are read, so this suits single changed files.
    """
    root, path = root.absolute(), path.absolute()
    if root == path or root not in path.parents or is_other_spelling(root, path):
        return None
    return _Walker(root, settings).examine(path.relative_to(root).as_posix())


def is_other_spelling(root: Path, path: Path) -> bool:
    """Return whether `path` below `root` leads to a file of another name, in a tree where "A" and "a" are the same."""
    relative = path.relative_to(root)
    try:
        (root / str(relative).swapcase()).lstat()  # exists in such a tree, hardly ever in another one
        place = root
        for name in relative.parts:
            if name not in os.listdir(place):  # noqa: PTH208 - names alone are wanted
                return True
            place /= name
    except (OSError, ValueError):
        return False
    return False


def left_out_inside(path: str) -> str:
    """Return why a file at this path in an archive is left out, in words; '' if it is read."""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    for depth in range(1, len(parts) + 1):
        shown = "/".join(parts[:depth]).replace("\n", "\x1a") + ("/" if depth < len(parts) else "")
        for rules, words in _inside_rules():
            rule = rules.verdict(shown)
            if rule is not None and rule.excludes:
                return words
    return ""


@functools.cache
def _inside_rules() -> tuple[tuple[Rules, str], ...]:
    hidden, tools = compile_rules([".*"], HIDDEN)[0], compile_rules([*_DEFAULTS.split(), "__MACOSX/"], "default")[0]
    return (
        (secret_rules(), "that may hold secrets"), (Rules.of("", hidden), "hidden"), (Rules.of("", tools), "of tools")
    )  # fmt: skip


class _Walker:
    """One walk: the root, the fixed rules, and how an entry is judged."""

    def __init__(self, root: Path, settings: IndexSettings) -> None:
        self._root = root
        self._real_root = os.path.realpath(root)
        self._most_bytes = settings.max_file_mib * 1024 * 1024
        self._too_large = f"larger than {settings.max_file_mib:g} MiB"
        self._linked_secrets: dict[tuple[int, int], Path] | None = None
        hidden = () if settings.hidden else compile_rules([".*"], HIDDEN)[0]
        self._weak = Rules.of("", (*hidden, *compile_rules(_DEFAULTS.split(), "default")[0]))
        self._strong = (rules_of_user(settings.exclude, self._root), secret_rules())

    def walk(self, stop: Callable[[], bool]) -> Iterator[FoundFile | LeftOut]:
        """Depth first; `pending` holds a directory, its rules and the (device, inode) of the directories it is in."""
        pending: list[tuple[str, tuple[Rules, ...], frozenset[tuple[int, int]]]] = [("", (self._weak,), frozenset())]
        while pending and not stop():
            base, rules, above = pending.pop()
            place = self._root / base
            try:
                entries, identity = _list(place, stop)
            except OSError as error:
                yield LeftOut(place, os_reason(error), is_folder=True)
                continue
            has_tag = base and any(entry.name == "CACHEDIR.TAG" for entry in entries)
            if identity in above or (has_tag and _is_cache(place)):
                is_loop = identity in above
                yield LeftOut(place, "loop of mounts" if is_loop else _CACHE_FOLDER, is_folder=not is_loop)
                continue
            rules, complaints = self._enter(base, rules, {entry.name for entry in entries})
            yield from complaints
            inside = []
            for entry in entries:
                if entry.name in _IGNORE_FILES:
                    continue
                relative = base + entry.name
                is_dir = _is_dir(entry)
                judged = self._judge(relative, is_dir, rules)
                if judged is None and is_dir and _is_junction(entry):
                    judged = LeftOut(self._root / relative, _LINKED_FOLDER)
                if judged is not None:
                    yield judged
                else:
                    inside.append((relative + "/", rules, above | {identity}))
            pending.extend(reversed(inside))

    def examine(self, relative: str, *, follow_link: bool = True) -> FoundFile | LeftOut | None:
        """Judge each directory on the way down, then the file itself; None for a link unless `follow_link`."""
        base = ""
        rules: tuple[Rules, ...] = (self._weak,)
        *folders, name = relative.split("/")
        if name in _IGNORE_FILES:
            return None
        for folder in folders:
            rules, _ = self._enter(base, rules, set(_IGNORE_FILES))
            verdict = self._judge(base + folder, True, rules)
            if verdict is not None or _is_link(self._root / base / folder):
                return verdict if isinstance(verdict, LeftOut) else None
            base += folder + "/"
            if _is_cache(self._root / base):
                return LeftOut(self._root / base, _CACHE_FOLDER, is_folder=True)
        rules, _ = self._enter(base, rules, set(_IGNORE_FILES))
        path = self._root / relative
        try:
            mode = path.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        except OSError as error:
            return LeftOut(path, os_reason(error))
        if stat.S_ISDIR(mode) or (stat.S_ISLNK(mode) and not follow_link):
            return None
        return self._judge(base + name, False, rules)

    def _enter(self, base: str, rules: tuple[Rules, ...], names: set[str]) -> tuple[tuple[Rules, ...], list[LeftOut]]:
        """`rules` with those of the directory's own ignore files on top."""
        complaints = []
        for name in _IGNORE_FILES:
            if name in names:
                file = self._root / base / name
                lines, cut = read_patterns(file)
                compiled, odd = compile_rules(lines, name)
                rules = (*rules, Rules.of(base, compiled)) if compiled else rules
                complaints += [LeftOut(file, reason) for reason in (cut, odd) if reason]
        return rules, complaints

    def _judge(self, relative: str, is_dir: bool, rules: Sequence[Rules]) -> FoundFile | LeftOut | None:
        """None: a directory to go into."""
        path = self._root / relative
        rule = self._deciding_rule(relative + ("/" if is_dir else ""), rules)
        if rule is not None and rule.excludes:
            return LeftOut(path, rule.reason, is_dir)
        if is_dir:
            return None
        try:
            info = path.lstat()
            if stat.S_ISLNK(info.st_mode):
                refused = self._judge_link(path)
                if refused:
                    return LeftOut(path, refused)
                info = path.stat()
        except (OSError, ValueError) as error:
            return LeftOut(path, os_reason(error))
        if not stat.S_ISREG(info.st_mode):
            return LeftOut(path, "not a regular file")
        if info.st_size > self._most_bytes and not readable_in_part(path.name):
            return LeftOut(path, self._too_large)
        allowed = rule is not None and rule.reason.startswith(f"{OWN}: ")
        if info.st_nlink > 1 and not allowed and (other := self._secret_links().get((info.st_dev, info.st_ino))):
            return LeftOut(path, f"secret: another name (hard link) of {other}")
        return FoundFile(path, info.st_size, info.st_mtime_ns, info.st_ino, info.st_ctime_ns, allowed)

    def _secret_links(self) -> dict[tuple[int, int], Path]:
        """Device and inode of secrets of this user that have several names.

        A hard link has no direction, and backups, package managers and tools that merge duplicates make many of them,
        so that a second name outside the folder is no reason to leave a file out. That it is a secret elsewhere is.
        """
        if self._linked_secrets is None:
            self._linked_secrets = dict(linked_secrets(Path.home()))
        return self._linked_secrets

    def _deciding_rule(self, relative: str, rules: Sequence[Rules]) -> Rule | None:
        # '.' in a regular expression stops at a newline, which a file name may hold.
        shown = relative.replace("\n", "\x1a")
        for source in (*self._strong, *reversed(rules)):
            rule = source.verdict(shown)
            if rule is not None:
                return rule
        return None

    def _judge_link(self, path: Path) -> str:
        """Why a link is not followed; '' for one to a file inside the root that would be read itself.

        The system resolves the link first: it stops at loops and at chains of more than some forty links. The target
        is then a path without links, so that judging it cannot come back here.
        """
        try:
            mode = path.stat().st_mode
            target = os.path.realpath(path, strict=True)
        except (FileNotFoundError, NotADirectoryError):
            return "link to nothing that is read"
        except RecursionError:  # another chain of links took its place meanwhile
            return _LOOP
        except OSError as error:
            return _LOOP if error.errno == errno.ELOOP else f"link: {os_reason(error)}"
        if stat.S_ISDIR(mode):
            return _LINKED_FOLDER
        if not target.startswith(self._real_root.rstrip(os.sep) + os.sep):
            return "link to a file outside the folder"
        aim = os.path.relpath(target, self._real_root).replace(os.sep, "/")
        verdict = self.examine(aim, follow_link=False)
        if verdict is None:
            return "link to nothing that is read"
        return f"link to {aim}, left out ({verdict.reason})" if isinstance(verdict, LeftOut) else ""


def _list(place: Path, stop: Callable[[], bool]) -> tuple[list[os.DirEntry[str]], tuple[int, int]]:
    """Entries of a directory in name order, and its (device, inode); no more entries once `stop` answers True."""
    info = place.stat()
    names: list[os.DirEntry[str]] = []
    with os.scandir(place) as entries:
        for entry in entries:
            if len(names) % _LISTED_AT_ONCE == _LISTED_AT_ONCE - 1 and stop():
                break
            names.append(entry)
    return sorted(names, key=lambda entry: entry.name), (info.st_dev, info.st_ino)


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _is_link(path: Path) -> bool:
    try:
        status = path.lstat()
    except (OSError, ValueError):
        return False
    return stat.S_ISLNK(status.st_mode) or _has_surrogate_tag(status)


def _is_junction(entry: os.DirEntry[str]) -> bool:
    """Return whether a directory is one of Windows' links to other directories, which are no symbolic links."""
    try:
        return _has_surrogate_tag(entry.stat(follow_symlinks=False))
    except OSError:
        return False


def _has_surrogate_tag(status: os.stat_result) -> bool:
    return bool(getattr(status, "st_reparse_tag", 0) & _NAME_SURROGATE)


def _is_cache(place: Path) -> bool:
    """True if a program marked this directory as its cache (bford.info/cachedir), as desk-rag does with its own."""
    try:
        with (place / "CACHEDIR.TAG").open("rb") as file:
            return file.read(len(_CACHE_TAG)) == _CACHE_TAG
    except OSError:
        return False
