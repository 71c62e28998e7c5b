"""Finds the files that ship with desk-rag: the reader model, the sample documents. Knows no other module."""

from __future__ import annotations

from pathlib import Path


def assets_dir() -> Path:
    """The packaged `_assets` of an installed wheel, else the repository's `assets`."""
    package = Path(__file__).resolve().parent
    packaged = package / "_assets"
    return packaged if packaged.is_dir() else package.parent / "assets"
