"""The exception tree. Knows no other module; every message is written for the person at the terminal.

    DeskRagError                      anything a user can act on; carries `remedy` and `exit_code`
    ├── ConfigError                   a setting is unknown, malformed or contradictory
    ├── DocumentError                 one file could not be turned into text (the rest go on)
    │   ├── UnreadableDocument        permission, vanished, I/O error
    │   ├── UnsupportedDocument       not a type we read
    │   └── BrokenDocument            the parser failed, ran too long or found no text
    │       └── EmptyDocument         nothing is wrong with it, and nothing is in it
    ├── StoreError
    │   ├── StoreLocked               another process is the writer
    │   ├── StoreFull                 the byte budget or the disk leaves no room
    │   ├── StoreReadOnly             the data directory can be read and not written
    │   ├── ForeignPlace              a link, mount or file of somebody else stands where a file of ours belongs
    │   ├── CorruptKV                 a KV file failed its checks (a miss for whoever asked)
    │   ├── CorruptCatalog            the catalog is damaged beyond single rows
    │   ├── CatalogLost               there was a catalog, and it is gone or empty
    │   └── UnknownFormat             written by a newer desk-rag
    ├── ModelError
    │   ├── ModelNotFound             no weights at that name or path
    │   ├── UnsupportedModel          loads, but its chunk KV could not be served exactly
    │   ├── OutOfMemory               does not fit this device
    │   └── GpuLost                   the GPU failed, and this process cannot use it any more
    └── Cancelled                     the user or a waiting answer asked for a stop

A missing or stale chunk KV is not an error: it is a miss, and costs only time.
Programming mistakes stay assertions.
"""

from __future__ import annotations

import errno
from pathlib import Path

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_LEAVE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


EXIT_CODES = {
    0: "done, also when the documents do not hold the answer",
    1: "another error",
    2: "wrong arguments or settings",
    3: "some files could not be read (the rest is done)",
    4: "the data directory cannot be used (locked, full, read-only, damaged, written by a newer version), or its "
    "drive has no room for caches",
    5: "the model cannot be used (missing, not supported, too large)",
    130: "interrupted (what was done is kept)",
}
"""Meanings of the exit codes of the command line."""


class DeskRagError(Exception):
    """Base of everything that is shown to the user as `message` and a `remedy`, never as a traceback."""

    exit_code = 1

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  {self.remedy}" if self.remedy else self.message


class ConfigError(DeskRagError):
    """A setting or argument is unknown, malformed or contradictory."""

    exit_code = 2


class DocumentError(DeskRagError):
    """One file could not be turned into text; indexing goes on with the others."""

    exit_code = 3


class UnreadableDocument(DocumentError):
    """The bytes could not be read: permission, vanished, I/O error."""


class UnsupportedDocument(DocumentError):
    """Not a kind of file that holds text we read."""


class BrokenDocument(DocumentError):
    """The parser failed on the content, took too long, or found no text in it."""


class SecretDocument(DocumentError):
    """The content is a key, or hardly more than an access token; it is not indexed unless the user says so."""


class EmptyDocument(BrokenDocument):
    """Nothing but white space: nothing is wrong with the file and nothing is in it."""


class StoreError(DeskRagError):
    """The data directory cannot be used as asked."""

    exit_code = 4


class StoreLocked(StoreError):
    """Another desk-rag process is the writer of this store."""


class StoreFull(StoreError):
    """Neither the byte budget nor the disk leaves room, even after eviction."""


class StoreReadOnly(StoreError):
    """The data directory can be read and not written: a drive mounted so, or permissions."""


class ForeignPlace(StoreError):
    """A link, a mount or a file of somebody else stands where desk-rag has its own; it is left alone."""


UNWRITABLE = (StoreFull, StoreReadOnly)
"""Errors of writing a small note that can be done without."""


class CorruptKV(StoreError):
    """A KV file failed a header, length or checksum test. Whoever asked gets a miss; the file is quarantined."""


