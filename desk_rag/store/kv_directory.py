"""Find the directory of the chunk KV, in the data directory or on another drive (`kv_dir`).

A `kv_dir` has a marker file with an id that the data directory records too. Without the right marker nothing in it is
read, written or removed, and no catalog row is dropped: a drive that is not connected looks like an empty directory.
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


@dataclass(frozen=True, slots=True)
class Record:
    """Record of the `kv_dir` in the data directory."""

    identifier: str
    path: str
    """Empty until the directory has its marker."""


class KVDirectory:
    """The chunk KV's directory, which may be absent. Safe to use from several threads."""

    def __init__(self, layout: Layout, identifier: str, away: str, *, writer: bool) -> None:
        self._layout = layout
        self._identifier = identifier
        self._checked = not away
        self._closed = bool(away) and (writer or layout.kv_dir is None)
        self.away = away
        """Reason why chunk KV was unavailable when the store was opened, as a sentence; "" if it was available."""

    def why_away(self) -> str:
        """Return why chunk KV is unavailable now, as a sentence; "" if it is available."""
        if self.in_place():
            return ""
        return self.away or f"{self._layout.kv} is no longer the directory that it was when the store was opened."

    def in_place(self) -> bool:
        """Return whether the directory is the one checked; a writer that opened without it goes on without."""
        if self._closed:
            return False
        root = self._layout.kv_root
        if self._layout.kv_dir is None:
            return root.is_in_place()
        if self._checked and root.is_in_place():
            return True
        root.forget_identity()  # a drive that is reconnected may have another device number
        self._checked = root.is_in_place() and marker_of(root.root) == self._identifier
        return self._checked


