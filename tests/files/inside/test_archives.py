"""Archives are read when somebody asks for them, and only then; within limits, and nothing is written for it."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from desk_rag.config import IndexSettings
from desk_rag.documents import document, file_chunks
from desk_rag.documents.formats import place_units
from desk_rag.documents.status import FileState
from desk_rag.errors import BrokenDocument, UnsupportedDocument
from desk_rag.ingest.pipeline import index_path, sync_folder
from desk_rag.model.prompt import PromptFormat, load_prompt
from desk_rag.store.store import Store
from tests.files.pdf_pages import pdf_of
from tests.store import made

PLAIN = IndexSettings()
ASKED = IndexSettings(archives=True)
KEY = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj\n" * 9
LEASE = pdf_of(*([(72.0, 700.0, 12.0, text)] for text in ("The lease begins in May.", "The deposit is 900 euro.")))
MEMBERS = {
    "notes/boat.md": b"# Boat\n\nThe keel is red.\n\nThe mast is 9 m.\n",
    "notes/lease.pdf": LEASE,
    "../up.txt": b"The ladder is in the loft.\n",
    "photo.png": b"\x89PNG\r\n\x1a\n123",
    "inner.zip": b"PK\x03\x04",
    ".hidden/diary.txt": b"My diary.\n",
    "passwords.txt": b"hunter2\n",
    "key.txt": KEY.encode(),
    "empty.txt": b"",
    "__MACOSX/._boat.md": b"Mac",
    "node_modules/x.js": b"let x = 1\n",
}


@pytest.fixture(scope="module")
def prompt(reader_dir: Path) -> PromptFormat:
    return load_prompt(reader_dir)


def zipped(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()


def taped(members: dict[str, bytes], mode: str = "w:gz") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        link = tarfile.TarInfo("notes/link.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("name", "mode"),
    [("old.zip", ""), ("old.tar", "w"), ("old.tgz", "w:gz"), ("old.tar.bz2", "w:bz2"), ("OLD.TAR.XZ", "w:xz")],
)
def test_files_inside_are_read_and_cited_by_their_path(
    tmp_path: Path, prompt: PromptFormat, name: str, mode: str
) -> None:
    path = tmp_path / name
    path.write_bytes(taped(MEMBERS, mode) if mode else zipped(MEMBERS))
    with pytest.raises(UnsupportedDocument):
        document.parse(path, PLAIN)
    read, chunks = file_chunks.read(path, ASKED, prompt, prompt.chunk_size, document.never)
    text = "\n".join(chunk.text for chunk in chunks)
    assert "keel is red" in text and "ladder is in the loft" in text
    assert not any(word in text for word in ("diary.", "hunter2", "BEGIN", "let x", "Mac\n", "root:"))
    assert read.note.startswith("3 files inside read; not read: ")
    for part in ("images (1)", "archives (1)", "hidden (1)", "that may hold secrets (2)", "empty (1)", "of tools (2)"):
        assert part in read.note
    places = {}
    for quote in ("The mast is 9 m.", "The deposit is 900 euro."):
        (chunk,) = (chunk for chunk in chunks if quote in chunk.text)
        location = replace(chunk.location, units=place_units(name))
        start = chunk.text.index(quote)
        places[quote] = str(location.within(chunk.text, start, start + len(quote)))
    assert list(places.values()) == ["!/notes/boat.md, line 5", "!/notes/lease.pdf, p. 2"]
    assert sorted(tmp_path.iterdir()) == [path]


def test_bombs_and_damaged_archives_end_within_the_limits(tmp_path: Path) -> None:
    bomb = zipped({"zeros.txt": b"0" * 30_000_000, "a.txt": b"The keel is red.\n"})
    many = zipped({f"{number}.txt": b"word " * 2000 for number in range(900)})
    for name, content, text in (("bomb.zip", bomb, "keel"), ("many.zip", many, "word")):
        (tmp_path / name).write_bytes(content)
        parsed = document.parse(tmp_path / name, ASKED)
        size = sum(len(block.text) for block in parsed.blocks)
        assert text in parsed.blocks[0].text and size <= ASKED.max_text_mib * 1024 * 1024
        assert "not read" in parsed.note
    for name, content in (("torn.zip", zipped(MEMBERS)[:300]), ("torn.tgz", taped(MEMBERS)[:40]), ("a.zip", b"text\n")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BrokenDocument):
            document.parse(tmp_path / name, ASKED)


def test_a_locked_file_inside_is_counted(tmp_path: Path) -> None:
    content = bytearray(zipped({"a.txt": b"The keel is red.\n", "b.txt": b"The mast.\n"}))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flag of encryption, of the second file
        at = content.rindex(mark)
        content[at + offset] |= 1
    (tmp_path / "locked.zip").write_bytes(content)
    assert document.parse(tmp_path / "locked.zip", ASKED).note.endswith("not read: locked with a password (1)")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "data", made.settings(), writer=True) as opened:
        yield opened


def test_an_archive_is_read_once_it_is_named_and_then_on(tmp_path: Path, store: Store, prompt: PromptFormat) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    named, other = docs / "named.zip", docs / "other.zip"
    for path in (named, other):
        path.write_bytes(zipped({"boat.md": b"The keel is red.\n"}))

    def sweep(settings: IndexSettings = PLAIN) -> None:
        for _ in sync_folder(store, docs, prompt, prompt.chunk_size, settings, lambda: False):
            pass

    def states() -> list[FileState]:
        rows = [store.document(path) for path in (named, other)]
        return [row.state for row in rows if row is not None]

    sweep()
    assert states() == [FileState.SKIPPED, FileState.SKIPPED]
    index_path(store, named, docs, prompt, prompt.chunk_size, PLAIN, by_name=True)
    sweep()
    assert states() == [FileState.INDEXED, FileState.SKIPPED]
    named.write_bytes(zipped({"boat.md": b"The keel is blue now.\n"}))
    sweep()
    assert states() == [FileState.INDEXED, FileState.SKIPPED]
    assert "blue now" in store.passages_of(named)[0].chunk.text
    named.write_bytes(b"damaged")
    sweep()
    named.write_bytes(zipped({"boat.md": b"The keel is green.\n"}))
    sweep()
    assert states() == [FileState.INDEXED, FileState.SKIPPED]
    store.remove_document(named)
    sweep()
    assert states() == [FileState.SKIPPED, FileState.SKIPPED], "forgotten, so nobody asks for it any more"
    sweep(ASKED)
    assert states() == [FileState.INDEXED, FileState.INDEXED]
    sweep()
    assert states() == [FileState.INDEXED, FileState.INDEXED], "what was asked for stays"
