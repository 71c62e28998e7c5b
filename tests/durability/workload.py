"""A writer at work, recorded: `python -m tests.durability.workload JOBS`, a JSON list of jobs (`recording.Job`).

Everything the store writes comes about: documents put, edited, renamed and removed, vectors with a saved graph, chunk
KV, eviction, quarantine, purge, records of models, closing and opening again. Remarks in the log say what was begun and
what was reported done. A job may name a flush or an order that is taken out (`breaking.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from desk_rag.owned_directory import OwnedDirectory
from desk_rag.retrieval.token_vectors import pack_signs
from desk_rag.store.kv import reconcile
from desk_rag.store.store import Store
from desk_rag.store.vectors import search
from desk_rag.store.vectors.index import approximate_search_available
from tests.durability import breaking
from tests.durability.recording import begin, note
from tests.store import made
from tests.store.kill_child import die_at

EMBEDDER = "an embedder"
DIM = 8
SMALL_GRAPH = 12
"""Vectors from which a graph is made here."""
SECRET = "quixotry zanzibar "
ROOM = 40
"""KV files that fit."""
OFTEN: dict[str, float] = {
    "put": 8,
    "remove": 1,
    "rename": 1,
    "record": 1.2,
    "reopen": 0.8,
    "purge": 0.6,
    "damage": 0.4,
    "ask": 0.5,
}


def vector_of(text: str) -> NDArray[np.float32]:
    """The one right vector of a text, unit length."""
    seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())
    vector = np.random.default_rng(seed).normal(size=DIM).astype(np.float32)
    return vector / np.linalg.norm(vector)


def small_graphs() -> None:
    """Let graphs begin, and be saved, with a dozen vectors."""
    plain = search.VectorSearch.__init__

    def begun(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        plain(self, *args, **{**kwargs, "threshold": SMALL_GRAPH})

    search.VectorSearch.__init__ = begun  # type: ignore[method-assign]
    search._SAVE_AFTER = 6


def tell_of_evictions() -> None:
    """Have every file that is about to be given up noted before it goes."""
    plain = reconcile.KVIndex.mark_deleted

    def mark_deleted(self, rows):  # type: ignore[no-untyped-def]
        names = {row.row: row.name for row in self.all()}
        note(evicting=[names[row][1] for row in rows if row in names])
        return plain(self, rows)

    reconcile.KVIndex.mark_deleted = mark_deleted  # type: ignore[method-assign]


class Worker:
    """Writes by seed and notes what it does."""

    def __init__(self, root: Path, seed: int) -> None:
        self._root = root
        self._rng = random.Random(seed)
        self._store = self._open()
        self._texts = {
            str(row.path): [passage.chunk.text for passage in self._store.passages_of(row.path)]
            for row in self._store.documents()
        }
        note(restarted=self._texts)
        self._records = 1000 * seed

    def _open(self) -> Store:
        return Store.open(self._root, made.settings(budget_bytes=ROOM * 8192), writer=True)

    def run(self, steps: int, kinds: Sequence[str]) -> None:
        """Do `steps` things of these kinds, then close."""
        weights = [OFTEN[kind] for kind in kinds] if kinds == breaking.ALL else None
        for _ in range(steps):
            kind = self._rng.choices(kinds, weights)[0]
            getattr(self, f"_{kind}")()
        self._store.close()

    def _put(self, secret: str = "") -> None:
        path = f"/d/{self._rng.randrange(10)}"
        secret = secret or (SECRET if self._rng.random() < 0.2 else "")
        texts = [f"{secret}{path[3:]} item {self._rng.randrange(9)} part {p}" for p in range(self._rng.randrange(1, 5))]
        note(putting=path, texts=texts)
        self._store.put_document(made.document(Path(path), texts), made.chunks(texts), made.stamp())
        note(put=path, texts=texts)
        self._texts[path] = texts
        ids = [made.chunk_id(text) for text in texts]
        signs = [pack_signs(vector_of(text)[None]) for text in texts]
        self._store.put_vectors(EMBEDDER, ids, np.stack([vector_of(text) for text in texts]), signs)
        note(vectors=texts)
        for text in texts:
            key = made.key(text)
            note(warming=text)
            if self._store.put_kv(key, made.kv_for(key), [made.chunk_id(text)], 0.5):
                note(warm=text)

    def _remove(self) -> None:
        if self._texts:
            path = self._rng.choice(sorted(self._texts))
            note(removing=[path])
            self._store.remove_document(Path(path))
            note(removed=[path])
            del self._texts[path]

    def _rename(self) -> None:
        if self._texts:
            old, new = self._rng.choice(sorted(self._texts)), f"/d/{self._rng.randrange(10)}"
            if old != new:
                note(renaming=old, to=new)
                self._store.rename_document(Path(old), Path(new), made.stamp(21))
                note(renamed=old, to=new)
                self._texts[new] = self._texts.pop(old)

    def _record(self) -> None:
        name = self._rng.choice(("models/" + "ab" * 16 + ".safetensors", "models/names.json", "drives.json"))
        self._records += 1
        text = f"record {self._records} " * 90
        note(recording=name, text=text)
        OwnedDirectory(self._root).write(self._root / name, text.encode())
        note(recorded=name, text=text)

    def _reopen(self) -> None:
        self._store.close()
        self._store = self._open()

    def _purge(self) -> None:
        self._put(secret=SECRET)
        paths = [path for path, texts in self._texts.items() if any(SECRET in text for text in texts)]
        gone = [text for path in paths for text in self._texts[path]]
        for path in paths:
            note(removing=[path])
            self._store.purge(Path(path))
            note(removed=[path])
            del self._texts[path]
        all_texts = {text for texts in self._texts.values() for text in texts}
        note(purged=SECRET, texts=[text for text in gone if text not in all_texts])

    def _damage(self) -> None:
        files = made.kv_files(self._root)
        if files:
            file = self._rng.choice(files)
            note(evicting=[file.stem], damaged=True)
            with file.open("r+b") as opened:
                opened.seek(-1, 2)
                opened.write(b"\x55\xaa")  # another size: quarantine at the next start
            self._reopen()

    def _ask(self) -> None:
        texts = [text for texts in self._texts.values() for text in texts][:5]
        if texts:
            self._store.search_vectors(EMBEDDER, vector_of(texts[0]), 3)
            self._store.get_kv([made.key(text) for text in texts])
            self._store.note_use([made.chunk_id(text) for text in texts])


def work(place: Path, log: Path, seed: int, steps: int, broken: str, kills: int) -> None:
    """Do one job, recorded: some writers that are killed on the way, and one that comes to its end."""
    for life in range(kills):
        pid = os.fork()
        if pid == 0:
            begin_recording(place, log, broken)
            die_at(random.Random(f"{seed} {life}").randrange(20, 400))
            Worker(place / "data", seed + life).run(steps, breaking.ALL)
            os._exit(0)
        os.waitpid(pid, 0)
    kinds = begin_recording(place, log, broken)
    Worker(place / "data", seed + kills).run(steps, kinds)


def begin_recording(place: Path, log: Path, broken: str) -> Sequence[str]:
    """Prepare this process; returns what the workload does."""
    if approximate_search_available():
        small_graphs()
    tell_of_evictions()
    take_out, kinds = breaking.BREAKS[broken]
    take_out()
    begin(place, log)
    note(root_inode=place.stat().st_ino)
    return kinds


def main() -> None:
    """Each job in a fork of this process, so that the libraries are loaded once; no thread is begun before."""
    torch.set_num_threads(1)
    for place, log, seed, steps, broken, kills in json.loads(sys.argv[1]):
        pid = os.fork()
        if pid == 0:
            try:
                work(Path(place), Path(log), seed, steps, broken, kills)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        if os.waitpid(pid, 0)[1]:
            raise SystemExit(f"the job '{broken}' did not end well")


if __name__ == "__main__":
    main()
