"""Report states that need the user's attention, each once when it begins and once when it is over."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from desk_rag.documents.volumes import Mounts
from desk_rag.ingest.events import Notice
from desk_rag.sanitize import home_path, quoted_path, shown_path
from desk_rag.store.presence import AbsentFolder, Presence
from desk_rag.store.store import Store

FOLDER = "folder "
"""First word of the subject of a notice about a folder that is not there."""
CACHES = "caches"
_AGAIN_SECONDS = 30.0
"""Seconds between two full checks of a folder while it is absent, or part of it is."""


class NoticeBoard:
    """The notices that are in force; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._notices: dict[str, Notice] = {}

    def post(self, notice: Notice) -> bool:
        """Record a notice, or the end of one; return whether the user has not been told yet."""
        with self._lock:
            previous = self._notices.get(notice.subject)
            if notice.is_over:
                return self._notices.pop(notice.subject, None) is not None
            self._notices[notice.subject] = notice
            return previous is None or without_numbers(previous.sentence) != without_numbers(notice.sentence)

    def current(self) -> tuple[Notice, ...]:
        """Return the notices in force, oldest first."""
        with self._lock:
            return tuple(self._notices.values())


class FolderCheck:
    """Notices when an indexed folder, a drive inside one, or the directory of the caches goes away or comes back.

    A check looks at a few entries of the file system; the catalog is asked only after a change there.
    """

    def __init__(self, store: Store, folders: Sequence[Path]) -> None:
        self._store, self._folders = store, tuple(folders)
        self._signatures: dict[Path, object] = {}
        self._absent: dict[Path, dict[Path, AbsentFolder]] = {}
        self._checked_at: dict[Path, float] = {}
        self._caches_away = ""

    def check(self) -> list[Notice]:
        """Return what changed since the last check. Raises StoreError."""
        notices = [notice for folder in self._folders for notice in self._check_folder(folder)]
        return [*notices, *self._check_caches()]

    def _check_folder(self, root: Path) -> list[Notice]:
        signature, now = _signature(root), time.monotonic()
        before = self._absent.get(root, {})
        is_due = bool(before) and now - self._checked_at.get(root, 0.0) >= _AGAIN_SECONDS
        if root in self._signatures and self._signatures[root] == signature and not is_due:
            return []
        self._signatures[root], self._checked_at[root] = signature, now
        absent = {folder.path: folder for folder in Presence(self._store, root).absent()}
        self._absent[root] = absent
        notices = [_gone(folder) for path, folder in absent.items() if path not in before]
        return [*notices, *(_back(path) for path in before if path not in absent)]

    def _check_caches(self) -> list[Notice]:
        away, before = self._store.kv_away, self._caches_away
        self._caches_away = away
        if bool(away) == bool(before):
            return []
        if away:
            return [Notice(CACHES, away)]
        return [Notice(CACHES, "The directory of the caches is there again.", is_over=True)]


def _signature(root: Path) -> object:
    """Return what changes when a folder goes away, comes back, or gets or loses a mount."""
    try:
        status = root.stat()
        with os.scandir(root) as entries:
            is_empty = next(entries, None) is None
    except OSError as error:
        return error.errno
    return status.st_dev, status.st_ino, is_empty, tuple(Mounts().inside(root))


def _gone(folder: AbsentFolder) -> Notice:
    place = shown_path(folder.path)
    kept = ""
    if folder.documents:
        documents = "its 1 document is" if folder.documents == 1 else f"its {folder.documents:,} documents are"
        kept = f"; {documents} kept and still found"
    remedy = "Connect its drive, or put the folder back: it is then looked through by itself."
    if folder.documents:
        remedy += f" To forget it instead: desk-rag purge {quoted_path(folder.path)}"
    is_named = home_path(folder.path) in folder.reason  # it says no more than that the folder is not there
    why = "" if is_named else f" ({folder.reason})"
    return Notice(f"{FOLDER}{folder.path}", f"{place} is not there{why}{kept}.", remedy)


def _back(path: Path) -> Notice:
    place = shown_path(path)
    return Notice(f"{FOLDER}{path}", f"{place} is there again; looking through it for changes.", is_over=True)


def without_numbers(sentence: str) -> str:
    """Return a sentence without its numbers, which change all the time."""
    return "".join(letter for letter in sentence if not letter.isdigit())