class CorruptCatalog(StoreError):
    """SQLite cannot read the catalog, or it contradicts itself; everything in it can be made again."""


class CatalogLost(StoreError):
    """The data directory had a catalog that is gone or was emptied."""


class UnknownFormat(StoreError):
    """The store was written by a newer desk-rag."""


class ModelError(DeskRagError):
    """The language model or the embedder cannot be used."""

    exit_code = 5


class ModelNotFound(ModelError):
    """No weights at that name or path, or no network to fetch them."""


class UnsupportedModel(ModelError):
    """The model loads, but its chunk KV could not be served exactly; the message says which property forbids it."""


class OutOfMemory(ModelError):
    """The model or the context does not fit this device."""


class GpuLost(ModelError):
    """The GPU failed or was taken away; only a new process can use it again."""


class Cancelled(DeskRagError):
    """Work was given up because the user asked, or because an answer waits for the device."""

    exit_code = 130


def full_disk(place: object) -> StoreFull:
    """Return the error for a drive without room for `place`."""
    return StoreFull(
        f"The disk is full: {place} could not be written.",
        remedy="Free some space on that drive; nothing that was stored is lost. `desk-rag purge --all` needs none.",
    )


def catalog_lost(data_dir: object) -> CatalogLost:
    """Return the error for a lost catalog, whose traces show that it existed."""
    return CatalogLost(
        f"The catalog in {data_dir} is lost: it is missing or was emptied.",
        remedy="Rebuild it: desk-rag index FOLDER ... (chunk KV that is still there is used again)",
    )


def read_only(place: object, reason: str) -> StoreReadOnly:
    """Return the error for a `place` that may not be written."""
    return StoreReadOnly(
        f"{place} cannot be written: {reason}.",
        remedy="Make the drive or directory writable for you, or name another place with --data-dir.",
    )


def told_to_user(error: Exception) -> DeskRagError | None:
    """Return the error that the user sees for an exception; None for an internal error."""
    if isinstance(error, PermissionError):
        name = error.filename or "A file"
        return DeskRagError(f"{name} may not be used: {error.strerror}.", remedy=_owner_remedy(str(name)))
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return ConfigError(
            f"A path is longer than this system allows: {str(error.filename)[:60]}…",
            remedy="Name a shorter one in the settings or on the command line.",
        )
    if type(error).__name__ == "AcceleratorError":  # torch's, as the next; torch is not imported here
        return GpuLost(
            "The GPU failed while it was in use.",
            remedy="Ask again; the model is loaded anew. If it fails again, see what nvidia-smi says, or set"
            ' device = "cpu" under [model] in the settings.',
        )
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return OutOfMemory(
            "There is not enough memory for the model and its work.",
            remedy="Close programs that use much memory or the GPU, or choose a smaller model: Alt+L in the UI,"
            " `desk-rag models fit` in a shell.",
        )
    return of_system(error) if isinstance(error, OSError) else error if isinstance(error, DeskRagError) else None


def _owner_remedy(name: str) -> str:
    """Return what helps with a file that may not be used: who owns it, or the directory that hides it."""
    for path in (Path(name), *Path(name).parents):
        try:
            owner = path.owner()
        except (OSError, KeyError, NotImplementedError):  # not visible, a user without a name, Windows
            continue
        return (
            f"{path} belongs to '{owner}'. If desk-rag once ran as that user, by sudo for example, give its data "
            "directory back with chown -R; else correct the permissions, or name another place with --data-dir."
        )
    return "See who owns it."


def of_system(error: OSError, place: Path | None = None) -> StoreError | None:
    """A full or read-only drive as the user is to hear of it; None for any other error of the operating system.

    `place` names the file where the error itself does not.
    """
    named = error.filename2 or error.filename or place or "a file"
    if error.errno in _NO_ROOM:
        return full_disk(named)
    if error.errno in _NO_LEAVE:
        return read_only(named, error.strerror or str(error))
    return None
