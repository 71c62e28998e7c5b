"""One file costs bounded time, memory and text; a stop is heard meanwhile; what was cut is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.config import IndexSettings, StoreSettings
from desk_rag.documents import document as documents
from desk_rag.documents import file_chunks
from desk_rag.documents.chunking import split
from desk_rag.documents.parsers.building import Parsed, first_bytes, first_lines
from desk_rag.documents.status import FileState, is_beginning_only
from desk_rag.errors import BrokenDocument, Cancelled, DocumentError, SecretDocument, UnreadableDocument
from desk_rag.ingest.events import FileEvent, IndexFinished
from desk_rag.ingest.pipeline import sync_folder
from desk_rag.model.prompt import PromptFormat, load_prompt
from desk_rag.store.store import Store
from tests.documents.test_sensitive import pem

SETTINGS = IndexSettings()
SMALL = IndexSettings(max_text_mib=0.05)
TITLES = "".join(f"T{number}\n======\n" for number in range(60_000))


@pytest.fixture(scope="module")
def prompt(reader_dir: Path) -> PromptFormat:
    return load_prompt(reader_dir)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "data", StoreSettings(budget_gib=1, reserve_gib=0), writer=True) as opened:
        yield opened


def test_the_child_makes_the_chunks_that_this_process_would(prompt: PromptFormat, sample_docs: Path) -> None:
    files = [path for path in sample_docs.rglob("*") if path.is_file() and documents.supported(path, IndexSettings())]
    assert len(files) > 20
    for path in files:
        document, chunks = file_chunks.read(path, SETTINGS, prompt, prompt.chunk_size, documents.never)
        whole = documents.parse(path, SETTINGS)
        assert chunks == split(whole, prompt, prompt.chunk_size), path
        assert (document.title, document.note, document.source) == (whole.title, whole.note, whole.source)


def test_a_stop_ends_reading_and_cutting_at_once(prompt: PromptFormat, tmp_path: Path) -> None:
    path = tmp_path / "titles.rst"
    path.write_text(TITLES)
    (tmp_path / "small.md").write_text("# Small\n")
    stopped = threading.Event()
    heard: list[float] = []

    def work() -> None:
        with pytest.raises(Cancelled):
            file_chunks.read(path, SETTINGS, prompt, prompt.chunk_size, stopped.is_set)
        heard.append(time.monotonic())

    file_chunks.read(tmp_path / "small.md", SETTINGS, prompt, prompt.chunk_size, documents.never)  # the child is there
    child = documents._parser(SETTINGS.parser_mib).pid
    worker = threading.Thread(target=work)
    worker.start()
    time.sleep(0.5)
    assert worker.is_alive(), "cutting takes several seconds"
    stopped.set()
    worker.join(10)
    assert heard
    assert documents._parser(SETTINGS.parser_mib).pid != child, "the child does not go on"
    document, chunks = file_chunks.read(tmp_path / "small.md", SETTINGS, prompt, prompt.chunk_size, documents.never)
    assert len(chunks) == 1 and document.title == "Small"


def test_a_stopped_run_notes_nothing_of_the_file_and_the_next_one_reads_it(
    prompt: PromptFormat, store: Store, tmp_path: Path
) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "titles.rst").write_text(TITLES[:90_000])
    end = time.monotonic() + 0.3
    run = sync_folder(store, docs, prompt, prompt.chunk_size, SETTINGS, lambda: time.monotonic() > end)
    assert not [event for event in run if isinstance(event, FileEvent | IndexFinished)]
    assert store.documents() == []
    run = sync_folder(store, docs, prompt, prompt.chunk_size, SETTINGS, documents.never)
    assert [event.state for event in run if isinstance(event, FileEvent)] == [FileState.INDEXED]


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="a process that is ended on Windows does not say by what")
def test_a_parser_that_is_asked_to_end_is_no_fault_of_the_file(prompt: PromptFormat, tmp_path: Path) -> None:
    """As `systemctl stop` asks every process of a service, and a session that ends all of its own."""
    path = tmp_path / "titles.rst"
    path.write_text(TITLES)
    settings = IndexSettings(parser_mib=2000)  # a child of its own
    parser = documents._parser(settings.parser_mib)
    errors: list[DocumentError] = []

    def work() -> None:
        try:
            file_chunks.read(path, settings, prompt, prompt.chunk_size, documents.never)
        except DocumentError as error:
            errors.append(error)

    worker, ended = threading.Thread(target=work), set[int]()
    worker.start()
    while worker.is_alive():
        pid = parser.pid
        if pid is not None and pid not in ended:
            os.kill(pid, signal.SIGTERM)
            ended.add(pid)
        worker.join(0.01)
    assert len(ended) == 3
    assert [type(error) for error in errors] == [UnreadableDocument], "which is tried again, unlike a broken document"
    assert "another program ended the parser process" in errors[0].message
    assert file_chunks.read(path, settings, prompt, prompt.chunk_size, documents.never)[1]


KILLED = """
import sys, threading, time
from pathlib import Path
from desk_rag.config import IndexSettings
from desk_rag.documents import document, parser_process
from desk_rag.errors import DeskRagError

