"""Where the chunk KV lies, and whether it may be touched: `kv` in the data directory, or `kv_dir` on another drive.

A `kv_dir` has a marker with an id that the data directory keeps too. Without the right marker nothing in it is read,
written or removed, and no row is dropped: a drive that is not plugged in looks like an empty directory.
"""

from __future__ import annotations

import json
import os
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from desk_rag.errors import ForeignPlace, StoreError, of_system
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.store import ownership
from desk_rag.store.layout import Layout
from desk_rag.store.ownership import KV_MARKER, KV_RECORD, TAG, TAG_CONTENT

_SYSTEMS = frozenset({"lost+found", ".DS_Store", "desktop.ini", "Thumbs.db", ".Trashes", "System Volume Information"})


@dataclass(frozen=True, slots=True)
class Record:
    """What the data directory keeps of a `kv_dir`."""

    identifier: str
    path: str
    """Empty until the directory has its marker."""


class KVDirectory:
    """Answers whether the chunk KV is in place. Safe to use from several threads."""

    def __init__(self, layout: Layout, identifier: str, away: str, *, writer: bool) -> None:
        self._layout = layout
        self._identifier = identifier
        self._checked = not away
        self._closed = bool(away) and (writer or layout.kv_dir is None)
        self.away = away
        """Why there was no chunk KV when the store was opened, as a sentence; empty if there was."""

    def why_away(self) -> str:
        """Return why there is no chunk KV now, as a sentence; empty if there is."""
        if self.in_place():
            return ""
        return self.away or f"{self._layout.kv} is not the directory that it was when the store was opened."

    def in_place(self) -> bool:
        """True while the directory is the one that was checked. A writer that opened without it goes on without."""
        if self._closed:
            return False
        root = self._layout.kv_root
        if self._layout.kv_dir is None:
            return root.is_in_place()
        if self._checked and root.is_in_place():
            return True
        root.forget_identity()  # plugged in again, a drive may have another device number
        self._checked = root.is_in_place() and marker_of(root.root) == self._identifier
        return self._checked


def settle(layout: Layout, *, writer: bool) -> KVDirectory:
    """Check where the chunk KV lies and set up a new `kv_dir`.

    Raises StoreError for the writer where the place may not be used; a reader goes without chunk KV. A drive that is
    away is no error for either.
    """
    record = record_of(layout.root)
    away = ""
    try:
        if layout.kv_dir is None:
            _check_inside(layout, record)
        else:
            away = _away(layout.kv_dir, record)
            if not away:
                record = _check_apart(layout, layout.kv_dir, record, writer=writer)
    except StoreError as error:
        if writer:
            raise
        away = f"{error.message} Answers are made without stored chunk KV."
    except OSError as error:
        if writer:
            raise of_system(error, layout.kv) or StoreError(
                f"{layout.kv} cannot be used: {error.strerror or error}.", remedy="Check its permissions and its drive."
            ) from error
        away = f"{layout.kv} cannot be read ({error.strerror or error}). Answers are made without stored chunk KV."
    return KVDirectory(layout, "" if record is None else record.identifier, away, writer=writer)


