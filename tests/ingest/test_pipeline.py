"""The linear path over real files, a real store, real parsers and the embedded reader."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from desk_rag.answering.auxiliary import open_auxiliary
from desk_rag.answering.serving_model import prepare_model
from desk_rag.bench.harness import corpus
from desk_rag.config import IndexSettings, ModelSettings, StoreSettings
from desk_rag.device_lock import DeviceLock
from desk_rag.documents.discovery import FoundFile
from desk_rag.documents.status import FileState, IndexStage
from desk_rag.errors import StoreFull
from desk_rag.ingest import background_prefill
from desk_rag.ingest.background_prefill import ChunkPrefiller, warm_pending
from desk_rag.ingest.events import FileEvent, IndexEvent, IndexFinished, RootAbsent, StageProgress
from desk_rag.ingest.freshness import look
from desk_rag.ingest.pipeline import embed_pending, index_path, sync_folder
from desk_rag.ingest.preview import changes
from desk_rag.kv import prefill
from desk_rag.kv.identity import kv_key
from desk_rag.kv.prefill import PrefixKV, prefill_prefix
from desk_rag.kv.prefix_variants.variants import PrefixVariant, PrefixVariants
from desk_rag.kv.quant import LayerScheme, QuantScheme, dequantize, quantize
from desk_rag.kv.serving import ServingModel
from desk_rag.kv.types import ChunkKV, Namespace
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.memory.plan import EMBEDDED_KV_BYTES_PER_TOKEN, cache_bytes
from desk_rag.model.prompt import PromptFormat
from desk_rag.retrieval.embedding import Embedder, load_embedder
from desk_rag.store.kv import chunk_file
from desk_rag.store.store import Store
from tests.loaded_once import loaded_once
from tests.models import FAMILIES, build_model

SETTINGS = IndexSettings()
STORE = StoreSettings(budget_gib=1, reserve_gib=0)
LETTER = "# Roof\n\nThe roofer comes on 14 May and asks for 1,200 euros in advance.\n"
NOTE = "The spare key lies under the third flower pot, says Aunt Wilhelmina.\n"


def never() -> bool:
    return False


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "letter.md").write_text(LETTER)
    (folder / "note.txt").write_text(NOTE)
    (folder / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "data", STORE, writer=True) as opened:
        yield opened


class Sync:
    """Runs sync_folder and keeps what it said."""

    def __init__(self, store: Store, prompt: PromptFormat, root: Path) -> None:
        self.store, self.prompt, self.root = store, prompt, root

    def __call__(
        self,
        *,
        defer: Callable[[FoundFile], bool] | None = None,
        stop: Callable[[], bool] = never,
        settings: IndexSettings = SETTINGS,
    ) -> list[IndexEvent]:
        return list(
            sync_folder(self.store, self.root, self.prompt, self.prompt.chunk_size, settings, stop, defer=defer)
        )

    def path(self, name: str) -> FileEvent:
        return index_path(self.store, self.root / name, self.root, self.prompt, self.prompt.chunk_size, SETTINGS)


@pytest.fixture
def sync(store: Store, prompt: PromptFormat, docs: Path) -> Sync:
    return Sync(store, prompt, docs)


def states(events: list[IndexEvent], root: Path) -> dict[str, FileState]:
    return {str(e.path.relative_to(root)): e.state for e in events if isinstance(e, FileEvent)}


def summary(events: list[IndexEvent]) -> IndexFinished:
    assert isinstance(events[-1], IndexFinished)
    return events[-1]


def found(store: Store, words: str) -> list[Path]:
    hits = store.search_words(words, 10)
    return [passage.path for hit in hits if (passage := store.passage(hit.chunk_id)) is not None]


def chunk_ids(store: Store, path: Path) -> list[str]:
    return [str(passage.chunk.chunk_id) for passage in store.passages_of(path)]


def test_first_run_indexes_and_says_what_it_left_out(sync: Sync, docs: Path) -> None:
    events = sync()
    assert states(events, docs) == {
        "letter.md": FileState.INDEXED,
        "note.txt": FileState.INDEXED,
        "photo.png": FileState.SKIPPED,
    }
    done = summary(events)
    assert (done.indexed, done.skipped, done.failed, done.removed) == (2, 1, 0, 0)
    assert done.chunks == sum(len(chunk_ids(sync.store, docs / name)) for name in ("letter.md", "note.txt")) == 2
    assert found(sync.store, "flower pot") == [docs / "note.txt"]
    row = sync.store.document(docs / "photo.png")
    assert row is not None
    assert "'.png'" in row.reason


def test_second_run_reads_nothing(sync: Sync, docs: Path) -> None:
    sync()
    before = sync.store.documents(docs)
    events = sync()
    assert sync.store.documents(docs) == before
    assert set(states(events, docs).values()) == {FileState.UNCHANGED, FileState.SKIPPED}
    assert not [e for e in events if isinstance(e, StageProgress) and e.stage is IndexStage.WORDS]
    assert summary(events).unchanged == 2


def test_progress_counts_up_to_its_total(sync: Sync, docs: Path) -> None:
    for n in range(5):
        (docs / f"more{n}.txt").write_text(f"Page {n} of the diary, with a word about the weather.\n")
    words = [e for e in sync() if isinstance(e, StageProgress) and e.stage is IndexStage.WORDS]
    assert [(e.done, e.total) for e in words] == [(n, 7) for n in range(1, 8)], "the photo is not opened"
    assert words[-1].rate > 0
    assert words[-1].eta_seconds == 0


def test_progress_and_preview_count_the_same_files(sync: Sync, docs: Path) -> None:
    (docs / "empty.txt").write_text("")
    (docs / "broken.pdf").write_bytes(b"no PDF at all")
    (docs / "plan.dwg").write_bytes(bytes(range(256)) * 9)  # told from text only when it is opened
    would_do = changes(None, [docs], SETTINGS)
    events = sync()
    totals = {e.total for e in events if isinstance(e, StageProgress) and e.stage is IndexStage.WORDS}
    assert totals == {len(would_do.new)} == {4}
    done = summary(events)
    assert done.indexed + done.failed + done.skipped == would_do.files == 6


def test_the_preview_foresees_the_size_of_the_caches(store: Store, prompt: PromptFormat, tmp_path: Path) -> None:
    docs = shutil.copytree(corpus.sample_folder(), tmp_path / "samples")
    foreseen = changes(None, [docs], SETTINGS).estimate.kv_bytes
    list(sync_folder(store, docs, prompt, prompt.chunk_size, SETTINGS, never))
    tokens = sum(passage.chunk.num_tokens for row in store.documents(docs) for passage in store.passages_of(row.path))
    real = tokens * EMBEDDED_KV_BYTES_PER_TOKEN * 1.05  # with the scales: 60.1 MiB were written
    assert abs(foreseen - real) <= 0.15 * real
    by_models = cache_bytes(store.text_characters(), EMBEDDED_KV_BYTES_PER_TOKEN, embedded=True)
    assert abs(by_models - real) <= 0.15 * real


def test_an_edit_replaces_the_chunks(sync: Sync, docs: Path) -> None:
    sync()
    (docs / "note.txt").write_text("The spare key hangs behind the barometer now.\n")
    assert states(sync(), docs)["note.txt"] is FileState.INDEXED
    assert found(sync.store, "barometer") == [docs / "note.txt"]
    assert found(sync.store, "Wilhelmina") == []


def test_an_older_time_is_a_change_too(sync: Sync, docs: Path) -> None:
    sync()
    (docs / "note.txt").write_text(NOTE.replace("third", "ninth"))  # same length
    os.utime(docs / "note.txt", (1_000_000_000, 1_000_000_000))
    assert states(sync(), docs)["note.txt"] is FileState.INDEXED
    assert found(sync.store, "ninth") == [docs / "note.txt"]


def test_a_second_write_with_the_same_time_and_size_is_not_missed(sync: Sync, docs: Path) -> None:
    """As on a FAT drive, where all that is written within two seconds may get the same time."""
    sync()
    note = docs / "note.txt"

    def write(word: str, second: int) -> None:
        note.write_text(NOTE.replace("third", word))
        os.utime(note, (second, second))

    for first, second in (("fourf", "fifth"), ("sixth", "ninth"), ("eight", "tenth")):
        time.sleep(1 - time.time() % 1)
        now = int(time.time())
        write(first, now)
        later = threading.Timer(1.0, write, (second, now))
        later.start()
        sync()
        later.join()
        if time.time() < now + 2.5:  # else this computer was too busy to write in time
            break
    sync()
    assert found(sync.store, second) == [note]


def test_a_change_whose_time_was_set_back_is_noticed(sync: Sync, docs: Path) -> None:
    """As by programs that copy into a file and give it the time of the original; the size may be the same."""
    note = docs / "note.txt"
    sync()
    before = note.stat()
    note.write_text(NOTE.replace("third", "ninth"))
    os.utime(note, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = note.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)
    assert look(sync.store, [docs], SETTINGS, seconds=60).changed == (note,)
    assert states(sync(), docs)["note.txt"] is FileState.INDEXED
    assert found(sync.store, "ninth") == [note] and not found(sync.store, "third")


def test_other_permissions_renew_the_stamp_and_nothing_else(sync: Sync, docs: Path) -> None:
    sync()
    before = sync.store.document(docs / "note.txt")
    (docs / "note.txt").chmod(0o640)
    assert states(sync(), docs)["note.txt"] is FileState.UNCHANGED
    after = sync.store.document(docs / "note.txt")
    assert before is not None and after is not None
    assert (after.stamp.ctime_ns, after.indexed_at) == ((docs / "note.txt").stat().st_ctime_ns, before.indexed_at)
    assert look(sync.store, [docs], SETTINGS, seconds=60).waiting == 0


def test_a_new_time_alone_renews_the_stamp_and_nothing_else(sync: Sync, docs: Path) -> None:
    sync()
    before = sync.store.document(docs / "note.txt")
    os.utime(docs / "note.txt", (1_000_000_000, 1_000_000_000))
    assert states(sync(), docs)["note.txt"] is FileState.UNCHANGED
    after = sync.store.document(docs / "note.txt")
    assert before is not None and after is not None
    assert after.stamp.mtime_ns == 1_000_000_000 * 10**9 != before.stamp.mtime_ns
    assert after.indexed_at == before.indexed_at


def test_a_deleted_file_disappears(sync: Sync, docs: Path) -> None:
    sync()
    (docs / "note.txt").unlink()
    events = sync()
    assert states(events, docs)["note.txt"] is FileState.REMOVED
    assert summary(events).removed == 1
    assert found(sync.store, "flower pot") == []
    assert sync.store.document(docs / "note.txt") is None


def test_a_deleted_file_that_was_never_indexed_leaves_the_ledger(sync: Sync, docs: Path) -> None:
    sync()
    (docs / "photo.png").unlink()
    sync()
    assert sync.store.document(docs / "photo.png") is None


def test_renames_of_files_and_folders_do_no_chunk_work(sync: Sync, docs: Path) -> None:
    (docs / "old").mkdir()
    for n in range(30):  # more than the removal brake lets go at once
        (docs / "old" / f"{n}.txt").write_text(f"Entry {n}: the barge was late again.\n")
    sync()
    before = {n: sync.store.document(docs / "old" / f"{n}.txt") for n in range(30)}
    (docs / "old").rename(docs / "new")
    (docs / "note.txt").rename(docs / "renamed.txt")
    events = sync()
    got = states(events, docs)
    assert {got[f"new/{n}.txt"] for n in range(30)} == {FileState.RENAMED}
    assert got["renamed.txt"] is FileState.RENAMED
    assert FileState.REMOVED not in got.values()
    assert sync.store.documents(docs / "old") == []
    for n in range(30):
        after, was = sync.store.document(docs / "new" / f"{n}.txt"), before[n]
        assert after is not None and was is not None
        assert after.indexed_at == was.indexed_at
    assert found(sync.store, "flower pot") == [docs / "renamed.txt"]


def test_a_file_moved_over_another_takes_its_place(sync: Sync, docs: Path) -> None:
    sync()
    (docs / "note.txt").replace(docs / "letter.md")
    sync()
    assert found(sync.store, "flower pot") == [docs / "letter.md"]
    assert found(sync.store, "roofer") == []
    assert sync.store.document(docs / "note.txt") is None


def test_two_files_with_the_same_content_share_chunks(sync: Sync, docs: Path) -> None:
    shutil.copy2(docs / "note.txt", docs / "copy.txt")
    sync()
    assert chunk_ids(sync.store, docs / "copy.txt") == chunk_ids(sync.store, docs / "note.txt") != []
    assert sync.store.counts().chunks == 2
    (docs / "note.txt").unlink()
    sync()
    assert found(sync.store, "flower pot") == [docs / "copy.txt"]


def test_swapped_files(sync: Sync, docs: Path) -> None:
    sync()
    (docs / "letter.md").rename(docs / "aside")
    (docs / "note.txt").rename(docs / "letter.md")
    (docs / "aside").rename(docs / "note.txt")
    sync()
    assert found(sync.store, "flower pot") == [docs / "letter.md"]
    assert found(sync.store, "roofer") == [docs / "note.txt"]


def test_a_broken_file_fails_once_and_the_rest_goes_on(sync: Sync, docs: Path) -> None:
    (docs / "bad.pdf").write_bytes(b"%PDF-1.4 nothing more")
    events = sync()
    assert states(events, docs)["bad.pdf"] is FileState.FAILED
    assert states(events, docs)["note.txt"] is FileState.INDEXED
    row = sync.store.document(docs / "bad.pdf")
    assert row is not None
    again = sync()
    assert sync.store.document(docs / "bad.pdf") == row
    assert not [e for e in again if isinstance(e, StageProgress) and e.stage is IndexStage.WORDS]
    assert summary(again).failed == 1
    (docs / "bad.pdf").unlink()
    shutil.copy(docs / "note.txt", docs / "bad.txt")
    assert summary(sync()).failed == 0


@pytest.mark.parametrize(("content", "state"), [(bytes(range(256)) * 8, FileState.FAILED), (b"", FileState.SKIPPED)])
def test_a_file_that_breaks_takes_its_old_content_out(sync: Sync, docs: Path, content: bytes, state: FileState) -> None:
    sync()
    (docs / "letter.md").write_bytes(content)
    assert states(sync(), docs)["letter.md"] is state
    assert found(sync.store, "roofer") == []
    (docs / "letter.md").write_text(LETTER)
    assert states(sync(), docs)["letter.md"] is FileState.INDEXED
    assert found(sync.store, "roofer") == [docs / "letter.md"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_told_and_tried_again(sync: Sync, docs: Path) -> None:
    (docs / "locked.txt").write_text("Nobody may read this.\n")
    (docs / "locked.txt").chmod(0)
    assert states(sync(), docs)["locked.txt"] is FileState.FAILED
    (docs / "locked.txt").chmod(0o600)
    assert states(sync(), docs)["locked.txt"] is FileState.INDEXED


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_folder_keeps_its_documents(sync: Sync, docs: Path) -> None:
    (docs / "sub").mkdir()
    (docs / "sub" / "a.txt").write_text("The hedgehog sleeps until March.\n")
    sync()
    (docs / "sub").chmod(0)
    try:
        sync()
        assert found(sync.store, "hedgehog") == [docs / "sub" / "a.txt"]
    finally:
        (docs / "sub").chmod(0o700)


def test_an_absent_root_never_deletes(sync: Sync, docs: Path, tmp_path: Path) -> None:
    sync()
    docs.rename(tmp_path / "away")
    events = sync()
    assert [type(e) for e in events] == [RootAbsent]
    assert sync.path("note.txt").state is FileState.UNCHANGED
    assert found(sync.store, "flower pot") == [docs / "note.txt"]
    (tmp_path / "away").rename(docs)
    assert summary(sync()).unchanged == 2


def test_an_emptied_root_never_deletes(sync: Sync, docs: Path) -> None:
    sync()
    for file in docs.iterdir():
        file.unlink()
    events = sync()
    assert [type(e) for e in events] == [RootAbsent]
    assert isinstance(events[0], RootAbsent)
    assert "empty" in events[0].reason
    assert sync.path("note.txt").state is FileState.UNCHANGED
    assert found(sync.store, "flower pot") == [docs / "note.txt"]


def test_an_empty_root_that_never_held_anything_is_just_empty(sync: Sync, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    sync.root = empty
    assert summary(sync()).indexed == 0


def test_a_new_ignore_rule_takes_documents_out_and_back(sync: Sync, docs: Path) -> None:
    (docs / "private").mkdir()
    (docs / "private" / "diary.txt").write_text("Dear diary, the geese are back.\n")
    sync()
    (docs / ".deskragignore").write_text("private/\nnote.txt\n")
    sync()
    assert found(sync.store, "geese") == []
    assert found(sync.store, "flower pot") == []
    (docs / ".deskragignore").unlink()
    sync()
    assert found(sync.store, "geese") == [docs / "private" / "diary.txt"]
    assert found(sync.store, "flower pot") == [docs / "note.txt"]


def test_the_data_directory_inside_the_folder_is_not_indexed(prompt: PromptFormat, docs: Path) -> None:
    with Store.open(docs / ".desk-rag", STORE, writer=True) as store:
        sync = Sync(store, prompt, docs)
        sync()
        (docs / ".desk-rag" / "logs" / "x.txt").parent.mkdir(exist_ok=True)
        (docs / ".desk-rag" / "logs" / "x.txt").write_text("A log line.\n")
        names = states(sync(), docs)
        assert {name for name in names if name.startswith(".desk-rag/")} == set()
        assert names["note.txt"] is FileState.UNCHANGED


def test_a_deferred_file_is_left_alone(sync: Sync, docs: Path) -> None:
    events = sync(defer=lambda file: file.path.name == "note.txt")
    assert states(events, docs)["note.txt"] is FileState.SKIPPED
    assert sync.store.document(docs / "note.txt") is None
    assert states(sync(), docs)["note.txt"] is FileState.INDEXED


def test_stop_is_honoured_between_files_and_a_second_run_goes_on(sync: Sync, docs: Path) -> None:
    for n in range(10):
        (docs / f"{n}.txt").write_text(f"Line {n} about the canal.\n")
    events: list[IndexEvent] = []
    run = sync_folder(
        sync.store, docs, sync.prompt, sync.prompt.chunk_size, SETTINGS, lambda: len(sync.store.documents(docs)) >= 4
    )
    events.extend(run)
    assert not [e for e in events if isinstance(e, IndexFinished)]
    assert len(sync.store.documents(docs)) == 4
    assert summary(sync()).indexed + 4 >= 12
    assert len([row for row in sync.store.documents(docs) if row.state is FileState.INDEXED]) == 12


def test_a_file_that_grows_all_the_time_is_never_committed_mixed(sync: Sync, docs: Path) -> None:
    file, ending = docs / "log.txt", threading.Event()

    def grow() -> None:
        with file.open("a") as out:
            while not ending.is_set():
                out.write("alpha beta gamma delta\n")
                out.flush()
                time.sleep(0.001)

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        for _ in range(5):
            sync()
            row = sync.store.document(file)
            if row is not None and row.state is FileState.INDEXED:
                text = "".join(p.chunk.text for p in sync.store.passages_of(file))
                assert len(text) <= row.stamp.size  # of one version
    finally:
        ending.set()
        writer.join()
    sync()
    row = sync.store.document(file)
    assert row is not None and row.state is FileState.INDEXED
    assert row.stamp.size == file.stat().st_size


def test_index_path(sync: Sync, docs: Path) -> None:
    assert sync.path("note.txt").state is FileState.INDEXED
    assert sync.path("note.txt").state is FileState.UNCHANGED
    assert sync.path("photo.png").state is FileState.SKIPPED
    (docs / "note.txt").rename(docs / "moved.txt")
    assert sync.path("moved.txt").state is FileState.RENAMED
    assert sync.path("note.txt").state is FileState.UNCHANGED  # nothing is known of it any more
    (docs / "moved.txt").unlink()
    assert sync.path("moved.txt").state is FileState.REMOVED
    assert sync.path("never-there.txt").state is FileState.UNCHANGED
    assert sync.path("letter.md").state is FileState.INDEXED
    (docs / "letter.md").unlink()
    (docs / "letter.md").mkdir()
    assert sync.path("letter.md").state is FileState.REMOVED
    assert sync.store.counts().chunks == 0


def test_index_path_of_a_copy_is_no_rename(sync: Sync, docs: Path) -> None:
    sync.path("note.txt")
    shutil.copy2(docs / "note.txt", docs / "copy.txt")
    assert sync.path("copy.txt").state is FileState.INDEXED
    assert {row.path.name for row in sync.store.documents(docs)} == {"note.txt", "copy.txt"}


def test_index_path_of_something_left_out_with_its_folder(sync: Sync, docs: Path) -> None:
    (docs / "sub").mkdir()
    (docs / "sub" / "a.txt").write_text("The hedgehog sleeps until March.\n")
    assert sync.path("sub/a.txt").state is FileState.INDEXED
    (docs / ".gitignore").write_text("sub/\n")
    event = sync.path("sub/a.txt")
    assert event.state is FileState.SKIPPED
    assert "sub/" in event.reason
    assert sync.store.document(docs / "sub" / "a.txt") is None


def test_another_parser_version_reads_again(sync: Sync, docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync()
    (docs / "letter.md").rename(docs / "roof.md")
    monkeypatch.setattr("desk_rag.documents.document.PARSER_VERSION", "another")
    got = states(sync(), docs)
    assert got["note.txt"] is FileState.INDEXED
    assert got["roof.md"] is FileState.INDEXED  # a rename would have kept what the old parsers made
    row = sync.store.document(docs / "note.txt")
    assert row is not None
    assert row.stamp.parser.startswith("another")


# Vectors and chunk KV -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return load_embedder(ModelSettings(device="cpu"))


@pytest.fixture(scope="module")
def prepared(reader: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> ServingModel:
    with loaded_once():
        return prepare_model(reader, tmp_path_factory.mktemp("prepared"))


def warm(
    store: Store,
    prepared: ServingModel,
    turn: DeviceLock,
    stop: Callable[[], bool] = never,
    may_run: Callable[[], str] = str,
) -> Iterator[StageProgress]:
    return warm_pending(store, prepared, turn, stop, may_run)


def test_embed_pending_gives_every_chunk_its_vector(sync: Sync, embedder: Embedder, docs: Path) -> None:
    for n in range(12):
        (docs / f"{n}.txt").write_text(f"Line {n} about the canal.\n")
    sync()
    events = list(embed_pending(sync.store, embedder, never))
    dones = [event.done for event in events]
    assert dones == sorted(dones) and (events[-1].done, events[-1].total, events[-1].unit) == (14, 14, "chunks")
    assert sync.store.counts(None, embedder.fingerprint).with_vectors == 14
    hits = sync.store.search_vectors(embedder.fingerprint, embedder.embed_question("Where is the key?"), 1)
    passage = sync.store.passage(hits[0].chunk_id)
    assert passage is not None
    assert passage.path == docs / "note.txt"
    assert list(embed_pending(sync.store, embedder, never)) == []


class Fussy:
    """An embedder with one text it cannot take, as a tokenizer with a defect would."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.fingerprint = embedder.fingerprint

    def encode_chunks(self, texts: list[str]) -> object:
        if any("third flower" in text for text in texts):
            raise ValueError("no")
        return self._embedder.encode_chunks(texts)


