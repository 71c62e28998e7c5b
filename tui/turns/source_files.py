"""Compare the files of an answer's sources with what was read of them, so that marks of earlier turns stay true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from desk_rag.answering.events import Absence, Missing, Source


def compared(sources: Sequence[Source], folders: Sequence[Path]) -> tuple[Source, ...]:
    """Return the sources with the state of their files now; those whose file is unknown stay as they are."""
    return tuple(_compared(source, folders) if any(source.file) else source for source in sources)


def _compared(source: Source, folders: Sequence[Path]) -> Source:
    size, mtime_ns, _ = source.file
    try:
        status = source.path.stat()
    except OSError:
        away = any(source.path.is_relative_to(folder) and not folder.exists() for folder in folders)
        why = Missing.FOLDER_AWAY if away else Missing.FILE_GONE
        if source.absence is not None and source.absence.why is why:
            return source
        return replace(source, stale=True, absence=Absence(why, source.indexed_at))
    return replace(source, stale=(status.st_size, status.st_mtime_ns) != (size, mtime_ns), absence=None)
