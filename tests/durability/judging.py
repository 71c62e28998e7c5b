"""One state after a power cut, opened by the real store and held against what had been reported done."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from desk_rag.errors import CorruptKV, DeskRagError, UnknownFormat
from desk_rag.retrieval.token_vectors import pack_signs
from desk_rag.store.kv.header import check_content
from desk_rag.store.store import Store
from tests.durability.power_cut import State
from tests.durability.recording import Op
from tests.durability.workload import EMBEDDER, SECRET, vector_of
from tests.store import made

_UNNAMED_GRAPH = re.compile(r"data/vectors/[0-9a-f]{16}\.hnsw\.\d+-\d+\.tmp")
"""A vector graph before it gets its name: removed vectors are wiped from it first, and the next start removes it."""


@dataclass(slots=True)
class Reported:
    """Work reported done when the power went, and work begun."""

    documents: dict[str, list[str]] = field(default_factory=dict)
    unsure: dict[str, list[list[str] | None]] = field(default_factory=dict)
    """Paths in flight, and each content they may have; None for absent."""
    vectors: set[str] = field(default_factory=set)
    warm: set[str] = field(default_factory=set)
    records: dict[str, str] = field(default_factory=dict)
    unsure_records: dict[str, list[str | None]] = field(default_factory=dict)
    purged: dict[bytes, str] = field(default_factory=dict)
    """Bytes that no file may hold, and what they are."""
    damaged: set[str] = field(default_factory=set)
    """Files that were damaged on purpose."""

    def hear(self, note: dict) -> None:  # type: ignore[type-arg]
        """Take in one remark of the workload."""
        (kind, value), *_ = note.items()
        getattr(self, f"_{kind}", lambda *_: None)(value, note)

    def _putting(self, path: str, note: dict) -> None:  # type: ignore[type-arg]
        self._doubt(path, note["texts"])
        for text in note["texts"]:  # purged before, and wanted again
            self.purged.pop(vector_of(text).tobytes(), None)
            if text.startswith(SECRET):
                self.purged.pop(SECRET.encode(), None)

    def _doubt(self, path: str, content: list[str] | None) -> None:
        self.unsure.setdefault(path, [self.documents.get(path)]).append(content)

    def _restarted(self, seen: dict[str, list[str]], _: dict) -> None:  # type: ignore[type-arg]
        """After a kill, what was in flight stays in doubt: it may be visible and not be durable."""
        for path in self.unsure:
            self.documents.pop(path, None)
            if path in seen:
                self.documents[path] = seen[path]
        self._forget_unheld()

    def _put(self, path: str, note: dict) -> None:  # type: ignore[type-arg]
        self.unsure.pop(path, None)
        self.documents[path] = note["texts"]
        self._forget_unheld()

    def _removing(self, paths: list[str], _: dict) -> None:  # type: ignore[type-arg]
        for path in paths:
            self._doubt(path, None)

    def _removed(self, paths: list[str], _: dict) -> None:  # type: ignore[type-arg]
        for path in paths:
            self.unsure.pop(path, None)
            self.documents.pop(path, None)
        self._forget_unheld()

    def _renaming(self, old: str, note: dict) -> None:  # type: ignore[type-arg]
        texts = self.documents[old]
        self._doubt(old, None)
        self._doubt(note["to"], texts)

    def _renamed(self, old: str, note: dict) -> None:  # type: ignore[type-arg]
        self.unsure.pop(old, None)
        self.unsure.pop(note["to"], None)
        self.documents[note["to"]] = self.documents.pop(old)
        self._forget_unheld()

    def _vectors(self, texts: list[str], _: dict) -> None:  # type: ignore[type-arg]
        self.vectors |= set(texts)

    def _warm(self, text: str, _: dict) -> None:  # type: ignore[type-arg]
        self.warm.add(text)

    def _evicting(self, tokens: list[str], note: dict) -> None:  # type: ignore[type-arg]
        self.damaged |= set(tokens) if "damaged" in note else set()
        self.warm = {text for text in self.warm if str(made.key(text).tokens) not in tokens}

    def _recording(self, name: str, note: dict) -> None:  # type: ignore[type-arg]
        self.unsure_records.setdefault(name, [self.records.get(name)]).append(note["text"])

    def _recorded(self, name: str, note: dict) -> None:  # type: ignore[type-arg]
        self.unsure_records.pop(name, None)
        self.records[name] = note["text"]

    def _purged(self, trace: str, note: dict) -> None:  # type: ignore[type-arg]
        self.purged[trace.encode()] = "purged text"
        self.purged |= {vector_of(text).tobytes(): f"the vector of the purged '{text}'" for text in note["texts"]}

    def _forget_unheld(self) -> None:
        known_texts = {text for texts in self.documents.values() for text in texts}
        self.vectors &= known_texts
        self.warm &= known_texts

    def kept(self) -> set[str]:
        """Texts that are in the store whatever became of what was in flight."""
        return {text for path, texts in self.documents.items() if path not in self.unsure for text in texts}


def reported(ops: Sequence[Op]) -> Reported:
    """Return what the remarks among `ops` say."""
    report = Reported()
    for op in ops:
        if op.kind == "N":
            report.hear(op.note)
    return report


def judge(state: State, ops: Sequence[Op], place: Path) -> list[str]:
    """Put `state` at `place`, open it as the next start would, and return every promise that does not hold."""
    reports = reported(ops)
    state.write(place)
    root = place / "data"
    faults = [
        f"{what} is back in {path}"
        for trace, what in reports.purged.items()
        for path, content in state.files
        if trace in content and not _UNNAMED_GRAPH.fullmatch(path)
    ]
    faults += _incomplete(root, reports)
    try:
        with Store.open(root, made.settings(), writer=True) as store:
            faults += _catalog_faults(store, reports)
            faults += _kv_faults(store, reports, root)
            faults += _vector_faults(store, reports)
            store.checkpoint()  # what the cut has prevented, as `watch` and every end of a command do
            report = store.verify()
            faults += [f"verify: {problem.what}" for problem in report.problems]
            left = [path.name for path in root.rglob("*.tmp") if path.parent.name not in ("models", "run", "data")]
            if left := sorted(set(left) - {path.name for path in report.foreign}):  # without a sector that says whose
                faults.append(f"left over: {left}")
    except DeskRagError as error:
        faults.append(f"does not open: {error}")
    except Exception as error:  # any other is a fault of the program's own, and a finding
        faults.append(f"a fault of its own: {type(error).__name__}: {error}")
    return [*faults, *_record_faults(root, reports)]


def _incomplete(root: Path, told: Reported) -> Iterable[str]:
    """A KV file that has its name is whole (FORMAT.md, invariant 3), before anybody has mended anything."""
    for file in made.kv_files(root):
        if file.stem not in told.damaged:
            try:
                check_content(file, (str(made.NS), file.stem))
            except (CorruptKV, UnknownFormat) as error:
                yield f"not whole under its name: {error.message}"


def _catalog_faults(store: Store, told: Reported) -> Iterable[str]:
    stored = {str(row.path): [p.chunk.text for p in store.passages_of(row.path)] for row in store.documents()}
    for path in told.documents.keys() | told.unsure.keys() | stored.keys():
        allowed = told.unsure.get(path, [told.documents.get(path)])
        if stored.get(path) not in allowed:
            yield f"document {path} holds {stored.get(path)}, not {' or '.join(map(str, allowed))}"
    for text in sorted(told.kept())[:3]:
        if made.chunk_id(text) not in [hit.chunk_id for hit in store.search_words(text, 1000)]:
            yield f"'{text}' is not found by its words"


def _kv_faults(store: Store, told: Reported, root: Path) -> Iterable[str]:
    texts = sorted({p.chunk.text for row in store.documents() for p in store.passages_of(row.path)})
    required = told.warm & told.kept()
    files = made.kv_files(root)
    for text, kv in zip(texts, store.get_kv([made.key(text) for text in texts]), strict=True):
        if kv is None and text in required:
            yield f"KV of '{text}' was reported done and is lost"
        elif kv is not None and not made.same(kv, made.kv_for(made.key(text))):
            yield f"KV of '{text}' is not what was written"
    for file in files:
        if not file.exists():
            yield f"{file.name} was taken for sound at the start and was not"


def _vector_faults(store: Store, told: Reported) -> Iterable[str]:
    required = told.vectors & told.kept()
    for text in sorted(required)[:6]:
        hits = store.search_vectors(EMBEDDER, vector_of(text), 1)
        if not hits or hits[0].score < 0.999 or hits[0].chunk_id != made.chunk_id(text):
            yield f"the vector of '{text}' is not the nearest to itself"
    with store._database.read() as connection:
        rows = connection.execute("SELECT c.text, v.vector FROM vectors v JOIN chunks c ON c.id = v.chunk").fetchall()
    vectors = {text: np.frombuffer(blob, dtype="<f4") for text, blob in rows}
    if missing := required - vectors.keys():
        yield f"vectors were reported done and are lost: {sorted(missing)}"
    for text, vector in vectors.items():
        if not np.allclose(vector, vector_of(text), atol=1e-6):
            yield f"the vector of '{text}' is another one"
    signs_by_chunk = store.token_vectors(EMBEDDER, [made.chunk_id(text) for text in vectors])
    for text in vectors:
        signs = signs_by_chunk.get(made.chunk_id(text))
        if signs is None or not np.array_equal(signs, pack_signs(vector_of(text)[None])):
            yield f"the token vectors of '{text}' are lost or others"


def _record_faults(root: Path, told: Reported) -> Iterable[str]:
    for name in told.records.keys() | told.unsure_records.keys():
        file = root / name
        text = file.read_text() if file.exists() else None
        if text not in told.unsure_records.get(name, [told.records.get(name)]):
            yield f"{name} was recorded as '{told.records.get(name, '')[:12]}' and is '{(text or 'not there')[:12]}'"
