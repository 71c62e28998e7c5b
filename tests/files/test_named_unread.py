"""A question that names a file or a kind of files that was not read is told so, with the reason and what helps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.answering.conversation import scope
from desk_rag.answering.conversation.scope import among_indexed
from desk_rag.answering.requirements.statements.languages import foreign_language
from desk_rag.documents.status import FileState
from desk_rag.ingest import unread
from desk_rag.store.store import Store
from tests.store import made

_DOCS = Path("/home/ada/docs")
_KIND = "not a kind of file that desk-rag reads"
_SCAN = "has no text layer (scanned pages need OCR first). Install the extra."


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    outcomes = {
        "boiler-invoice.pdf": (FileState.FAILED, f"{_DOCS / 'boiler-invoice.pdf'} {_SCAN}"),
        "IMG_2041.JPG": (FileState.SKIPPED, f"{_KIND} ('.JPG')"),
        "IMG_2042.JPG": (FileState.SKIPPED, f"{_KIND} ('.JPG')"),
        "lease.doc": (FileState.SKIPPED, f"{_KIND} ('.doc')"),
        "\x1b[31mred.zip": (FileState.SKIPPED, f"{_KIND} ('.zip')"),
    }
    with Store.open(tmp_path, made.settings(), writer=True) as opened:
        for name, (state, reason) in outcomes.items():
            opened.record_outcome(_DOCS / name, state, reason, None)
        yield opened


def named(store: Store, question: str, *, by_kind: bool = True, under: Path = _DOCS) -> list[str]:
    return unread.named_in(question, store, [under], by_kind=by_kind)


def test_a_named_file_is_said_to_be_unread_with_its_reason(store: Store) -> None:
    (sentence,) = named(store, "What is the total in boiler-invoice.pdf?", by_kind=False)
    assert sentence == f"boiler-invoice.pdf was not read: it {_SCAN}"
    assert named(store, "What does the boiler invoice say?") == [sentence], "its words name it too"
    (old,) = named(store, "Who signed lease.doc?")
    assert old.startswith("lease.doc was not read: an old Office") and ".docx" in old
    assert "\x1b" not in "".join(named(store, "What is in red.zip?"))


def test_a_kind_of_files_is_named_by_ordinary_words(store: Store) -> None:
    (photos,) = named(store, "What does the sign in the photo say?")
    assert photos.startswith("2 files not read: 2 images") and '`ocr = "all"`' in photos
    (scans,) = named(store, "What is the date on the scanned letter?")
    assert scans.startswith("1 scanned PDF file not read") and '"ocr"' in scans
    assert named(store, "What does the sign in the photo say?", by_kind=False) == []


@pytest.mark.parametrize(
    "question", ["When was the boiler serviced?", "Who wrote the invoice?", "Where is lease.docx?"]
)
def test_other_questions_name_no_file(store: Store, question: str) -> None:
    assert named(store, question) == []


def test_files_outside_the_asked_folders_are_not_named(store: Store) -> None:
    assert named(store, "What is in boiler-invoice.pdf?", under=Path("/home/ada/other")) == []


def test_an_unread_file_after_an_at_sign_is_no_unknown_name(store: Store) -> None:
    with pytest.raises(scope.UnknownName, match="boiler-invoice.pdf was not read: it has no text layer"):
        among_indexed("@boiler-invoice.pdf what is the total?", store, [])
    with pytest.raises(scope.UnknownName, match="is called"):
        among_indexed("@nowhere.pdf what is the total?", store, [])


def test_scans_and_locked_files_are_counted_by_their_reason(store: Store) -> None:
    store.record_outcome(_DOCS / "tax.pdf", FileState.FAILED, "tax.pdf is locked with a password.", None)
    missing = unread.may_hold_answer(store, [_DOCS])
    assert missing is not None and dict(missing.kinds) == {
        "images": 2, "scanned PDF files": 1, "old Office and iWork files": 1, "archives": 1,
        "locked with a password": 1}  # fmt: skip


@pytest.mark.parametrize(
    ("question", "language"),
    [
        ("Wo ist der Schlüssel?", "German"),
        ("Wann wird die Miete bezahlt?", "German"),
        ("Qui a réparé la chaudière ?", "French"),
        ("Combien coûte l'assurance de la voiture ?", "French"),
        ("Hoe hoog is de huurprijs?", "Dutch"),
        ("Who is Jan de Boer?", ""),
        ("¿Cuándo vence el contrato?", "Spanish"),
        ("Bis wann soll die Rechnung überwiesen werden?", "German"),
        ("Chi cura le piante?", "Italian"),
        ("Где ключ?", "Cyrillic script"),
        ("Where is the key?", ""),
        ("When does Der Spiegel arrive?", ""),
        ("How much is the Kaution at Müller und Söhne?", ""),
        ("What was it?", ""),
        ("camping fine Norrfell", ""),
        ("Am I allergic to penicillin?", ""),
        ("Do I do no sport?", ""),
        ("Co to jest za umowa?", "Polish"),
    ],
)
def test_language_of_a_question(question: str, language: str) -> None:
    assert foreign_language(question) == language