def work():
    try:
        document.parse(Path(sys.argv[1]), IndexSettings())
    except DeskRagError as error:
        print(type(error).__name__)

worker = threading.Thread(target=work)
worker.start()
while document._parser(IndexSettings().parser_mib).pid is None:
    time.sleep(0.01)
parser_process.kill_children()
worker.join()
"""


def test_ctrl_c_blames_no_file_for_the_parser_that_it_kills(tmp_path: Path) -> None:
    path = tmp_path / "titles.rst"
    path.write_text(TITLES)
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, str(path)], capture_output=True, text=True, timeout=120, check=True
    )
    assert ran.stdout == "Cancelled\n"


def test_cutting_that_takes_too_long_is_a_state_of_that_file(
    prompt: PromptFormat, store: Store, tmp_path: Path
) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "titles.rst").write_text(TITLES)
    (docs / "ok.md").write_text("The lighthouse is open on Sundays.\n")
    hasty = IndexSettings(parser_seconds=1)
    with pytest.raises(BrokenDocument, match="longer than 1 s"):
        file_chunks.read(docs / "titles.rst", hasty, prompt, prompt.chunk_size, documents.never)
    events = list(sync_folder(store, docs, prompt, prompt.chunk_size, hasty, documents.never))
    states = {event.path.name: event.state for event in events if isinstance(event, FileEvent)}
    assert states == {"titles.rst": FileState.FAILED, "ok.md": FileState.INDEXED}
    row = store.document(docs / "titles.rst")
    assert row is not None and "parser_seconds" in row.reason


LONG: dict[str, str | bytes] = {
    "line.txt": "word and words " * 20_000,
    "header.csv": ",".join(f"column{number}" for number in range(40_000)),
    "dots.md": "1.1.1." * 40_000,
    "and.html": "<html><body>" + "&" * 200_000,
    "data.json": "[" + ",".join('{"id": ' + str(number) + "}" for number in range(30_000)) + "]",
    "rows.csv": "id,name\n" + "".join(f"{number},n{number}\n" for number in range(20_000)),
    "crumbs.txt": "a\n\n" * 10_000,
    "book.txt": "The lighthouse keeper climbs the stairs.\n\n" * 5_000,
    "utf16.txt": ("The lighthouse keeper climbs.\n" * 5_000).encode("utf-16"),
    "page.html": "<html><body>" + "<p>The lighthouse keeper climbs.</p>" * 5_000,
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_text_is_indexed_from_its_beginning(prompt: PromptFormat, tmp_path: Path, name: str) -> None:
    path, content = tmp_path / name, LONG[name]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    document, chunks = file_chunks.read(path, SMALL, prompt, prompt.chunk_size, documents.never)
    assert is_beginning_only(document.note) and "max_text_mib" in document.note
    assert chunks and all(chunk.num_tokens <= prompt.chunk_size.largest for chunk in chunks)
    largest = 0.05 * 2**20 * (1 if name != "rows.csv" else 1.2)  # chunk title lines come on top
    assert sum(len(chunk.text.encode()) for chunk in chunks) < 2 * largest
    whole = documents.parse(path, SETTINGS)
    assert not is_beginning_only(whole.note), "the default takes it whole"
    beginning = [block.text[:40] for block in whole.blocks[:1]]
    assert " ".join(beginning[0].split())[:20] in " ".join(chunks[0].text.split())


def test_cutting_ends_behind_a_block_a_line_or_a_word() -> None:
    assert first_lines("one two three\nfour five", 20) == ("one two three", True)
    assert first_lines("one two three", 9) == ("one two", True)
    assert first_lines("one two three", 13) == ("one two three", False)
    assert first_lines("ééééé", 5) == ("éé", True)
    text = "\n".join(f"Line {number} of the long paragraph." for number in range(50))
    block = documents.Block(text, documents.BlockKind.PARAGRAPH, line_start=3, line_end=52)
    parsed, kept = first_bytes(Parsed("T", (block, block)), 300)
    assert kept is not None and kept <= 300
    (cut,) = parsed.blocks
    assert text.startswith(cut.text) and cut.text.endswith("paragraph.")
    assert cut.line_end == 3 + cut.text.count("\n")
    assert first_bytes(Parsed("T", (block,)), 10_000) == (Parsed("T", (block,)), None)


def test_of_a_huge_plain_file_only_the_beginning_is_read_and_its_end_may_change(
    prompt: PromptFormat, store: Store, tmp_path: Path
) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    log = docs / "huge.log"
    log.write_text("The lighthouse log goes on.\n\n" * 100_000 + "the end\n")
    lines = IndexSettings(max_file_mib=1, max_text_mib=0.002)

    def run(settings: IndexSettings) -> tuple[FileEvent, IndexFinished]:
        events = list(sync_folder(store, docs, prompt, prompt.chunk_size, settings, documents.never))
        (event,) = [event for event in events if isinstance(event, FileEvent)]
        assert isinstance(events[-1], IndexFinished)
        return event, events[-1]

    event, finished = run(lines)
    assert event.state is FileState.INDEXED and is_beginning_only(event.reason) and finished.beginnings == 1
    assert store.search_words("lighthouse", 3)
    row = store.document(log)
    assert row is not None and is_beginning_only(row.reason)
    with log.open("r+b") as file:
        file.seek(-8, 2)
        file.write(b"THE END\n")
    os.utime(log, (1_600_000_000, 1_600_000_000))
    assert run(lines)[0].state is FileState.UNCHANGED
    event, finished = run(IndexSettings(max_text_mib=0.003))
    assert event.state is FileState.INDEXED and finished.beginnings == 1, "another limit reads it again"


def test_a_secret_content_is_left_out_until_it_is_allowed(prompt: PromptFormat, store: Store, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "backup.txt").write_text(pem())
    (docs / "key.html").write_text(f"<html><body><pre>{pem()}</pre></body></html>")
    (docs / "ok.md").write_text("The lighthouse is open on Sundays.\n")
    with pytest.raises(SecretDocument):
        file_chunks.read(docs / "backup.txt", SETTINGS, prompt, prompt.chunk_size, documents.never)

    def run(*exclude: str) -> dict[str, FileState]:
        settings = IndexSettings(exclude=exclude)
        events = sync_folder(store, docs, prompt, prompt.chunk_size, settings, documents.never)
        return {event.path.name: event.state for event in events if isinstance(event, FileEvent)}

    left_out = {"backup.txt": FileState.SKIPPED, "key.html": FileState.SKIPPED, "ok.md": FileState.INDEXED}
    assert run() == left_out
    row = store.document(docs / "backup.txt")
    assert row is not None and row.reason == "secret: the content is a private key"
    assert run("!backup.txt")["backup.txt"] is FileState.INDEXED
    assert run() == left_out | {"ok.md": FileState.UNCHANGED}, "no longer allowed"


def test_a_file_in_use_by_another_program_is_said_to_be_and_read_at_the_next_look(
    prompt: PromptFormat, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, where a program may lock others out of a file."""
    docs = tmp_path / "docs"
    docs.mkdir()
    path = docs / "ledger.txt"
    path.write_text("The ledger was closed in March.\n")

    def look() -> list[FileEvent]:
        events = sync_folder(store, docs, prompt, prompt.chunk_size, SETTINGS, documents.never)
        return [event for event in events if isinstance(event, FileEvent)]

    def refuse(name: object, *_: object, **__: object) -> int:
        error = PermissionError(13, "The process cannot access the file")
        error.winerror = 32  # type: ignore[attr-defined]
        raise error

    with monkeypatch.context() as locked:
        locked.setattr(documents, "os", ModuleLike(os, open=refuse))
        (event,) = look()
    assert event.state is FileState.FAILED and "in use by another program. It will be read again" in event.reason
    (event,) = look()
    assert event.state is FileState.INDEXED


class ModuleLike:
    """A module with some functions exchanged."""

    def __init__(self, module: object, **changed: object) -> None:
        self._module = module
        self.__dict__.update(changed)

    def __getattr__(self, name: str) -> object:
        return getattr(self._module, name)
