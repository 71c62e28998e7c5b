"""Run `desk-rag search`: show the passages nearest to a query, without a language model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.cli import output as out
from desk_rag.cli.work import check_not_empty, indexed_roots
from desk_rag.config import Settings
from desk_rag.errors import ConfigError

if TYPE_CHECKING:
    from desk_rag.retrieval.search import RetrievedChunk


def search(
    settings: Settings, query: str, folders: Sequence[Path], limit: int, *, words_only: bool, as_json: bool
) -> int:
    """Print the chunks nearest to `query`, best first; '@' names in it limit the search."""
    from desk_rag.answering.conversation import scope as scopes
    from desk_rag.answering.conversation.asking import indexed_files
    from desk_rag.ingest import damage
    from desk_rag.retrieval.search import retrieve
    from desk_rag.store.store import Store

    if not query.strip():
        raise ConfigError("The query is empty.", remedy="desk-rag search warranty")
    roots = indexed_roots(settings, folders)
    with Store.open(settings.data_dir, settings.store, writer=False) as store:
        check_not_empty(store, roots, "Name a folder first: desk-rag index FOLDER")
        scope = scopes.resolve(query, lambda: indexed_files(store), roots)
        embedder = None
        if not words_only:
            from desk_rag.retrieval.embedding import load_embedder

            out.Progress(sys.stderr).passing("loading the embedder …")
            embedder = load_embedder(settings.model)
        chunks = retrieve(store, embedder, scope.question, limit, scope.paths)
        notices = damage.notices(store, (), scope.paths)
    out.Progress(sys.stderr).clear()
    if as_json:
        results = [_as_json(chunk) for chunk in chunks]
        out.print_json(sys.stdout, {"query": query, "results": results, "notices": list(notices)})
        return 0
    for notice in notices:
        out.Progress(sys.stderr).say(notice)
    for number, chunk in enumerate(chunks, start=1):
        sys.stdout.write(_line(number, chunk, roots) + "\n")
    if not chunks:
        sys.stdout.write("Nothing found.\n")
    return 0


def _line(number: int, result: RetrievedChunk, bases: Sequence[Path] = ()) -> str:
    """Return one line of `search`: number, location and the beginning of the chunk; a file that is gone is marked."""
    passage, start = result.passage, out.shorten(result.passage.chunk.text, 100)
    gone = "" if passage.path.exists() else " (the file is not there now)"
    return f"{number:>3} {out.place(passage.path, passage.chunk.location, bases)}{gone}: {start}"


def _as_json(result: RetrievedChunk) -> dict[str, object]:
    """Return one result of `search --json`."""
    passage = result.passage
    return {
        "path": str(passage.path),
        "title": passage.title,
        "chunk": passage.chunk.chunk_id,
        "text": passage.chunk.text,
        "score": round(result.score, 6),
        "words_rank": result.words_rank,
        "vector_rank": result.vector_rank,
        "similarity": round(result.similarity, 6),
        **out.location_json(passage.chunk.location),
    }
