"""Checks shared by formats that are ZIP archives inside."""

from __future__ import annotations

import io
import zipfile

from desk_rag.errors import BrokenDocument

_UNPACKED_MIB = 300


def check_unpacked_size(data: bytes, what: str) -> None:
    """Raise BrokenDocument for a damaged archive or one that unpacks to more than 300 MiB; `what` names the format."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise BrokenDocument(f"is not {what} that can be opened (damaged?)") from error
    if unpacked > _UNPACKED_MIB * 1024 * 1024:
        raise BrokenDocument(f"unpacks to {unpacked // (1024 * 1024):,} MiB, more than the {_UNPACKED_MIB} MiB allowed")
