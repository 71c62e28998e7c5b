"""Run `desk-rag search`: show the passages nearest to a query, without a language model."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.cli import output as out
from desk_rag.cli.work import indexed_roots, say_alone
from desk_rag.config import Settings
from desk_rag.errors import UNWRITABLE, ConfigError, ForeignPlace, ModelError, StoreLocked
from desk_rag.indexer.resident.protocol import NoResident
from desk_rag.ingest import contents, freshness
from desk_rag.sanitize import clean

if TYPE_CHECKING:
    from desk_rag.ingest.freshness import Backlog
    from desk_rag.retrieval.search import RetrievedChunk


_MAIL_HEAD = re.compile(r"\A(?:[^\n]*\n)?From: [^\n]*Subject: [^\n]*\n(?=\s*\S)")
"""Beginning of the passage of a mail: a line that holds the subject, and its fields."""


def search(
    settings: Settings, query: str, folders: Sequence[Path], limit: int, *, words_only: bool, as_json: bool
) -> int:
    """Print the chunks nearest to `query`, best first; '@' names in it limit the search."""
    if not query.strip():
        raise ConfigError("The query is empty.", remedy="desk-rag search warranty")
    roots = indexed_roots(settings, folders)
    try:
        chunks, notices = _search_resident(settings, query, roots, limit, words_only=words_only)
    except NoResident as reason:
        say_alone(out.Progress(sys.stderr), reason)
        chunks, notices = _search_alone(settings, query, roots, limit, words_only=words_only)
    out.Progress(sys.stderr).clear()
    from desk_rag.answering.conversation.vocabulary import STOP_WORDS, stem, words_of

    stems = {word: stem(word.casefold()) for word in words_of(query) if word.casefold() not in STOP_WORDS}
    if chunks and (missing := _missing(stems, chunks)):
        notices = (f"None of these passages has “{'” or “'.join(missing)}”.", *notices)
    if as_json:
        results = [_as_json(chunk) for chunk in chunks]
        out.print_json(sys.stdout, {"query": query, "results": results, "notices": list(notices)})
        return 0
    for notice in notices:
        out.Progress(sys.stderr).say(notice)
    for number, chunk in enumerate(chunks, start=1):
        sys.stdout.write(_line(number, chunk, stems.values(), roots) + "\n")
    if not chunks:
        sys.stdout.write("Nothing found.\n")
    return 0


def _missing(stems: Mapping[str, str], chunks: Sequence[RetrievedChunk]) -> list[str]:
    """Return the words of a query whose stem begins no word of a passage, nor of its title, heading or path."""
    texts = "\n".join(
        f"{each.passage.path}\n{each.passage.title}\n{each.passage.chunk.location.heading}\n{each.passage.chunk.text}"
        for each in chunks
    )
    return [word for word, stem in stems.items() if not re.search(rf"(?<!\w){re.escape(stem)}", texts, re.IGNORECASE)]


def _search_resident(
    settings: Settings, query: str, roots: Sequence[Path], limit: int, *, words_only: bool
) -> tuple[list[RetrievedChunk], tuple[str, ...]]:
    """Have a process search that has the embedder loaded. Raises NoResident if there is none."""
    from desk_rag.indexer.resident import client, values
    from desk_rag.retrieval.search import RetrievedChunk

    request: dict[str, object] = {"do": "search", "query": query, "folders": [str(root) for root in roots]}
    request |= {"limit": limit, "words_only": words_only, "settings": values.settings_key(settings)}
    *_, result = client.request(settings.data_dir, request)
    chunks, notices = result["chunks"], result["notices"]
    assert isinstance(chunks, list) and isinstance(notices, list)
    return [values.built(RetrievedChunk, chunk) for chunk in chunks], tuple(map(str, notices))


def _search_alone(
    settings: Settings, query: str, roots: Sequence[Path], limit: int, *, words_only: bool
) -> tuple[list[RetrievedChunk], tuple[str, ...]]:
    from desk_rag.answering.conversation.scope import among_indexed
    from desk_rag.ingest import damage, deletions
    from desk_rag.retrieval.search import retrieve
    from desk_rag.store.store import Store

    backlog = _read_changed(settings, roots)
    with Store.open(settings.data_dir, settings.store, writer=False) as store:
        deletions.wait_until_taken_out(store, backlog.excluded, lambda: False)
        contents.check_not_empty(store, roots, contents.SEARCH_REMEDY)
        scope = among_indexed(query, store, roots)
        embedder = None
        if not words_only:
            from desk_rag.retrieval.embedding import load_embedder

            out.Progress(sys.stderr).passing("loading the embedder …")
            embedder = load_embedder(settings.model)
        chunks = retrieve(store, embedder, scope.question, limit, scope.paths)
        return chunks, (*backlog.notices, *damage.notices(store, (), scope.paths))


def _read_changed(settings: Settings, roots: Sequence[Path]) -> Backlog:
    """Look for files that changed, read a few small ones, remove excluded ones, and return what is left unread."""
    from desk_rag.store.store import Store

    with Store.open(settings.data_dir, settings.store, writer=False) as store:
        backlog = freshness.look(store, roots, settings.index)
    if not backlog.is_due:
        return backlog
    from desk_rag.model import weights
    from desk_rag.model.prompt import load_prompt

    try:
        prompt = load_prompt(weights.resolve(settings.model.name, allow_download=False))
        with Store.open(settings.data_dir, settings.store, writer=True) as store:
            return freshness.read_small(store, backlog, prompt, prompt.chunk_size, settings.index, lambda: False)
    except (StoreLocked, ForeignPlace, ModelError, *UNWRITABLE):
        return backlog  # another process reads them, or none can


def _line(number: int, result: RetrievedChunk, stems: Collection[str], bases: Sequence[Path] = ()) -> str:
    """Return one line of `search`: number, location and the words that matched; a file that is gone is marked."""
    passage, start = result.passage, _excerpt(result.passage.chunk.text, stems)
    note = "" if passage.path.exists() else " (the file is not there now)"
    return f"{number:>3} {out.place(passage.path, passage.chunk.location, bases)}{note}: {start}"


def _excerpt(text: str, stems: Collection[str]) -> str:
    """Return words of a passage: of a mail those that were written, since its place names sender, day and subject."""
    return _around(_MAIL_HEAD.sub("", text, count=1), stems, 100)


def _around(text: str, stems: Collection[str], most: int) -> str:
    """Return the part of `text` with most words that begin with one of `stems`, on one line, safe to print."""
    text = clean(text, single_line=True)
    words = [(word.start(), word.group().casefold()) for word in re.finditer(r"\w+", text)]
    matches = [(start, stem) for start, word in words for stem in stems if word.startswith(stem)]
    if not matches or len(text) <= most:
        return out.shorten(text, most)

    def seen(start: int) -> int:
        return len({stem for place, stem in matches if start <= place <= start + 3 * most // 4})

    best = max((start for start, _ in matches), key=seen)
    before = [start for start, _ in words if start <= best - most // 6]
    begin = 0 if best < most // 2 else max(before, default=best)  # a line of dashes has no word to begin with
    part = text[begin : begin + most]
    return f"{'…' if begin else ''}{part}{'…' if begin + most < len(text) else ''}"


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
