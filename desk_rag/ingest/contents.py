"""Check that something is indexed where a question is asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.documents.status import FileState
from desk_rag.errors import DeskRagError, catalog_lost
from desk_rag.ingest import freshness
from desk_rag.sanitize import shown_path

if TYPE_CHECKING:
    from desk_rag.config import Settings
    from desk_rag.store.store import Store

SEARCH_REMEDY = "Name a folder first: desk-rag index FOLDER"


def ask_remedy(settings: Settings) -> str:
    """Return what to do before a question if nothing is indexed: by name, or as the settings name it."""
    if settings.folders:
        return "`desk-rag index` reads the folders that your settings name; then ask again."
    return 'Name a folder: desk-rag ask "…" --folder ~/Documents'


def new_folders(store: Store, roots: Sequence[Path]) -> list[Path]:
    """Return the folders and files of which nothing is in the catalog, but that a folder is left out as a whole."""
    return [root for root in roots if root.exists() and all(row.is_folder for row in store.documents(root))]


def check_not_empty(store: Store, roots: Sequence[Path], remedy: str) -> None:
    """Make sure that there is something to search, or that it is being read now. Raises DeskRagError."""
    if store.is_lost:
        raise catalog_lost(store.root)
    if freshness.is_reading(store):
        return
    if roots and not any(row.state is FileState.INDEXED for root in roots for row in store.documents(root)):
        if len(roots) == 1 and roots[0].is_file():
            raise DeskRagError(
                f"{shown_path(roots[0])} is not indexed.",
                remedy=f"desk-rag index {shown_path(roots[0])} reads it; "
                f"desk-rag why {shown_path(roots[0])} says whether the file can be read.",
            )
        names = ", ".join(shown_path(root) for root in roots)
        raise DeskRagError(
            f"There is nothing indexed under {names}.",
            remedy="`desk-rag why FOLDER` says why files were not read; `desk-rag index FOLDER` reads what changed.",
        )
    if not roots and not store.counts(None, None).files:
        raise DeskRagError("Nothing is indexed yet.", remedy=remedy)