def test_one_chunk_that_cannot_be_embedded_does_not_hold_up_the_rest(sync: Sync, embedder: Embedder) -> None:
    sync()
    events = list(embed_pending(sync.store, Fussy(embedder), never))  # type: ignore[arg-type]
    assert events[-1].done == 2
    assert sync.store.counts(None, embedder.fingerprint).with_vectors == 1


class Timed:
    """An embedder that takes `seconds` per chunk by a clock of its own."""

    def __init__(self, embedder: Embedder, seconds: float) -> None:
        self._embedder, self._seconds = embedder, seconds
        self.fingerprint = embedder.fingerprint
        self.now = 0.0
        self.sizes: list[int] = []

    def encode_chunks(self, texts: list[str]) -> object:
        self.now += self._seconds * len(texts)
        self.sizes.append(len(texts))
        return self._embedder.encode_chunks(texts)


@pytest.mark.parametrize(("seconds", "sizes"), [(0.1, [1] * 10), (0.04, [1, 3, 3, 3]), (0.001, [1, 8, 1])])
def test_a_batch_is_as_large_as_it_may_delay_a_stop(
    sync: Sync, embedder: Embedder, docs: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, sizes: list[int]
) -> None:
    for n in range(8):
        (docs / f"{n}.txt").write_text(f"Line {n} about the canal.\n")
    sync()
    timed = Timed(embedder, seconds)
    monkeypatch.setattr("desk_rag.ingest.pipeline.time.monotonic", lambda: timed.now)
    list(embed_pending(sync.store, timed, never))  # type: ignore[arg-type]
    assert timed.sizes == sizes


