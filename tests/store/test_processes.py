"""Several processes on one store: one writer, many readers, and what they tell each other."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from desk_rag.documents.status import IndexStage
from desk_rag.errors import StoreError, StoreLocked
from desk_rag.store.catalog import coordination
from desk_rag.store.store import Store
from desk_rag.store.types import Activity
from tests.store import made
from tests.store.made import warm

A = Path("/home/u/a.md")

RACER = """
import sys, time
from pathlib import Path
from desk_rag.config import StoreSettings
from desk_rag.errors import StoreLocked
from desk_rag.store.store import Store
print("ready", flush=True)
for line in sys.stdin:
    while time.time() < float(line):
        pass
    try:
        store = Store.open(Path(sys.argv[1]), StoreSettings(reserve_gib=0), writer=True)
    except StoreLocked as error:
        print("lost", error.message, flush=True)
    else:
        print("won", flush=True)
        sys.stdin.readline()
        store.close()
        print("closed", flush=True)
"""


def test_of_two_racing_processes_one_is_the_writer(root: Path) -> None:
    command = [sys.executable, "-c", RACER, str(root)]
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) for _ in range(2)
    ]
    says = [racer.stdout.readline for racer in racers]  # type: ignore[union-attr]
    hears = [racer.stdin.write for racer in racers]  # type: ignore[union-attr]
    assert [say() for say in says] == ["ready\n"] * 2
    for _ in range(5):
        start = f"{time.time() + 0.1}\n"
        for hear in hears:
            hear(start)
        lines = [say().split(maxsplit=1) for say in says]
        assert sorted(line[0] for line in lines) == ["lost", "won"]
        winner = [line[0] for line in lines].index("won")
        assert f"process {racers[winner].pid}" in lines[1 - winner][1]
        hears[winner]("\n")
        assert says[winner]() == "closed\n"
    for racer in racers:
        racer.communicate()
    assert [racer.returncode for racer in racers] == [0, 0]


def test_second_writer_in_one_process_is_refused(root: Path, store: Store) -> None:
    with pytest.raises(StoreLocked, match=f"process {os.getpid()}"):
        Store.open(root, made.settings(), writer=True)


def test_activity_and_pause_are_seen_by_others(root: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def activity(pid: int, at: float) -> Activity:
        return Activity(pid, at, IndexStage.WARM, 3, 9, "chunks", 1.5, None, "on battery", "a.md")

    with Store.open(root, made.settings(), writer=False) as reader:
        assert reader.activity() is None and reader.pause_requested() is None
        now = activity(os.getpid(), time.time())
        store.publish_activity(now)
        assert reader.activity() == now
        store.publish_activity(activity(os.getpid(), time.time() - 2 * coordination.STALE_SECONDS))
        assert reader.activity() is None
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        store.publish_activity(activity(gone.pid, time.time()))
        assert reader.activity() is None
        reader.request_pause(math.inf)
        assert store.pause_requested() == math.inf
        reader.request_pause(time.time() + 100)
        until = store.pause_requested()
        assert until is not None and until > time.time()
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + 101)
        assert store.pause_requested() is None
        reader.request_pause(None)
        assert store.pause_requested() is None


def test_bytes_of_caches_are_counted_by_day(store: Store, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put_document(made.document(A, ["a", "b"]), made.chunks(["a", "b"]), made.stamp())
    assert store.written_today() == 0
    assert warm(store, "a") and warm(store, "b") and warm(store, "b")
    size = sum(file.stat().st_size for file in made.kv_files(root))
    with Store.open(root, made.settings(), writer=False) as reader:
        assert reader.written_today() == size > 0
        monkeypatch.setattr(coordination, "_today", lambda: "2031-05-01")
        assert reader.written_today() == 0


def test_reader_may_not_write(root: Path, store: Store) -> None:
    with Store.open(root, made.settings(), writer=False) as reader:
        for act in (
            lambda: reader.put_document(made.document(A, []), [], made.stamp()),
            lambda: reader.remove_document(A),
            lambda: warm(reader, "x"),
            lambda: reader.put_vectors("e", [], np.zeros((0, 3), dtype=np.float32)),
            lambda: reader.verify(repair=True),
            lambda: reader.purge(A),
        ):
            with pytest.raises(StoreError, match="open for reading"):
                act()


def test_reader_answers_from_the_writers_store_and_asks_for_more(root: Path, store: Store) -> None:
    store.put_document(made.document(A, ["cold words", "warm"]), made.chunks(["cold words", "warm"]), made.stamp())
    warm(store, "warm")
    with Store.open(root, made.settings(), writer=False) as reader:
        assert made.same(reader.get_kv([made.key("warm")])[0], made.kv_for(made.key("warm")))
        assert len(reader.search_words("cold", 3)) == 1
        reader.want_kv([made.chunk_id("cold words")])
        reader.note_use([made.chunk_id("cold words")])
        counts = reader.counts(made.NS)
        assert counts.warm == 1 and counts.kv_bytes == store.counts(made.NS).kv_bytes > 0
        assert reader.verify().clean
    assert store.chunks_without_kv(made.NS, 1)[0].text == "cold words"
