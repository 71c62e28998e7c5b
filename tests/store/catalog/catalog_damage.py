"""Damage a real catalog at random and ask the real reader: no other answer without a word, and always a way back.

`attack(seed, rounds)` runs it and returns counts. From a shell:

    python -m tests.store.catalog.catalog_damage [SEED [ROUNDS]]
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import Answer, Finished
from desk_rag.answering.opening import open_engine
from desk_rag.cli import store as cli_store
from desk_rag.config import AnswerSettings, Settings
from desk_rag.errors import CatalogLost, DeskRagError
from desk_rag.ingest import background_prefill, pipeline
from desk_rag.ingest.contents import check_not_empty
from desk_rag.retrieval.token_vectors import ChunkEncodings
from desk_rag.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from desk_rag.retrieval.embedding import Embedder

_PAGE = 4096
_HOME = Path(__file__).resolve().parents[3] / "assets" / "sample_docs"
_QUESTIONS = ("What does the yearly service cost?", "When does the rent rise?")
_EXTRA = {
    "letter.md": "# Letter from the landlord\n\n## Rent\nThe rent for the flat in Mill Lane rises from 780 euros to "
    "815 euros on 1 September 2026. It is due on the third working day of every month.\n",
    "bicycle.txt": "Notes on the bicycle\n\nThe frame number of the blue bicycle is WTU-4471-B. It was bought at "
    "Ortmann's on 3 May 2021 for 649 euros. The chain was changed in spring 2024.\n",
}
Seen = tuple[object, ...]
Stored = dict[Path, object]


@dataclass(frozen=True, slots=True)
class Base:
    """An undamaged data directory and what it answers."""

    data: Path
    answers: dict[str, Seen]
    stored: Stored
    passages: set[tuple[str, ...]]
    """All that may be a source: path, title, place, heading, text."""


class Ground:
    """Documents, two data directories (one with a write-ahead log) and one loaded engine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.documents = root / "docs"
        shutil.copytree(_HOME / "home", self.documents)
        for name, text in _EXTRA.items():
            (self.documents / name).write_text(text, encoding="utf-8")
        self.settings = Settings(data_dir=root / "first", answer=AnswerSettings(max_new_tokens=40))
        self.engine: AnswerEngine = open_engine(self.settings, writer=True)
        self.embedder = cast("Embedder", _Remembered(self.engine.embedder))
        self.index(self.engine.store, warm=True)
        with_log = self._with_log()
        first = self.engine.store
        first.close()
        self.pieces = self._telling_pieces()
        self.bases = [self._base(data) for data in (self.settings.data_dir, with_log)]

    def close(self) -> None:
        self.engine.close()

    def index(self, store: Store, *, warm: bool = False) -> None:
        """One complete run over the documents."""
        engine, stop = self.engine, lambda: False
        prompt = engine.model.prompt
        for _ in pipeline.sync_folder(store, self.documents, prompt, prompt.chunk_size, self.settings.index, stop):
            pass
        for _ in pipeline.embed_pending(store, self.embedder, stop):
            pass
        if warm:
            for _ in background_prefill.warm_pending(store, engine.serving, engine.turn, stop):
                pass

    def ask(self, data: Path, question: str, *, writer: bool) -> Answer:
        """As `ask` does: a look whether there is something, then the answer."""
        settings = self.settings.store
        with Store.open(data, settings, writer=False) as store:
            check_not_empty(store, [], "")
        with Store.open(data, settings, writer=writer) as store:
            check_not_empty(store, [], "")
            self.engine.store = store
            last = list(self.engine.ask(question))[-1]
            self.engine.settle()
        assert isinstance(last, Finished)
        return last.answer

    def copy(self, original: Path, name: str) -> Path:
        """A data directory of its own; KV files are hard links, which are never written to."""
        target = self.root / name
        shutil.copytree(original, target, copy_function=_link_kv)
        return target

    def _with_log(self) -> Path:
        """A copy taken while the write-ahead log holds changes, as a kill leaves it."""
        store, target = self.engine.store, self.root / "second"
        store.checkpoint()
        changed = self.documents / "letter.md"
        text = changed.read_text(encoding="utf-8")
        changed.write_text(text + "\nThe deposit is 1,560 euros.\n", encoding="utf-8")
        self.index(store, warm=True)
        shutil.copytree(store.root, target, ignore=shutil.ignore_patterns("*-shm", "writer.*"))
        return target

    def _base(self, data: Path) -> Base:
        copy = self.copy(data, "asked")
        seen = {question: seen_in(self.ask(copy, question, writer=True)) for question in _QUESTIONS}
        with Store.open(copy, self.settings.store, writer=False) as store:
            stored = stored_in(store)
            passages = {
                (str(one.path), one.title, str(one.chunk.location), one.chunk.location.heading, one.chunk.text)
                for row in store.documents()
                for one in store.passages_of(row.path)
            }
        shutil.rmtree(copy)
        return Base(data, seen, stored, passages)

    def _telling_pieces(self) -> list[str]:
        files = [path for path in self.documents.rglob("*") if path.suffix in (".md", ".txt")]
        texts = [path.read_text(encoding="utf-8") for path in files]
        return [piece for text in texts for piece in re.findall(r"[^\n]{24}", text)]


