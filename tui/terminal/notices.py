"""Notices outside the window, if the user wants them: when a long answer or a long round of indexing ends."""

from __future__ import annotations

from time import monotonic

from desk_rag.documents.status import IndexStage
from desk_rag.ingest.events import IndexEvent, IndexFinished, StageProgress

LONG_ANSWER_SECONDS = 10.0
LONG_INDEX_SECONDS = 30.0
_READING = (IndexStage.WORDS, IndexStage.VECTORS)


class LongWork:
    """Watch over long work: reports the end of what took so long that the user may have left."""

    def __init__(self) -> None:
        self._asked_at = 0.0
        self._reading_since: float | None = None

    def asked(self) -> None:
        """Note that a question is asked now."""
        self._asked_at = monotonic()

    def answered(self) -> str:
        """Return a notice if the answer took long, else ''."""
        return "desk-rag: the answer is there" if monotonic() - self._asked_at >= LONG_ANSWER_SECONDS else ""

    def indexed(self, event: IndexEvent) -> str:
        """Return a notice if this event ends a long round of indexing, else ''."""
        if isinstance(event, StageProgress) and event.stage in _READING and self._reading_since is None:
            self._reading_since = monotonic()
        if not isinstance(event, IndexFinished):
            return ""
        since, self._reading_since = self._reading_since, None
        long_ago = since is not None and monotonic() - since >= LONG_INDEX_SECONDS
        return "desk-rag: the files are read" if long_ago else ""


def signal_of(kind: str, notice: str) -> str:
    """Return what makes a terminal ring ('bell') or show `notice` on the desktop ('osc9'); '' for 'off'."""
    if not notice or kind == "off":
        return ""
    return "\a" if kind == "bell" else f"\x1b]9;{notice}\x1b\\"
