"""A change of `exclude` holds for the next answer, without a sweep: real files, store and parsers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.config import IndexSettings, Settings, default_path
from desk_rag.errors import StoreError
from desk_rag.ingest import deletions
from desk_rag.ingest.explanation import explain
from desk_rag.ingest.freshness import Backlog, look, read_small
from desk_rag.ingest.pipeline import sync_folder
from desk_rag.model.prompt import PromptFormat
from desk_rag.store.store import Store
from tests.store import made

BEFORE = IndexSettings()
_LONG = 60.0
_MORE_THAN_AN_ANSWER_READS = 40


def never() -> bool:
    return False


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    (folder / "mail").mkdir(parents=True)
    for number in range(_MORE_THAN_AN_ANSWER_READS):
        (folder / "mail" / f"{number}.txt").write_text(f"Mail {number}: Marta brings the goose.\n")
    (folder / "door.txt").write_text("The kitchen door is painted green.\n")
    (folder / "wifi passwords.txt").write_text("The guests' wifi is called Larkfield.\n")
    return folder


@pytest.fixture
def store(tmp_path: Path, docs: Path, prompt: PromptFormat) -> Iterator[Store]:
    with Store.open(tmp_path / "data", made.settings(), writer=True) as opened:
        sync(opened, docs, prompt, BEFORE)
        yield opened


def sync(store: Store, docs: Path, prompt: PromptFormat, settings: IndexSettings) -> None:
    for _ in sync_folder(store, docs, prompt, prompt.chunk_size, settings, never):
        pass


def answer_from(store: Store, docs: Path, prompt: PromptFormat, settings: IndexSettings) -> Backlog:
    """Do what is done before an answer."""
    backlog = look(store, [docs], settings, seconds=_LONG)
    return read_small(store, backlog, prompt, prompt.chunk_size, settings, never)


def names(store: Store, word: str) -> set[str]:
    passages = (store.passage(hit.chunk_id) for hit in store.search_words(word, 100))
    return {passage.path.name for passage in passages if passage is not None}


def test_a_folder_is_in_no_answer_from_when_it_is_excluded(store: Store, docs: Path, prompt: PromptFormat) -> None:
    assert len(names(store, "goose")) == _MORE_THAN_AN_ANSWER_READS
    after = IndexSettings(exclude=("mail/",))
    assert answer_from(store, docs, prompt, after) == Backlog(read=1)
    assert not names(store, "goose") and names(store, "kitchen") == {"door.txt"}
    row = store.document(docs / "mail")
    assert row is not None and row.reason == "exclude: mail/"
    assert look(store, [docs], after, seconds=_LONG) == Backlog(read=1), "looked at only once"
    assert not look(store, [docs / "door.txt"], after, seconds=_LONG).excluded


def test_what_is_no_longer_excluded_is_read_for_the_next_answer(
    store: Store, docs: Path, prompt: PromptFormat
) -> None:
    assert not names(store, "Larkfield")
    allowed = IndexSettings(exclude=("!wifi passwords.txt", "mail/"))
    assert answer_from(store, docs, prompt, allowed) == Backlog(read=2)
    assert names(store, "Larkfield") == {"wifi passwords.txt"}
    for path in list((docs / "mail").iterdir())[5:]:
        path.unlink()
    sync(store, docs, prompt, allowed)
    assert answer_from(store, docs, prompt, BEFORE) == Backlog(read=6)
    assert len(names(store, "goose")) == 5 and not names(store, "Larkfield")
    (docs / "mail" / "late.txt").write_text("Another goose comes later.\n")
    assert answer_from(store, docs, prompt, BEFORE).read == 7, "the folder counts as one that is read"


def test_how_to_have_a_secret_read_names_the_line_and_the_file_it_goes_into(store: Store, docs: Path) -> None:
    settings = Settings(folders=(docs,))
    reason = explain(store, docs / "wifi passwords.txt", settings, Path("/etc/mine.toml")).reason
    assert 'write exclude = ["!wifi passwords.txt"] under [index] in /etc/mine.toml' in reason
    assert str(default_path().name) in explain(store, docs / "wifi passwords.txt", settings).reason


def test_who_cannot_write_waits_and_then_refuses_to_quote(
    tmp_path: Path, store: Store, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletions, "_WAIT_SECONDS", 0.0)
    with Store.open(tmp_path / "data", made.settings(), writer=False) as reader:
        backlog = look(reader, [docs], IndexSettings(exclude=("door.txt",)), seconds=_LONG)
        assert backlog.excluded == (docs / "door.txt",)
        with pytest.raises(StoreError, match="still holds 1 file"):
            deletions.wait_until_taken_out(reader, backlog.excluded, never)
        store.remove_document(docs / "door.txt")
        deletions.wait_until_taken_out(reader, backlog.excluded, never)
