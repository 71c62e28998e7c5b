"""Read one file's chunks, parsed and cut in the parser process, with limits on time, memory and text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from desk_rag.documents import document
from desk_rag.documents.chunking import Chunk, ChunkSize, chunk_id_of
from desk_rag.documents.document import Document
from desk_rag.documents.location import Location, Part
from desk_rag.documents.parser_process import Cutting

if TYPE_CHECKING:
    from desk_rag.config import IndexSettings
    from desk_rag.documents.token_counter import PortableCounter


def read(
    path: Path,
    settings: IndexSettings,
    counter: PortableCounter,
    size: ChunkSize,
    stop: Callable[[], bool],
    *,
    allow_secrets: bool = False,
) -> tuple[Document, list[Chunk]]:
    """Return a file's document, without blocks, and its chunks.

    Raises what `documents.ask_parser` raises; Cancelled within a fraction of a second after `stop` returns True.
    """
    cutting = Cutting(counter.tokenizer_json, (size.smallest, size.target, size.largest))
    source, reply = document.ask_parser(path, settings, cutting, stop, allow_secrets=allow_secrets)
    with document.sound_reply(source.path):
        rows = cast("list[list[Any]]", reply["chunks"])
        chunks = [_chunk(ordinal, *row) for ordinal, row in enumerate(rows)]
        parser = document.parser_of(reply)
        return Document(source, str(reply["title"]), (), parser, str(reply["note"])), chunks


def _chunk(ordinal: int, text: str, num_tokens: int, heading: str, parts: list[list[Any]], *place: int | None) -> Chunk:
    page_start, page_end, line_start, line_end = place
    location = Location(heading, page_start, page_end, line_start, line_end, parts=tuple(Part(*part) for part in parts))
    return Chunk(chunk_id_of(text), ordinal, text, int(num_tokens), location)
