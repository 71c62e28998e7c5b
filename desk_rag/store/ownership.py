"""Which files of a directory are desk-rag's own. Knows their names; opens none but CACHEDIR.TAG.

A data directory is told from any other by its CACHEDIR.TAG or its catalog. Where neither is, nothing is made and
nothing is removed unless all there is could only come from a creation that was cut off.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from desk_rag.errors import of_system

CATALOG = "catalog.sqlite"
TAG = "CACHEDIR.TAG"
_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"
TAG_CONTENT = _SIGNATURE + (
    b"\n# This directory holds caches made by desk-rag; all of it can be made again from your documents.\n"
    b"# See https://bford.info/cachedir/\n"
)
_OWN_FOLDERS = ("kv", "vectors", "quarantine")
"""All that is in them is ours."""
_COMMON_FOLDERS = ("logs", "models", "run")
"""Names that others use as well: ours is in them what has one of our names. `run` last: it holds the lock."""
_OWN_FILES = re.compile(rf"({re.escape(CATALOG)}(-wal|-shm|-journal)?|(drives\.json|{re.escape(TAG)})(\.\d+\.tmp)?)")
_BEGUN = re.compile(
    r"kv(/[0-9a-f]{16}(/[0-9a-f]{2})?)?|vectors|quarantine"
    r"|run(/(writer\.(lock|pid)(\.\d+\.tmp)?|catalog\.mark|held-removals\.(json|tmp)|answering(/\d+\.lock)?))?"
    r"|logs(/(tui|indexer)\.log(\.\d+)?)?|models(/([0-9a-f]{32}\.safetensors|names\.json)(\.\d+\.tmp)?)?"
    r"|drives\.json(\.\d+\.tmp)?|CACHEDIR\.TAG\.\d+\.tmp"
    r"|lost\+found|\.DS_Store"
)
"""What may be there before the tag is, by path; the last two are the system's and in nobody's way."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """What `clear` did."""

    freed_bytes: int
    left: tuple[Path, ...]
    """What was not ours, or could not be removed; empty if the directory itself is gone."""


def is_store(root: Path) -> bool:
    """True for a directory that desk-rag made: it has our CACHEDIR.TAG, or a catalog and the folders beside it."""
    begun = (root / CATALOG).is_file() and all((root / name).is_dir() for name in _OWN_FOLDERS)
    return begun or _is_tagged(root)


def stranger(root: Path) -> Path | None:
    """Something in `root` that is not desk-rag's, None if there is nothing or `root` is a store. Raises OSError."""
    if is_store(root):
        return None
    found = next((path for path in _everything(root) if not _BEGUN.fullmatch(path.relative_to(root).as_posix())), None)
    # Asked again: another process may have made its store here meanwhile.
    return None if found is None or is_store(root) else found


def clear(root: Path) -> Cleared:
    """Remove what is ours, then the directory itself if nothing else is in it. Ask `is_store` before.

    Raises StoreError for a drive that cannot be written. A link among our folders goes, not what it points to. Cut off
    at any point, what is left is still known to be ours: folders are emptied first, then the catalog goes, then they.
    """
    freed = 0
    try:
        for name in (*_OWN_FOLDERS, *_COMMON_FOLDERS):
            freed += _empty(root / name, whole=name in _OWN_FOLDERS)
        for file in sorted(root.iterdir()):
            if _OWN_FILES.fullmatch(file.name) and file.name != TAG:
                freed += _unlink(file)
        for name in (*_OWN_FOLDERS, *_COMMON_FOLDERS):
            _remove_if_empty(root / name)
        if _is_tagged(root):
            freed += _unlink(root / TAG)
        left = tuple(sorted(root.iterdir()))
        if not left:
            _remove_if_empty(root)
    except OSError as error:
        raise of_system(error, root) or error from error
    return Cleared(freed, left)


def _empty(folder: Path, *, whole: bool) -> int:
    """Remove what is in a folder, all of it or what has one of our names; a link to a folder goes itself."""
    if folder.is_symlink():
        folder.unlink()
        return 0
    freed = 0
    for path in sorted(_everything(folder), reverse=True) if folder.is_dir() else ():  # what is in a folder before it
        if whole or _BEGUN.fullmatch(path.relative_to(folder.parent).as_posix()):
            if path.is_dir() and not path.is_symlink():
                _remove_if_empty(path)
            else:
                freed += _unlink(path)
    return freed


def _remove_if_empty(folder: Path) -> None:
    """Where it can be: one that holds other files, is mounted, or lies in a folder of somebody else's stays."""
    if not folder.is_symlink():
        with suppress(OSError):
            folder.rmdir()


def _is_tagged(root: Path) -> bool:
    try:
        with (root / TAG).open("rb") as file:
            begin = file.read(len(TAG_CONTENT))
    except OSError:
        return False
    return begin.startswith(_SIGNATURE) and b"desk-rag" in begin  # other programs tag their caches too


def _everything(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in entries:
            yield Path(entry.path)
            if entry.name != "lost+found" and entry.is_dir(follow_symlinks=False):  # the file system's, for root alone
                yield from _everything(Path(entry.path))


def _unlink(file: Path) -> int:
    size = _size(file)
    file.unlink(missing_ok=True)
    return size


def _size(file: Path) -> int:
    try:
        return file.lstat().st_size if not file.is_dir() else 0
    except FileNotFoundError:
        return 0
