"""Place of `chats.sqlite`: with the user's data, because chats cannot be made again as caches can.

Programs that make room or backups take a cache folder for expendable. So the chats of the default data directory lie
in the system's folder for data (~/.local/share/desk-rag on Linux). Those of a directory that the user chose lie in it.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import platformdirs

from desk_rag.errors import StoreError
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.owned_folder import TEMPORARY_SUFFIX, create_beside, proven, sync_file
from desk_rag.store.chats.database import ChatsDatabase
from desk_rag.store.ownership import CHATS, content_proves


def chats_directory(root: Path) -> Path:
    """Return the directory for the chats of a data directory."""
    default = Path(platformdirs.user_cache_dir("desk-rag"))
    return Path(platformdirs.user_data_dir("desk-rag")) if root.absolute() == default.absolute() else root


def places(root: Path) -> tuple[Path, ...]:
    """Return the directories that may hold chats: their own, then the data directory, where older versions put them."""
    return tuple(dict.fromkeys((chats_directory(root), root)))


def settle(root: Path) -> Path:
    """Return the directory whose chats are used, after moving those of an older version to where they belong.

    Those that cannot be moved, because they are damaged or there is no room, are used where they are.
    """
    place = chats_directory(root)
    if place == root or (place / CHATS).exists() or not (root / CHATS).exists():
        return place
    try:
        _move(root, place)
    except (sqlite3.Error, OSError, StoreError):
        moved_by_another = (place / CHATS).exists() or not (root / CHATS).exists()
        return place if moved_by_another else root
    return place


def clear(place: Path, *, all_of_it: bool) -> int:
    """Remove damaged chats that were put aside, with `all_of_it` the chats too; return the bytes freed. Raises OSError.

    The directories go as well if nothing else is in them.
    """
    home, freed = OwnedDirectory(place), 0
    for path, _ in list(home.scan(place)):
        name = path.relative_to(place).as_posix()
        if name.startswith("quarantine/chats.") or (all_of_it and name.startswith(CHATS)):
            removed = home.remove(path, content_proves(name))
            freed += 0 if removed is None else removed.st_size
    if all_of_it and place.exists():
        home.remove_directory(place / "quarantine")
        OwnedDirectory(place.parent).remove_directory(place)
    return freed


def _move(root: Path, place: Path) -> None:
    """Copy the database, then remove the old one, while no other process can write to it."""
    with closing(ChatsDatabase(root, create=False)) as old, old.write():
        if not (root / CHATS).exists() or (place / CHATS).exists():
            return  # another process was faster
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        _copy(root / CHATS, OwnedDirectory(place))
        OwnedDirectory(root).remove(root / CHATS, proven)


def _copy(file: Path, home: OwnedDirectory) -> None:
    """Write a copy of a database into a directory, durable on return."""
    for path, _ in list(home.scan(home.root)):  # of a copy that was cut off
        if path.name.endswith(TEMPORARY_SUFFIX):
            home.remove(path, content_proves(path.relative_to(home.root).as_posix()))
    with home.opened() as folder:
        temporary, descriptor = create_beside(folder, CHATS)
        os.close(descriptor)
        try:
            with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(home.root / temporary)) as target:
                target.execute("PRAGMA journal_mode = MEMORY")
                source.backup(target)
            sync_file(home.root / temporary)
            folder.replace(temporary, folder, CHATS)
            folder.sync()
        except BaseException:
            with suppress(OSError):
                folder.unlink(temporary, proven)
            raise
