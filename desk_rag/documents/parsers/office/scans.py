"""Recognise the text in scanned pages and pictures (OCR), with RapidOCR, whose wheel contains its models.

Imported only where a page has no text of its own. Nothing is downloaded: the models' paths are given.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from desk_rag.documents.parsers.building import Builder, Parsed
from desk_rag.documents.parsers.office.page_blocks import RecognizedLine, add_recognized
from desk_rag.errors import BrokenDocument, EmptyDocument

if TYPE_CHECKING:
    from PIL.Image import Image

LONGEST_SIDE = 1700
"""Pixels of a page's longer side: letters of 7 points are recognised, and a page takes about four seconds."""
_MOST_PIXELS = 80_000_000
_LEAST_SCORE = 0.5
_MOST_PICTURE_PAGES = 500


class TextRecognition:
    """The engine for one file, with a limit on its time."""

    def __init__(self, seconds: float, begin: Callable[[float], None]) -> None:
        """`begin` is called with the time limit before the first page."""
        self._seconds = seconds
        self._begin = begin
        self._end = 0.0
        self._last_page = 0.0

    def has_time(self) -> bool:
        """Return whether another page is likely to be done in time."""
        return not self._end or time.monotonic() + 1.5 * self._last_page < self._end

    def lines(self, page: Image) -> list[RecognizedLine]:
        """Return the lines of a page from top to bottom."""
        import numpy

        if not self._end:
            self._begin(self._seconds)
            self._end = time.monotonic() + self._seconds
        began = time.monotonic()
        page = page.convert("RGB")
        page.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
        result = self._engine(numpy.asarray(page)[:, :, ::-1])
        self._last_page = time.monotonic() - began
        if result.boxes is None:
            return []
        width, height = page.size
        lines = []
        for corners, text, score in zip(result.boxes, result.txts, result.scores, strict=True):
            (left, top), (right, bottom) = corners.min(axis=0), corners.max(axis=0)
            if text.strip() and score >= _LEAST_SCORE:
                lines.append(RecognizedLine(text, left / width, top / height, right / width, bottom / height))
        return lines

    @cached_property
    def _engine(self) -> Any:
        import rapidocr

        models = Path(rapidocr.__file__).parent / "models"
        parameters = {
            "Global.log_level": "critical",
            "Global.use_cls": False,  # it turns some upright lines upside down
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
        for part in ("det", "rec"):
            path = next(iter(sorted(models.glob(f"*_{part}_*.onnx"))), None)
            if path is None:
                raise BrokenDocument("needs OCR, whose models are missing", remedy="Install rapidocr again.")
            parameters[f"{part.capitalize()}.model_path"] = str(path)
        return rapidocr.RapidOCR(params=parameters)


def parse(data: bytes, recognition: TextRecognition) -> Parsed:
    """Read the text in a picture; a TIFF file may hold several pages. Raises BrokenDocument or EmptyDocument."""
    from PIL import Image, UnidentifiedImageError

    builder = Builder()
    note = ""
    try:
        with Image.open(io.BytesIO(data)) as picture:
            pages = min(getattr(picture, "n_frames", 1), _MOST_PICTURE_PAGES)
            for number in range(1, pages + 1):
                picture.seek(number - 1)
                if picture.width * picture.height > _MOST_PIXELS:
                    raise BrokenDocument("has too many pixels to be read")
                if not recognition.has_time():
                    note = only_some_pages(number - 1, pages)
                    break
                add_recognized(builder, recognition.lines(picture), number if pages > 1 else None)
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise BrokenDocument("is not a picture that can be opened (damaged?)") from error
    if builder.empty:
        raise EmptyDocument("holds no text that OCR recognises")
    return builder.done("; ".join(filter(None, [recognized_note(), note])), first_heading_is_title=False)


def recognized_note(pages: str = "") -> str:
    """Return the note that text was recognised, so that letters may be wrong."""
    return f"text recognised by OCR{f' on page {pages}' if pages else ''}: single letters may be wrong"


def only_some_pages(done: int, of: int) -> str:
    """Return the note for a file whose pages were not all recognised in time."""
    return f"OCR read only {done} of {of} pages in the time allowed (`ocr_seconds` under [index])"
