"""Checks shared by office formats, which are ZIP archives inside."""

from __future__ import annotations

import io
import re
import zipfile

from desk_rag.errors import BrokenDocument

_UNPACKED_MIB = 300
_PAGE_NUMBER = re.compile(r"\W*(?:(?:page|seite)\W*)?\d*\W*(?:of|von|/)?\W*\d*\W*", re.IGNORECASE)


def check_unpacked_size(data: bytes, what: str) -> None:
    """Raise BrokenDocument for a damaged archive or one that unpacks to more than 300 MiB; `what` names the format."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise BrokenDocument(f"is not {what} that can be opened (damaged?)") from error
    if unpacked > _UNPACKED_MIB * 1024 * 1024:
        raise BrokenDocument(f"unpacks to {unpacked // (1024 * 1024):,} MiB, more than the {_UNPACKED_MIB} MiB allowed")


def is_page_number(text: str) -> bool:
    """Return whether a header or footer is blank or holds a page number only."""
    return _PAGE_NUMBER.fullmatch(text) is not None