def record_of(root: Path) -> Record | None:
    """Return what the data directory keeps of its `kv_dir`; None if it never had one."""
    try:
        told = json.loads((root / KV_RECORD).read_text(encoding="utf-8"))
        return Record(str(told["id"]), str(told["path"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{root / KV_RECORD} cannot be read, so it is not known where the chunk KV lies.",
            remedy=f"The file {KV_MARKER} in your kv_dir has the id; or delete both and index again.",
        ) from error


def marker_of(place: Path) -> str | None:
    """Return the id in the marker of a `kv_dir`; None without a readable marker."""
    entry = OwnedDirectory(place, follow=False).entry(place / KV_MARKER)
    with suppress(ValueError, KeyError, TypeError):
        return None if entry is None or not entry.is_file else str(json.loads(entry.start())["id"])
    return None


def _check_inside(layout: Layout, record: Record | None) -> None:
    if record is not None and record.path:
        raise ForeignPlace(
            f"The chunk KV of {layout.root} lies in {record.path}, and `kv_dir` is not set.",
            remedy=f'Set kv_dir = "{record.path}" under [store]. To give up what lies there, delete that directory and'
            f" {layout.root / KV_RECORD}.",
        )
    try:
        with layout.kv_root.opened():
            pass
    except ForeignPlace as error:
        raise ForeignPlace(
            f"{error.message} Nothing was changed there.",
            remedy="To keep chunk KV on another drive, remove that link or mount and name a directory of its own as"
            ' `kv_dir` under [store]; for one: kv_dir = "/mnt/big/desk-rag-kv"',
        ) from error


def _away(place: Path, record: Record | None) -> str:
    """Return why a `kv_dir` that was used before is not to be found now; empty if it is there or new."""
    if record is None or record.path != str(place) or place.is_symlink() or marker_of(place) is not None:
        return ""
    how = "has lost its marker, or its drive is not mounted" if place.is_dir() else "is not there"
    return (
        f"The chunk KV directory {place} {how}. Questions are answered without stored chunk KV; nothing is forgotten."
        f" Connect its drive; if it is gone for good, delete {KV_RECORD} in the data directory."
    )


def _check_apart(layout: Layout, place: Path, record: Record | None, *, writer: bool) -> Record | None:
    _check_place(layout, place)
    marker = marker_of(place)
    if marker is not None and (record is None or marker != record.identifier):
        raise ForeignPlace(
            f"{place} holds the chunk KV of another data directory.",
            remedy="Name a directory of its own as `kv_dir`; or delete that one, if its data directory is gone.",
        )
    if marker is None and record is not None and record.path:
        raise ForeignPlace(
            f"The chunk KV of {layout.root} lies in {record.path}, and `kv_dir` names {place}.",
            remedy=f"Move everything in {record.path} to {place}, its marker included; or set `kv_dir` back. To give it"
            f" up, delete that directory and {layout.root / KV_RECORD}.",
        )
    if marker is not None and record is not None and record.path == str(place):
        return record
    if not writer:
        raise ForeignPlace(f"{place} has not been set up for chunk KV yet.", remedy="desk-rag index does that.")
    return _set_up(layout, place, record)


def _check_place(layout: Layout, place: Path) -> None:
    if place.is_symlink():
        raise ForeignPlace(f"kv_dir {place} is a link.", remedy="Name the directory itself.")
    if not place.is_absolute():
        raise ForeignPlace(f"kv_dir {place} is no absolute path.", remedy="Begin it with / or ~.")
    if not place.is_dir():
        raise ForeignPlace(
            f"kv_dir {place} is no directory.",
            remedy=f"Connect its drive, or make it there: mkdir -p '{place}'",
        )
    inside = layout.root in place.parents and place != layout.root / "kv"
    if inside or place == layout.root or place in layout.root.parents:
        raise ForeignPlace(f"kv_dir {place} and the data directory {layout.root} lie in one another.",
                         remedy="Name a directory of its own.")  # fmt: skip


def _set_up(layout: Layout, place: Path, record: Record | None) -> Record:
    """Give a directory its marker, or note where one that has it was moved to."""
    owner = OwnedDirectory(place, follow=False)
    marked = marker_of(place) is not None
    if not marked:
        _refuse_foreign(owner, place)
        _refuse_what_is_left(layout, place)
    record = Record(uuid.uuid4().hex if record is None else record.identifier, "")
    if not marked:
        # The record first, without the path: whatever moment this is cut off at, the next start goes on from there.
        _write_record(layout, record)
        with suppress(OSError), owner.opened() as folder:  # a drive may know no modes
            folder.make_private()
        if not os.path.lexists(place / TAG):
            owner.write(place / TAG, TAG_CONTENT)
        owner.write(place / KV_MARKER, json.dumps({"id": record.identifier, "producer": "desk-rag"}).encode())
    record = Record(record.identifier, str(place))
    _write_record(layout, record)
    owner.make_directory(place / "quarantine")
    return record


def _write_record(layout: Layout, record: Record) -> None:
    layout.home.write(layout.root / KV_RECORD, json.dumps({"id": record.identifier, "path": record.path}).encode())


def _refuse_foreign(owner: OwnedDirectory, place: Path) -> None:
    for path, _ in owner.scan(place, skip=lambda path: path.parent == place and path.name in _SYSTEMS):
        entry = owner.entry(path)
        if entry is not None and not ownership.content_proves(ownership.name_in_kv(place, path))(entry):
            raise ForeignPlace(
                f"kv_dir {place} holds other files ('{path.relative_to(place)}' for one).",
                remedy="Name an empty directory, or a new one in it.",
            )


def _refuse_what_is_left(layout: Layout, place: Path) -> None:
    inside = layout.root / "kv"
    if place == inside:
        return
    left = None
    with suppress(ForeignPlace):  # a link in that place is no longer used
        left = next(layout.home.scan(inside), None)
    if left is not None:
        raise ForeignPlace(
            f"{inside} still holds chunk KV, and `kv_dir` names {place}.", remedy=f"Move it: mv '{inside}'/* '{place}'/"
        )
