"""Tell which archives are read: those that somebody asked for, by name or by a setting."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from desk_rag.config import IndexSettings

MARK = "archives"
"""Part of the version of the reader under which an archive was read."""
REMEDY = "`desk-rag index FILE` reads what is inside a .zip or .tar file"
_NAMES = re.compile(r".*\.(?:zip|tar|t[gx]z|tbz2?|tar\.(?:gz|bz2|xz))", re.IGNORECASE | re.DOTALL)


def is_archive(name: str) -> bool:
    """Return whether a file of this name is an archive whose contents can be read."""
    return _NAMES.fullmatch(name) is not None


def reads(name: str, settings: IndexSettings) -> bool:
    """Return whether the contents of a file of this name are read as those of an archive."""
    return settings.archives and is_archive(name)


def asked(name: str, settings: IndexSettings, version: str, *, by_name: bool = False) -> IndexSettings:
    """Return settings that read an archive which is asked for now, or was when it was read under `version`."""
    if is_archive(name) and (by_name or MARK in version.split("/")):
        return settings.model_copy(update={"archives": True})
    return settings
