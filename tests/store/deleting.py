"""Every way in which desk-rag removes, renames or re-modes something in its data directory, driven one after another.

Run as a program it does so in a mount namespace of its own, with a foreign directory mounted in the store.
"""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from desk_rag.device_lock import DeviceLock
from desk_rag.errors import StoreError
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.store import opening
from desk_rag.store.catalog.database import Database
from desk_rag.store.kv_directory import open_kv_directory
from desk_rag.store.layout import Layout
from desk_rag.store.maintenance.data_directory import clear_all
from desk_rag.store.maintenance.full_disk import PurgeSpace
from desk_rag.store.private_log import PrivateLog
from desk_rag.store.store import Store
from desk_rag.store.vectors.search import VectorSearch
from tests.store import made

TEXTS = [f"text {i}" for i in range(6)]
DOCUMENT = Path("/home/u/a.md")
NAMESPACE = made.NS[:16]
EMBEDDER = "e"
DIM = 8

Snapshot = dict[str, tuple[int, int, bytes]]


def fill(root: Path, kv_dir: Path | None = None) -> None:
    """A closed store with documents, warm chunks, a saved graph, records, logs and notes."""
    defaults = VectorSearch.__init__.__kwdefaults__
    threshold, defaults["threshold"] = defaults["threshold"], 3
    with Store.open(root, settings(kv_dir), writer=True) as store:
        for number, text in enumerate(TEXTS):
            path = DOCUMENT if number < 3 else Path(f"/home/u/sub/{number}.md")
            texts = TEXTS[:3] if number < 3 else [text]
            store.put_document(made.document(path, texts), made.chunks(texts), made.stamp())
        for text in TEXTS:
            assert store.put_kv(made.key(text), made.kv_for(made.key(text)), [made.chunk_id(text)], 0.5)
        store.put_vectors(EMBEDDER, [made.chunk_id(text) for text in TEXTS], unit(len(TEXTS)))
    defaults["threshold"] = threshold
    log(root, "first")
    DeviceLock(root / "run")
    OwnedDirectory(root).make_directory(root / "models")


def settings(kv_dir: Path | None = None, budget_bytes: int = 1 << 30):  # type: ignore[no-untyped-def]
    configured = made.settings(budget_bytes=budget_bytes)
    return configured if kv_dir is None else configured.model_copy(update={"kv_dir": str(kv_dir)})


def unit(count: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, DIM)).astype(np.float32)


def log(root: Path, text: str) -> None:
    handler = PrivateLog(root / "logs", "tui.log", most_bytes=200, old_files=2)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    try:
        for number in range(8):
            record = logging.LogRecord("desk_rag", logging.INFO, "", 0, f"{text} {number} {'.' * 60}", None, None)
            handler.emit(record)
    finally:
        handler.close()


def with_store(root: Path, kv_dir: Path | None, budget: int, *steps: Callable[[Store], object]) -> None:
    with Store.open(root, settings(kv_dir, budget), writer=True) as store:
        for step in steps:
            with suppress(StoreError, OSError):
                step(store)


def flip(root: Path, kv_dir: Path | None, text: str) -> None:
    layout = Layout(root, kv_dir)
    if not open_kv_directory(layout, writer=False).in_place():
        return
    path = layout.kv_file(*map(str, (made.key(text).namespace, made.key(text).tokens)))
    for part in (path, path.parent, path.parent.parent, path.parent.parent.parent):
        if part.is_symlink() or not part.exists():
            return
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)


def reading(root: Path, kv_dir: Path | None) -> None:
    with Store.open(root, settings(kv_dir), writer=False) as store:
        store.get_kv([made.key(text) for text in TEXTS])
        store.kv_files([made.key(text) for text in TEXTS])
        store.verify()


def room(root: Path, kv_dir: Path | None) -> None:
    layout = Layout(root, kv_dir)
    with opening.locked(layout):
        making = PurgeSpace(layout, Path("/home/u/sub"))
        with suppress(sqlite3.DatabaseError):
            database = Database(layout.catalog, read_only=True)
            making.free_some(database)
            making.free_some(database)
            database.close()
        making.free_some(None)


def former_note(root: Path) -> None:
    """Opening removes the note of an earlier version; what is not that note stays."""
    with suppress(StoreError, OSError):
        opening.open_directory(root, made.settings(), writer=True).close()


def turn(root: Path) -> None:
    one = DeviceLock(root / "run")
    with one.answering():
        DeviceLock(root / "run").answer_waits()
    one.answer_waits()


def whole(root: Path) -> None:
    with opening.locked(Layout(root)):
        clear_all(root)


def ways(root: Path, kv_dir: Path | None = None) -> dict[str, Callable[[], object]]:
    """All of them, by name, the ones that leave most first."""
    many = 1 << 30
    key, chunk = made.key(TEXTS[0]), made.chunk_id(TEXTS[0])
    return {
        "reading": lambda: reading(root, kv_dir),
        "start": lambda: with_store(root, kv_dir, many),
        "temporary files": lambda: OwnedDirectory(root).write(root / "drives.json", b'{"version": 1, "drives": {}}'),
        "logs": lambda: log(root, "again"),
        "turn": lambda: turn(root),
        "former_note": lambda: former_note(root),
        "write": lambda: with_store(
            root, kv_dir, many, lambda store: store.put_kv(key, made.kv_for(key), [chunk], 0.5)
        ),
        "quarantine": lambda: (
            flip(root, kv_dir, TEXTS[1]),
            with_store(root, kv_dir, many, lambda store: store.get_kv([made.key(TEXTS[1])])),
        ),
        "verify": lambda: (
            flip(root, kv_dir, TEXTS[2]),
            with_store(root, kv_dir, many, lambda store: store.verify(repair=True)),
        ),
        "empty quarantine": lambda: with_store(root, kv_dir, many, lambda store: store.empty_quarantine()),
        "vectors": lambda: with_store(
            root, kv_dir, many, lambda store: store.search_vectors(EMBEDDER, unit(1)[0], 3),
            lambda store: store.remove_document(Path("/home/u/sub/3.md")),
        ),
        "eviction": lambda: with_store(root, kv_dir, 2 * 8192),
        "purge": lambda: with_store(root, kv_dir, many, lambda store: store.purge(Path("/home/u/sub"), verify=True)),
        "full disk": lambda: room(root, kv_dir),
        "purge all": lambda: whole(root),
    }  # fmt: skip


def drive(root: Path, kv_dir: Path | None = None) -> int:
    """Drive all of them; a refusal in words is fine. Returns how many were refused."""
    refused = 0
    for way in ways(root, kv_dir).values():
        try:
            way()
        except (StoreError, OSError):
            refused += 1
    return refused


def snapshot(folder: Path) -> Snapshot:
    """Content, mode and number of names of everything in a folder, itself included."""
    contents: Snapshot = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        contents[str(path.relative_to(folder))] = (status.st_mode, status.st_mtime_ns if content else 0, content)
    return contents


def main() -> None:
    """`ROOT FOREIGN PLACE`: mount FOREIGN at PLACE of the store and drive all ways."""
    root, foreign, place = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    mounted = subprocess.run(["mount", "--bind", foreign, str(root / place)], capture_output=True, check=False)
    if mounted.returncode:
        print("mount is not allowed here")
        raise SystemExit(77)
    print(drive(root), time.time())


if __name__ == "__main__":
    main()