def test_warm_pending_makes_chunks_warm_one_at_a_time(sync: Sync, prepared: ServingModel, tmp_path: Path) -> None:
    sync()
    events = list(warm(sync.store, prepared, DeviceLock(tmp_path / "run")))
    assert [(e.stage, e.done, e.total) for e in events] == [(IndexStage.WARM, 1, 2), (IndexStage.WARM, 2, 2)]
    assert sync.store.counts(prepared.namespace).warm == 2
    assert list(warm(sync.store, prepared, DeviceLock(tmp_path / "run"))) == []


def chunk_ids_of(sync: Sync, prepared: ServingModel) -> list[list[int]]:
    passages = [one for row in sync.store.documents() for one in sync.store.passages_of(row.path)]
    return [list(prepared.model.prompt.chunk_ids(one.chunk.text)) for one in passages]


def test_chunks_prefilled_together_are_stored_as_those_prefilled_alone(
    sync: Sync, prepared: ServingModel, tmp_path: Path, docs: Path
) -> None:
    for n in range(4):
        (docs / f"{n}.txt").write_text(f"Line {n} about the canal. " * (n + 1))
    sync()
    sync.store.register_model(prepared.prefix_variants.namespaces, None)
    warmer = ChunkPrefiller(sync.store, prepared, DeviceLock(tmp_path / "run"), never)
    warmer._at_once = 4  # as on a GPU
    sizes = []
    while tasks := warmer.next():
        sizes.append(len(tasks))
        assert warmer.warm(tasks) == ""
    assert sizes == [4, 2] and warmer.done == 6
    for ids in chunk_ids_of(sync, prepared):
        key = kv_key(prepared.namespace, ids)
        (file,) = sync.store.kv_files([key])
        assert file is not None
        together = dequantize(chunk_file.read(file.path, key))
        alone = dequantize(quantize(prefill.prefill_chunk(prepared.model, prepared.prefix, ids), prepared.scheme))
        for got, wanted in ((together.keys, alone.keys), (together.values, alone.values)):
            assert (got - wanted).square().mean().sqrt() < 0.01 * wanted.square().mean().sqrt()