def open_kv_directory(layout: Layout, *, writer: bool) -> KVDirectory:
    """Check the directory of the chunk KV, and set up a new `kv_dir`.

    Raises StoreError for the writer if the directory may not be used; a reader then works without chunk KV. A drive
    that is not connected is an error for neither.
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
        away = f"{error.message} Questions are answered without stored chunk KV."
    except OSError as error:
        if writer:
            raise of_system(error, layout.kv) or StoreError(
                f"{layout.kv} cannot be used: {error.strerror or error}.", remedy="Check its permissions and its drive."
            ) from error
        reason = error.strerror or error
        away = f"{layout.kv} cannot be read ({reason}). Questions are answered without stored chunk KV."
    return KVDirectory(layout, "" if record is None else record.identifier, away, writer=writer)


def record_of(root: Path) -> Record | None:
    """Return the record of the `kv_dir`; None if there never was one. Raises StoreError."""
    try:
        record = json.loads((root / KV_RECORD).read_text(encoding="utf-8"))
        return Record(str(record["id"]), str(record["path"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{root / KV_RECORD} cannot be read, so the location of the chunk KV is unknown.",
            remedy=f"Restore it with the id from {KV_MARKER} in your kv_dir; or delete both files and index again.",
        ) from error


def marker_of(place: Path) -> str | None:
    """Return the id in the marker of a `kv_dir`; None if there is no readable marker."""
    entry = OwnedDirectory(place, follow=False).entry(place / KV_MARKER)
    with suppress(ValueError, KeyError, TypeError):
        return None if entry is None or not entry.is_file else str(json.loads(entry.start())["id"])
    return None


def check_new(place: Path) -> None:
    """Raise ForeignPlace if a directory that has no marker cannot become a `kv_dir`."""
    if place.is_dir():
        _refuse_foreign(place)


def _check_inside(layout: Layout, record: Record | None) -> None:
    if record is not None and record.path:
        raise ForeignPlace(
            f"The chunk KV of {layout.root} is kept in {record.path}, but `kv_dir` is not set.",
            remedy=f'Set kv_dir = "{record.path}" under [store]. To give up the chunk KV there, delete that directory'
            f" and {layout.root / KV_RECORD}.",
        )
    try:
        with layout.kv_root.opened():
            pass
    except ForeignPlace as error:
        raise ForeignPlace(
            f"{error.message} Nothing was changed there.",
            remedy="To keep chunk KV on another drive, remove that link or mount and name a separate directory as"
            ' `kv_dir` under [store], for example: kv_dir = "/mnt/big/desk-rag-kv"',
        ) from error


def _away(place: Path, record: Record | None) -> str:
    """Return why a `kv_dir` that was used before is missing now; "" if it is there or new."""
    if record is None or record.path != str(place) or place.is_symlink() or marker_of(place) is not None:
        return ""
    problem = "has lost its marker, or its drive is not mounted" if place.is_dir() else "does not exist"
    return (
        f"The chunk KV directory {place} {problem}. Questions are answered without stored chunk KV; nothing is lost."
        f" Connect its drive; if it is gone for good, delete {KV_RECORD} in the data directory."
    )


def _check_apart(layout: Layout, place: Path, record: Record | None, *, writer: bool) -> Record | None:
    _check_place(layout, place)
    marker = marker_of(place)
    if marker is not None and (record is None or marker != record.identifier):
        raise ForeignPlace(
            f"{place} holds the chunk KV of another data directory.",
            remedy="Name another directory as `kv_dir`; or delete this one if its data directory is gone.",
        )
    if marker is None and record is not None and record.path:
        raise ForeignPlace(
            f"The chunk KV of {layout.root} is kept in {record.path}, but `kv_dir` names {place}.",
            remedy=f"Move everything in {record.path}, including its marker, to {place}; or set `kv_dir` back. To"
            f" give up that chunk KV, delete its directory and {layout.root / KV_RECORD}.",
        )
    if marker is not None and record is not None and record.path == str(place):
        return record
    if not writer:
        raise ForeignPlace(f"{place} has not been set up for chunk KV yet.", remedy="Run: desk-rag index FOLDER")
    return _set_up(layout, place, record)


def _check_place(layout: Layout, place: Path) -> None:
    if place.is_symlink():
        raise ForeignPlace(f"kv_dir {place} is a link.", remedy="Name the directory itself.")
    if not place.is_absolute():
        raise ForeignPlace(f"kv_dir {place} is not an absolute path.", remedy="Begin it with / or ~.")
    if not place.is_dir():
        raise ForeignPlace(
            f"kv_dir {place} is not a directory.",
            remedy=f"Connect its drive, or create the directory: mkdir -p '{place}'",
        )
    inside = layout.root in place.parents and place != layout.root / "kv"
    if inside or place == layout.root or place in layout.root.parents:
        raise ForeignPlace(f"kv_dir {place} and the data directory {layout.root} overlap.",
                         remedy="Name a separate directory.")  # fmt: skip


def _set_up(layout: Layout, place: Path, record: Record | None) -> Record:
    """Write the marker of a new `kv_dir`, or record the new path of one that was moved."""
    owner = OwnedDirectory(place, follow=False)
    marked = marker_of(place) is not None
    if not marked:
        _refuse_foreign(place)
        _refuse_kv_inside(layout, place)
    record = Record(uuid.uuid4().hex if record is None else record.identifier, "")
    if not marked:
        # The record first, without the path: if this is interrupted, the next start continues from there.
        _write_record(layout, record)
        with suppress(OSError), owner.opened() as folder:  # some file systems have no modes
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


def _refuse_foreign(place: Path) -> None:
    path = next(ownership.foreign_in_kv(place), None)
    if path is not None:
        raise ForeignPlace(
            f"kv_dir {place} holds other files, such as '{path.relative_to(place)}'.",
            remedy="Name an empty directory, or a new one in it.",
        )


def _refuse_kv_inside(layout: Layout, place: Path) -> None:
    inside = layout.root / "kv"
    if place == inside:
        return
    remaining = None
    with suppress(ForeignPlace):  # a link in its place is no longer used
        remaining = next(layout.home.scan(inside), None)
    if remaining is not None:
        raise ForeignPlace(
            f"{inside} still holds chunk KV, but `kv_dir` names {place}.", remedy=f"Move it: mv '{inside}'/* '{place}'/"
        )