class _Remembered:
    """The embedder with a memory: the same texts come back after every round."""

    def __init__(self, embedder: Embedder) -> None:
        self.fingerprint = embedder.fingerprint
        self._embedder = embedder
        self._encoded: dict[str, tuple[NDArray[np.float32], NDArray[np.uint8]]] = {}

    def encode_chunks(self, texts: Sequence[str]) -> ChunkEncodings:
        new = [text for text in texts if text not in self._encoded]
        if new:
            encodings = self._embedder.encode_chunks(new)
            assert encodings.signs is not None
            self._encoded.update(zip(new, zip(encodings.vectors, encodings.signs, strict=True), strict=True))
        vectors, signs = zip(*(self._encoded[text] for text in texts), strict=True)
        return ChunkEncodings(np.stack(vectors), signs)


def attack(seed: int, rounds: int, ground: Ground | None = None) -> Counter[str]:
    """Damage a copy of a catalog `rounds` times; return how often each outcome was seen.

    Wrong are `silent` (another answer without a word), `untrue` (a source or quote that no file holds), `leak`
    (document text in an error message), `crash`, `lost` (no way back) and `kv lost` (the way back lost sound KV).
    """
    counts: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        if ground is None:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            ground = Ground(root)
            stack.callback(ground.close)
        for number in range(rounds):
            counts += _round(ground, random.Random(f"{seed}/{number}"), f"{seed}/{number}")
    return counts


WRONG = ("silent", "untrue", "leak", "crash", "lost", "kv lost")


def _round(ground: Ground, chance: random.Random, name: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    base = chance.choice(ground.bases)
    data = ground.copy(base.data, "round")
    try:
        kind = damage(data, chance)
        counts[f"damage: {kind}"] += 1
        outcome = _outcome(ground, base, data, chance.choice(_QUESTIONS), writer=chance.random() < 0.5)
        counts[outcome] += 1
        back = _way_back(ground, base, data)
        counts[back] += 1
        for wrong in {outcome, back} & set(WRONG):
            sys.stderr.write(f"{name}: {kind}: {wrong}\n")
    finally:
        shutil.rmtree(data)
    return counts


def _outcome(ground: Ground, base: Base, data: Path, question: str, *, writer: bool) -> str:
    try:
        answer = ground.ask(data, question, writer=writer)
    except DeskRagError as error:
        return "leak" if any(piece in str(error) for piece in ground.pieces) else "refused"
    except Exception as error:  # every one of them is a find
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return "crash"
    seen = seen_in(answer)
    if any(piece in notice for piece in ground.pieces for notice in answer.notices):
        return "leak"
    if not all(_is_true(source, base.passages) for source in seen[2]):  # type: ignore[attr-defined]
        return "untrue"
    if seen == base.answers[question]:
        return "same, and said" if answer.notices else "same"
    if answer.notices:
        return "another, and said"
    return "silent" if seen[:2] != base.answers[question][:2] else "same answer, other sources"


def _is_true(source: tuple[str, ...], known: set[tuple[str, ...]]) -> bool:
    """A source that an undamaged catalog shows too, or whose words stand in its file."""
    if source in known:
        return True
    try:
        words = Path(source[0]).read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return False
    body = source[-1].split("\n", 1)[-1].split()
    return set(body) <= set(words)


def _way_back(ground: Ground, base: Base, data: Path) -> str:
    """verify --repair, index, verify: then all that answers are made of is as before."""
    settings = ground.settings.model_copy(update={"data_dir": data})
    said = io.StringIO()
    try:
        lost = contextlib.suppress(CatalogLost)  # its message says to index again, which follows
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), lost:
            cli_store.verify(settings, repair=True, subset="1/1", as_json=False)
        with Store.open(data, settings.store, writer=True) as store:
            ground.index(store)
        with Store.open(data, settings.store, writer=True) as store:
            report = store.verify()
            stored = stored_in(store)
            faults = store.faults()
    except Exception as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return "lost"
    if any(piece in said.getvalue() for piece in ground.pieces):
        return "leak"
    if not report.clean or faults or stored != base.stored:
        sys.stderr.write(f"{report.problems} {faults} {stored == base.stored}\n{said.getvalue()}\n")
        return "lost"
    return "way back" if _kv(base.data) <= _kv(data) else "kv lost"


