"""Fetch the large files of a model so that an interrupted download goes on where it stopped.

The hub's own client begins such a file anew. Here its bytes lie beside the cache's until they are all there and have
the checksum that the hub names; then the client finds them as if it had fetched them itself.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from desk_rag.errors import ModelError

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

    @property
    def part(self) -> Path:
        """File that holds what has come of it."""
        return self.blob.with_name(f"{self.blob.name}.desk-rag.incomplete")

    @property
    def arrived(self) -> int:
        """Bytes that are here."""
        if self.blob.exists():
            return self.size
        return min(self.part.stat().st_size, self.size) if self.part.exists() else 0


def large_files(name: str, siblings: list[Any], cache: Path) -> tuple[LargeFile, ...]:
    """The files among `siblings`, as the hub lists them, that are fetched here."""
    from huggingface_hub.file_download import repo_folder_name

    blobs = cache / repo_folder_name(repo_id=name, repo_type="model") / "blobs"
    return tuple(
        LargeFile(file.rfilename, file.lfs.sha256, file.lfs.size, blobs / file.lfs.sha256)
        for file in siblings
        if file.lfs is not None and file.lfs.size <= _MOST
    )


def fetch(name: str, revision: str, file: LargeFile, bar: type[Any]) -> None:
    """Fetch what is missing of `file`; `bar` is a class like tqdm's for the progress.

    Leaves it to the client where another process fetches it. Raises ModelError, and what the client raises.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils._headers import build_hf_headers

    file.blob.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"{file.part}.lock", timeout=_PATIENCE)
    try:
        lock.acquire()
    except Timeout:
        return
    try:
        with file.part.open("ab") as stream:
            if stream.tell() > file.size:
                stream.truncate(0)
            here = stream.tell()
            url = hf_hub_url(name, file.name, revision=revision)
            http_get(url, stream, resume_size=here, headers=build_hf_headers(), expected_size=file.size, tqdm_class=bar)
        if _sha256(file.part) != file.sha256:
            file.part.unlink()
            raise ModelError(
                f"{file.name} of '{name}' did not come as the hub has it.", remedy="Run the command again."
            )
        file.part.replace(file.blob)
    finally:
        lock.release()
        Path(lock.lock_file).unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
