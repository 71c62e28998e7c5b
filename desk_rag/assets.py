"""Find the files that ship with desk-rag: the reader model and the sample documents."""

from __future__ import annotations

from pathlib import Path


def assets_dir() -> Path:
    """Return the packaged `_assets` of an installed wheel, or else the repository's `assets`."""
    package = Path(__file__).resolve().parent
    packaged = package / "_assets"
    return packaged if packaged.is_dir() else package.parent / "assets"