def _kv(data: Path) -> set[str]:
    return {path.name for path in (data / "kv").rglob("*.safetensors")}


def seen_in(answer: Answer) -> Seen:
    """The visible part of an answer: text, citations, sources."""
    citations = tuple((str(c.path), str(c.location), c.quote, c.as_of is None) for c in answer.citations)
    sources = tuple((str(s.path), s.title, str(s.location), s.location.heading, s.text) for s in answer.sources)
    return answer.text, citations, sources


def stored_in(store: Store) -> Stored:
    """All that answers are made of, by document; its files' stamps and the vectors included."""
    stored: Stored = {}
    for row in store.documents():
        passages = [(passage.chunk, passage.title, passage.stamp) for passage in store.passages_of(row.path)]
        stored[row.path] = row.digest, row.state, row.reason, row.stamp, passages
    counts = store.coverage()
    stored[Path()] = counts.chunks, counts.with_vectors, counts.warm
    return stored


def damage(data: Path, chance: random.Random) -> str:
    """Damage the catalog, or its write-ahead log where there is one; returns the kind."""
    log = data / "catalog.sqlite-wal"
    file = log if log.exists() and chance.random() < 0.5 else data / "catalog.sqlite"
    content = bytearray(file.read_bytes())
    kinds: dict[str, Callable[[bytearray, random.Random], bytearray]] = {
        "byte": _byte, "text byte": _text_byte, "burst": _burst, "zeroed block": _zeroed, "swapped pages": _swapped,
        "copied page": _copied, "truncated": _truncated,
    }  # fmt: skip
    kind = chance.choice([*kinds, "text byte", "byte"])
    file.write_bytes(kinds[kind](content, chance))
    return f"{kind} of the {'log' if file == log else 'catalog'}"


def _byte(content: bytearray, chance: random.Random) -> bytearray:
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return content


def _text_byte(content: bytearray, chance: random.Random) -> bytearray:
    """A letter or digit becomes another one, which no parser of any format would mind."""
    places = [match.start() for match in re.finditer(rb"[A-Za-z0-9]{3,} [A-Za-z0-9]", bytes(content))]
    content[chance.choice(places)] = chance.choice(b"0123456789abcdefghijklmnop")
    return content


def _burst(content: bytearray, chance: random.Random) -> bytearray:
    start, length = chance.randrange(len(content)), chance.randrange(2, 200)
    content[start : start + length] = chance.randbytes(len(content[start : start + length]))
    return content


def _zeroed(content: bytearray, chance: random.Random) -> bytearray:
    size = chance.choice((512, _PAGE))
    start = chance.randrange(max(1, len(content) // size)) * size
    content[start : start + size] = bytes(len(content[start : start + size]))
    return content


def _swapped(content: bytearray, chance: random.Random) -> bytearray:
    one, other = (chance.randrange(len(content) // _PAGE) * _PAGE for _ in range(2))
    first, second = content[one : one + _PAGE], content[other : other + _PAGE]
    content[one : one + _PAGE], content[other : other + _PAGE] = second, first
    return content


def _copied(content: bytearray, chance: random.Random) -> bytearray:
    one, other = (chance.randrange(len(content) // _PAGE) * _PAGE for _ in range(2))
    content[one : one + _PAGE] = content[other : other + _PAGE]
    return content


def _truncated(content: bytearray, chance: random.Random) -> bytearray:
    return content[: chance.choice((0, chance.randrange(len(content))))]


def _link_kv(source: str, target: str) -> str:
    if source.endswith(".safetensors"):
        os.link(source, target)
        return target
    return str(shutil.copy2(source, target))


def main(arguments: Sequence[str]) -> int:
    """Run from a shell; 1 if something went wrong."""
    seed, rounds = [*map(int, arguments), *(1, 500)[len(arguments) :]][:2]
    counts = attack(seed, rounds)
    for outcome, count in sorted(counts.items()):
        sys.stdout.write(f"{count:6} {outcome}\n")
    return int(any(counts[wrong] for wrong in WRONG))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
