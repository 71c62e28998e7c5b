"""Fetch the large files of a model so that an interrupted download goes on where it stopped.

The hub's own client begins such a file anew. Here its bytes lie beside the cache's until they are all there and have
the checksum that the hub names; then the client finds them as if it had fetched them itself. The cache belongs to that
client: of its files only those are changed that were begun here, which have the number of their inode in their name.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from desk_rag.errors import ModelError
from desk_rag.owned_folder import Folder, create_beside, open_folder, proven

_PIECE = 1 << 22
_PATIENCE = 5.0
"""Seconds in which a download that was stopped lets go of its file."""
_MOST = 50 * 10**9
"""Largest file that the hub sends over plain HTTP."""


@dataclass(frozen=True, slots=True)
class LargeFile:
    """A file whose content the hub knows by its checksum."""

    name: str
    sha256: str
    size: int
    blob: Path
    """Its place in the cache, whether it is there or not."""
    lock: Path
    """File that the hub's client locks while it fetches this one."""

    @property
    def arrived(self) -> int:
        """Bytes that are here."""
        if self.blob.exists():
            return self.size
        try:
            folder = open_folder(self.blob.parent, None, follow=True)
        except FileNotFoundError:
            return 0
        try:
            name = _begun_here(folder, self.sha256)
            return min(folder.status(name).st_size, self.size) if name else 0
        finally:
            folder.close()


def large_files(name: str, siblings: list[Any], cache: Path) -> tuple[LargeFile, ...]:
    """The files among `siblings`, as the hub lists them, that are fetched here."""
    from huggingface_hub.file_download import repo_folder_name

    folder = repo_folder_name(repo_id=name, repo_type="model")
    return tuple(
        LargeFile(
            name=file.rfilename,
            sha256=file.lfs.sha256,
            size=file.lfs.size,
            blob=cache / folder / "blobs" / file.lfs.sha256,
            lock=cache / ".locks" / folder / f"{file.lfs.sha256}.lock",
        )
        for file in siblings
        if file.lfs is not None and file.lfs.size <= _MOST
    )


def fetch(name: str, revision: str, file: LargeFile, bar: type[Any]) -> None:
    """Fetch what is missing of `file`; `bar` is a class like tqdm's for the progress.

    Leaves it to the client where another process fetches it. Raises ModelError, and what the client raises.
    """
    file.lock.parent.mkdir(parents=True, exist_ok=True)
    file.blob.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(file.lock, timeout=_PATIENCE):
            if file.blob.exists():  # the client of another process has fetched it meanwhile
                return
            folder = open_folder(file.blob.parent, None, follow=True)
            try:
                _fetch_into(folder, name, revision, file, bar)
            finally:
                folder.close()
    except Timeout:
        return


def _fetch_into(folder: Folder, name: str, revision: str, file: LargeFile, bar: type[Any]) -> None:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils._headers import build_hf_headers

    part = _begun_here(folder, file.sha256) or _begin(folder, file.sha256)
    with os.fdopen(folder.append_to(part), "ab") as stream:
        here = stream.tell()
        if here < file.size:
            url = hf_hub_url(name, file.name, revision=revision)
            http_get(url, stream, resume_size=here, headers=build_hf_headers(), expected_size=file.size, tqdm_class=bar)
    if _sha256(folder.path / part) != file.sha256:
        folder.unlink(part, lambda entry: _is_part(part, entry.status, file.sha256))
        raise ModelError(f"{file.name} of '{name}' did not come as the hub has it.", remedy="Run the command again.")
    folder.replace(part, folder, file.blob.name)


def _begin(folder: Folder, sha256: str) -> str:
    """Create an empty file for a download and return its name, which no other file has."""
    temporary, descriptor = create_beside(folder, sha256)
    part = _part_name(sha256, os.fstat(descriptor))
    os.close(descriptor)
    if part in folder.names():  # left from a file whose inode is free again; this one stays taken for the next try
        try:
            return _begin(folder, sha256)
        finally:
            folder.unlink(temporary, proven)
    folder.replace(temporary, folder, part)
    return part


def _begun_here(folder: Folder, sha256: str) -> str | None:
    """Name of the file that holds what has come of a download; None before it has begun."""
    return next((name for name, status in folder.scan() if _is_part(name, status, sha256)), None)


def _is_part(name: str, status: os.stat_result, sha256: str) -> bool:
    """Return whether `_begin` made a file. A copy of one, or a file of another program, has another inode."""
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and name == _part_name(sha256, status)


def _part_name(sha256: str, status: os.stat_result) -> str:
    return f"{sha256}.{status.st_ino:x}.desk-rag.incomplete"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
