"""What becomes of single files: named to `index`, locked and readable again, counted and found."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from desk_rag.config import StoreSettings
from desk_rag.ingest import freshness
from desk_rag.ingest.pipeline import sync_folder
from desk_rag.model.prompt import load_prompt
from desk_rag.store.store import Store
from desk_rag.tui.management.library import Library
from desk_rag.tui.management.session import Session
from tests.cli.folders.test_purging import Desk

READER = Path(__file__).resolve().parents[3] / "assets" / "reader"


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, capsys)


def read_by_words(desk: Desk) -> None:
    """Read the folder without making vectors."""
    from desk_rag.config import Settings

    settings, prompt = Settings(data_dir=desk.data), load_prompt(READER)
    with Store.open(desk.data, settings.store, writer=True) as store:
        for _ in sync_folder(store, desk.docs, prompt, prompt.chunk_size, settings.index, lambda: False):
            pass


def test_index_of_a_file_leaves_what_waits_of_others(desk: Desk) -> None:
    (desk.docs / "weather.log").write_text("".join(f"Day {day}: rain, {day % 30} mm.\n" for day in range(900)))
    note = desk.docs / "note.txt"
    note.write_text("The spare key lies under the third flower pot.\n")
    read_by_words(desk)
    code, _, err = desk.run("index", str(note), "--no-kv")
    assert code == 0 and "of other files can be found by words only so far" in err
    with Store.open(desk.data, StoreSettings(), writer=False) as store:
        embedder = store._vectors().fullest_embedder()
        assert embedder is not None and store.missing_vectors(embedder, under=[note]) == 0
        assert store.missing_vectors(embedder) > 3
        assert store.chunks_without_token_vectors(embedder, 9, [note]) == []
    assert desk.run("index", str(desk.docs), "--no-kv")[0] == 0
    with Store.open(desk.data, StoreSettings(), writer=False) as store:
        assert store.missing_vectors(embedder) == 0


@pytest.mark.skipif(os.name == "nt", reason="permissions of Unix")
def test_a_locked_file_is_read_at_the_next_look_once_it_can_be(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome that a locked file has is recorded as it was for one, because root may read everything."""
    from desk_rag.config import IndexSettings
    from desk_rag.documents.status import FileState

    letter = desk.docs / "letter.txt"
    letter.write_text("The parrot is called Quintus.\n")
    reason = f"{letter} cannot be read: {os.strerror(13)}. Check the file's permissions."
    with Store.open(desk.data, StoreSettings(), writer=True) as store:
        store.record_outcome(letter, FileState.FAILED, reason, None)
        monkeypatch.setattr(freshness, "LOOK_SECONDS", 10.0)
        with monkeypatch.context() as locked:
            locked.setattr(os, "access", lambda path, mode: False)
            assert freshness.look(store, [desk.docs], IndexSettings(), seconds=10).changed == ()
        assert freshness.look(store, [desk.docs], IndexSettings(), seconds=10).changed == (letter,)
    assert "the next run reads it" in desk.run("why", str(letter))[1]
    assert "Quintus" in desk.run("search", "parrot", "--words")[1]
    assert "indexed" in desk.run("why", str(letter))[1]


def test_numbers_of_files_left_out_agree(desk: Desk) -> None:
    (desk.docs / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    (desk.docs / "empty.txt").write_text("")
    (desk.docs / "to nowhere").symlink_to(desk.docs / "absent")
    (desk.docs / "again").symlink_to(desk.private)
    dry = desk.run("index", str(desk.docs), "--dry-run")[1]
    assert "+ 2 left out" in dry and "other" not in dry
    err = desk.run("index", str(desk.docs), "--no-kv")[2]
    assert "2 files left out: 1 image, 1 empty" in err or "2 files left out: 1 empty, 1 image" in err
    why = desk.run("why", str(desk.docs))[1]
    assert "2 left out" in why and "2 links or special files not counted" in why
    from desk_rag.config import Settings

    session = Session(Settings(data_dir=desk.data), [desk.docs])
    assert Library(session).summary(desk.docs).not_read.startswith("2 files left out")
    session.detach()
    assert json.loads(desk.run("ls", "--json")[1])["folders"][0]["left_out"]["files"] == 2


def test_search_joins_its_words_and_shows_those_that_match(desk: Desk) -> None:
    long = "Thymol gels work in the warm months, when bees fly, and every tray needs an empty frame above it. " * 3
    (desk.docs / "varroa.txt").write_text(f"{long}Oxalic acid is trickled, in a dose of 5 ml per seam.\n")
    found = desk.run("search", "oxalic", "acid", "dose", "--words")
    assert found[0] == 0 and "Oxalic acid is trickled, in a dose of 5 ml" in found[1]
    assert "the kitchen door" in desk.run("search", "kitchen door", "--words")[1].lower()


def test_why_says_how_many_messages_of_a_mailbox_were_read(desk: Desk) -> None:
    mails = (f"From: {name}@x.org\nSubject: Key\n\nIt lies below pot {name}.\n" for name in ("ana", "ben", "ida"))
    (desk.docs / "keys.mbox").write_text("\n".join(f"From sender@example\n{mail}" for mail in mails))
    read_by_words(desk)
    assert "keys.mbox: indexed; 3 messages, 3 chunks" in desk.run("why", str(desk.docs / "keys.mbox"))[1]
