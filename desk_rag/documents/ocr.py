"""Tell whether text recognition (OCR) is installed and which files it reads; it runs in the parser process."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from desk_rag.config import IndexSettings

REMEDY = 'Install desk-rag with the extra "ocr" to have it read, or run an OCR program over it and save the result.'
PICTURE_REMEDY = 'with the extra "ocr" installed and `ocr = "all"` under [index], the text in pictures is read'
_PICTURES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff"})


@functools.cache
def is_installed() -> bool:
    """Return whether the engine and the library that runs its models can be imported."""
    return all(find_spec(name) is not None for name in ("rapidocr", "onnxruntime"))


def is_picture(name: str) -> bool:
    """Return whether a file of this name is a picture that OCR can open."""
    return PurePath(name).suffix.lower() in _PICTURES


def reads(name: str, settings: IndexSettings) -> bool:
    """Return whether OCR is used on a file of this name, if it has no text of its own."""
    if settings.ocr == "off" or not is_installed():
        return False
    return PurePath(name).suffix.lower() == ".pdf" or (settings.ocr == "all" and is_picture(name))