@pytest.mark.parametrize("refused", [False, True])
def test_chunks_are_stored_while_the_next_ones_are_prefilled(
    sync: Sync, prepared: ServingModel, tmp_path: Path, docs: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """As on a GPU: each pass begins before the chunks of the one before are stored, and the end waits for all."""
    for n in range(4):
        (docs / f"{n}.txt").write_text(f"Line {n} about the canal.\n")
    sync()
    monkeypatch.setattr(background_prefill, "_is_beside", lambda _: True)
    monkeypatch.setattr(background_prefill, "_LAYER_SECONDS", 0.0)  # one chunk at a time
    began, order, put = threading.Event(), [], sync.store.put_kv
    whole = prefill.prefill_chunks

    def prefilled(*args: Any, **rest: Any) -> list[ChunkKV]:
        order.append("prefill")
        if order.count("prefill") == 2:
            began.set()
        return whole(*args, **rest)

    def stored(*args: Any) -> bool:
        assert began.wait(60), "the second chunk waits for the first one's file"
        order.append("store")
        return not refused and put(*args)

    monkeypatch.setattr(prefill, "prefill_chunks", prefilled)
    monkeypatch.setattr(sync.store, "put_kv", stored)
    events = list(warm(sync.store, prepared, DeviceLock(tmp_path / "run")))
    assert order.count("prefill") == order.count("store") == events[-1].done == 6
    assert order[:2] == ["prefill"] * 2 and order[-1] == "store"
    assert [event.done for event in events] == sorted({event.done for event in events})
    assert sync.store.counts(prepared.namespace).warm == (0 if refused else 6)


def test_a_full_drive_met_while_the_next_chunk_is_prefilled_ends_the_stage(
    sync: Sync, prepared: ServingModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync()
    monkeypatch.setattr(background_prefill, "_is_beside", lambda _: True)

    def full(*_: Any) -> bool:
        raise StoreFull("The drive is full.", remedy="Make room.")

    monkeypatch.setattr(sync.store, "put_kv", full)
    (event,) = warm(sync.store, prepared, DeviceLock(tmp_path / "run"))
    assert event.disk_full and event.waiting == "The drive is full." and event.done == 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kv-store")]


def test_a_chunk_that_fails_does_not_fail_those_prefilled_with_it(
    sync: Sync, prepared: ServingModel, tmp_path: Path, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync()
    sync.store.register_model(prepared.prefix_variants.namespaces, None)
    bad = list(prepared.model.prompt.chunk_ids(sync.store.passages_of(docs / "note.txt")[0].chunk.text))
    whole = prefill.prefill_chunks

    def fussy(model: LanguageModel, prefix: PrefixKV, chunks: list[list[int]], **rest: Any) -> list[ChunkKV]:
        if bad in [list(ids) for ids in chunks]:
            raise ValueError("no")
        return whole(model, prefix, chunks, **rest)

    monkeypatch.setattr(prefill, "prefill_chunks", fussy)
    warmer = ChunkPrefiller(sync.store, prepared, DeviceLock(tmp_path / "run"), never)
    warmer._at_once = 2
    outcomes = []
    while tasks := warmer.next():
        outcomes.append((len(tasks), warmer.warm(tasks)))
    assert outcomes == [(2, None), (1, ""), (1, "")]
    assert sync.store.counts(prepared.namespace).warm == 1


@pytest.mark.parametrize(
    ("seconds_of_layer", "sizes"), [(0.005, [1, 2, 4, 8, 8]), (0.015, [1, 1, 1, 1, 1]), (0.1, [1, 1, 1, 1, 1])]
)
def test_so_many_chunks_go_together_on_a_gpu_that_an_answer_waits_briefly(
    sync: Sync, prepared: ServingModel, tmp_path: Path, seconds_of_layer: float, sizes: list[int]
) -> None:
    warmer = ChunkPrefiller(sync.store, prepared, DeviceLock(tmp_path / "run"), never)
    on_gpu = replace(prepared.model, device=torch.device("cuda", 0))
    actual = []
    for _ in sizes:
        actual.append(warmer._at_once)
        warmer._adapt(on_gpu, warmer._at_once, seconds_of_layer * on_gpu.spec.num_layers)
    assert actual == sizes
    warmer._adapt(on_gpu, 8, 0.1 * on_gpu.spec.num_layers)
    assert warmer._at_once == 4
    warmer._adapt(prepared.model, 4, 0.0)
    assert warmer._at_once == 4, "a CPU gains nothing by it"


def test_the_auxiliary_model_is_warmed_after_the_answering_one_and_by_its_own_coding(
    sync: Sync, prepared: ServingModel, tmp_path: Path
) -> None:
    sync()
    small = build_model(FAMILIES[0])
    raw = replace(prepared.gate, scheme=QuantScheme.uniform(small.spec.num_layers, LayerScheme(raw=True)))
    plain = PrefixVariant(0, prefill_prefix(small), Namespace("0" * 32))
    auxiliary = ServingModel(small, PrefixVariants((plain,)), raw)
    both = replace(prepared, auxiliary=auxiliary)
    warmed = [
        (event.done, event.total, event.upper, sync.store.counts(prepared.namespace).warm)
        for event in warm(sync.store, both, DeviceLock(tmp_path / "run"))
    ]
    assert warmed == [(1, 4, False, 1), (2, 4, False, 2), (3, 4, True, 2), (4, 4, True, 2)]
    assert sync.store.counts(auxiliary.namespace).warm == 2 and (sync.store.auxiliary_share() or (0, 0))[1] == 2
    stored = open_auxiliary(auxiliary, sync.store)
    passages = [passage for row in sync.store.documents() for passage in sync.store.passages_of(row.path)]
    texts = [passage.chunk.text for passage in passages]
    assert all(stored.has(texts)) and len(texts) == 2
    assert len(stored.prefill(texts, lambda: True)) == 2, "all comes from the store, or it would have been cancelled"


def test_a_rename_keeps_chunks_warm_and_a_removal_takes_their_files(
    sync: Sync, prepared: ServingModel, tmp_path: Path, docs: Path
) -> None:
    sync()
    list(warm(sync.store, prepared, DeviceLock(tmp_path / "run")))
    files = sorted((tmp_path / "data" / "kv").rglob("*.safetensors"))
    assert len(files) == 2
    (docs / "note.txt").rename(docs / "moved.txt")
    sync()
    assert sync.store.counts(prepared.namespace).warm == 2
    assert sorted((tmp_path / "data" / "kv").rglob("*.safetensors")) == files
    (docs / "moved.txt").unlink()
    sync()
    assert sync.store.counts(prepared.namespace).warm == 1
    sync.store.empty_bin()
    assert len(list((tmp_path / "data" / "kv").rglob("*.safetensors"))) == 1


def test_what_is_wanted_is_warm_first(sync: Sync, prepared: ServingModel, tmp_path: Path, docs: Path) -> None:
    for n in range(5):
        (docs / f"{n}.txt").write_text(f"Line {n} about the canal.\n")
    sync()
    wanted = sync.store.passages_of(docs / "2.txt")[0].chunk.chunk_id
    sync.store.want_kv([wanted])
    next(warm(sync.store, prepared, DeviceLock(tmp_path / "run")))
    assert wanted not in {chunk.chunk_id for chunk in sync.store.chunks_without_kv(prepared.namespace, 100)}


def test_warming_waits_while_it_may_not_run(sync: Sync, prepared: ServingModel, tmp_path: Path) -> None:
    sync()
    reasons = ["the GPU is busy (43 %)", "on battery", ""]
    run = warm(sync.store, prepared, DeviceLock(tmp_path / "run"), may_run=lambda: reasons.pop(0) if reasons else "")
    assert [next(run).waiting for _ in range(3)] == ["the GPU is busy (43 %)", "on battery", ""]


def test_an_answer_preempts_a_chunk_in_the_middle(
    sync: Sync, prepared: ServingModel, tmp_path: Path, docs: Path, reader: LanguageModel
) -> None:
    (docs / "note.txt").unlink()
    (docs / "letter.md").write_text("The barge was late again, and the lock keeper said so. " * 20)
    sync()
    turn = DeviceLock(tmp_path / "run")
    in_layer, answered = threading.Event(), threading.Event()
    layers_run: list[int] = []

    def on_layer(*_: object) -> None:
        layers_run.append(threading.get_ident())
        if len(layers_run) == 3:
            in_layer.set()
            time.sleep(0.2)  # the answer arrives while this layer computes

    def answer() -> None:
        assert in_layer.wait(60)
        with turn.answering():
            done_before = len(layers_run)
            time.sleep(0.3)
            assert len(layers_run) == done_before  # nobody else used the model
        answered.set()

    hook = reader.decoder_layers[2].register_forward_hook(on_layer)
    thread = threading.Thread(target=answer)
    thread.start()
    other = [layer.register_forward_hook(on_layer) for layer in reader.decoder_layers[3:]]
    try:
        events = list(warm(sync.store, prepared, turn))
    finally:
        for handle in (hook, *other):
            handle.remove()
        thread.join()
    assert answered.is_set()
    assert any(e.waiting == "an answer is being made" for e in events)
    assert not events[-1].waiting
    assert events[-1].done == events[-1].total == sync.store.counts(prepared.namespace).warm


def test_warming_stops_in_the_middle_of_a_chunk(sync: Sync, prepared: ServingModel, tmp_path: Path) -> None:
    sync()
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls > 4

    assert list(warm(sync.store, prepared, DeviceLock(tmp_path / "run"), stop=stop)) == []
    assert sync.store.counts(prepared.namespace).warm == 0
    assert len(list(warm(sync.store, prepared, DeviceLock(tmp_path / "run")))) == 2


def test_a_disk_without_room_ends_warming_with_the_reason(
    prompt: PromptFormat, prepared: ServingModel, docs: Path
) -> None:
    full = StoreSettings(budget_gib=1, reserve_gib=1_000_000)
    with Store.open(docs.parent / "full", full, writer=True) as store:
        sync = Sync(store, prompt, docs)
        assert summary(sync()).indexed == 2  # everything else goes on
        events = list(warm(store, prepared, DeviceLock(docs.parent / "run")))
        assert events[-1].waiting == "there is no room for more caches"
        for name in ("note.txt", "letter.md"):
            for _ in range(3):  # asked for so often that it would be kept if there were room
                store.note_use([passage.chunk.chunk_id for passage in store.passages_of(docs / name)])
        events = list(warm(store, prepared, DeviceLock(docs.parent / "run")))
        assert "has no room" in events[-1].waiting
        assert store.counts(prepared.namespace).warm == 0


def test_a_rename_to_another_type_is_read_anew(sync: Sync, docs: Path) -> None:
    """The same bytes are other chunks under another parser: "# Barge" is a heading in one and text in the other."""
    text = "# Barge\n\nThe barge was late again, and nobody knew why.\n"
    (docs / "barge.txt").write_text(text)
    sync()
    (docs / "barge.txt").rename(docs / "barge.md")
    after = states(sync(), docs)
    assert after["barge.md"] is FileState.INDEXED
    assert after["barge.txt"] is FileState.REMOVED
    (docs / "barge.md").rename(docs / "ferry.md")
    assert states(sync(), docs)["ferry.md"] is FileState.RENAMED
