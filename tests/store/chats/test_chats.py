"""Saved chats on real files: saved, found, forgotten, damaged, written by two processes."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from desk_rag.documents.chunking import Location
from desk_rag.documents.formats import place_units
from desk_rag.errors import ConfigError
from desk_rag.store import ownership
from desk_rag.store.chats.chats import Chats, forget_folder, open_chats, saved_text
from desk_rag.store.chats.records import SavedSource, SavedTurn
from desk_rag.store.layout import Layout

LEASE = SavedSource(
    1, Path("/desk/letters/lease.md"), "Lease", Location("Lease", line_start=3, line_end=4), "lines 3-4",
    "The lease ends on 30 June 2027.", "ab" * 32,
)  # fmt: skip
TURN = SavedTurn(
    "When does the lease end?", "", "30 June 2027", True, False, "embedded", "cached", 1000.0, (LEASE,),
    (Path("/desk/letters"),),
)  # fmt: skip
FOLLOW_UP = replace(TURN, question="And who signed it?", asked_as="Who signed the lease?", answer="Ruth Adler")
BOAT = SavedTurn("How long is the boat?", "", "5.2 metres", True, False, "embedded", "cached", 2000.0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Layout(tmp_path / "data").create()
    return tmp_path / "data"


def opened(root: Path) -> Chats:
    chats, notice = open_chats(root)
    assert chats is not None and not notice
    return chats


def test_a_chat_comes_back_as_it_was_saved(root: Path) -> None:
    chats = opened(root)
    number = chats.add(None, TURN).chat_id
    assert chats.add(number, FOLLOW_UP).chat_id == number
    other = chats.add(None, BOAT).chat_id
    chats.close()
    again = opened(root)
    chat = again.get(number)
    assert chat.title == "When does the lease end?" and chat.turns == (TURN, FOLLOW_UP)
    assert [(row.chat_id, row.num_turns) for row in again.rows()] == [(other, 1), (number, 2)]
    assert again.latest() == other
    assert stat.S_IMODE((root / "chats.sqlite").stat().st_mode) == 0o600


def test_file_names_that_are_no_text_are_kept(root: Path) -> None:
    odd = replace(TURN, sources=(replace(LEASE, path=Path(os.fsdecode(b"/desk/\xff.md"))),), limited_to=())
    chats = opened(root)
    assert chats.get(chats.add(None, odd).chat_id).turns[0].sources[0].path == odd.sources[0].path


def test_search_wants_all_words_in_one_turn(root: Path) -> None:
    chats = opened(root)
    number = chats.add(None, TURN).chat_id
    chats.add(number, FOLLOW_UP)
    chats.add(None, BOAT)
    assert [row.chat_id for row in chats.search("LEASE june")] == [number]
    assert [row.chat_id for row in chats.search("lease.md")] == [number]
    assert chats.search("ends")[0].excerpt == LEASE.quote, "the line in which the word stands"
    assert "Ruth Adler" in chats.search("adler")[0].excerpt
    assert chats.search("lease boat") == [] and chats.search("100%") == [] and chats.search(" ") == []


def test_delete_and_rename(root: Path) -> None:
    chats = opened(root)
    number = chats.add(None, TURN).chat_id
    chats.rename(number, "  The\nlease ")
    assert chats.rows()[0].title == "The lease"
    chats.delete(number)
    assert chats.rows() == [] and b"30 June 2027" not in (root / "chats.sqlite").read_bytes()
    for action in (lambda: chats.get(number), lambda: chats.delete(number), lambda: chats.rename(number, "x")):
        with pytest.raises(ConfigError, match=f"no chat {number}"):
            action()
    assert chats.add(number, BOAT).chat_id != number, "a number is never used again"


def test_deleting_the_only_turn_deletes_the_chat(root: Path) -> None:
    chats = opened(root)
    first = chats.add(None, TURN)
    second = chats.add(first.chat_id, FOLLOW_UP)
    chats.delete_turn(second)
    assert chats.get(first.chat_id).turns == (TURN,)
    chats.delete_turn(first)
    assert chats.rows() == []


def test_a_turn_asked_again_keeps_its_place(root: Path) -> None:
    chats = opened(root)
    first = chats.add(None, TURN)
    chats.add(first.chat_id, FOLLOW_UP)
    again = replace(TURN, answer="in June")
    assert chats.replace(first, again) == first
    assert chats.get(first.chat_id).turns == (again, FOLLOW_UP)
    assert chats.questions(5) == [FOLLOW_UP.question, TURN.question]
    chats.delete(first.chat_id)
    assert chats.replace(first, again).chat_id != first.chat_id


def test_purge_of_a_folder_takes_quotes_answers_and_rewritten_questions(root: Path) -> None:
    chats = opened(root)
    number = chats.add(None, TURN).chat_id
    chats.add(number, FOLLOW_UP)
    other = chats.add(None, BOAT).chat_id
    mixed = chats.add(other, FOLLOW_UP)
    last = replace(BOAT, question="And how wide?", asked_as="How wide is the boat of Ruth Adler?")
    chats.add(other, last)
    chats.close()
    assert forget_folder(root, Path("/desk/let")) == 0
    assert forget_folder(root, Path("/desk/letters")) == 3
    again = opened(root)
    assert [row.chat_id for row in again.rows()] == [other], "nothing is left of the first chat"
    assert again.get(other).turns == (BOAT, replace(last, asked_as="")) and mixed.chat_id == other
    content = (root / "chats.sqlite").read_bytes()
    assert b"30 June 2027" not in content and b"lease.md" not in content and b"Ruth" not in content


def test_turns_that_repeat_purged_text_go_and_the_chat_is_named_by_the_next(root: Path) -> None:
    chats = opened(root)
    number = chats.add(None, replace(BOAT, question="Is BLUE HERON the boat?")).chat_id
    chats.add(number, BOAT)
    other = chats.add(None, replace(BOAT, answer="It is the Blue Heron.")).chat_id
    chats.close()
    assert "Is BLUE HERON the boat?" in saved_text(root) and "It is the Blue Heron." in saved_text(root)
    assert forget_folder(root, Path("/desk/letters"), ["Blue Heron"]) == 2
    again = opened(root)
    assert [row.chat_id for row in again.rows()] == [number] and other != number
    assert again.get(number).title == BOAT.question and again.get(number).turns == (BOAT,)
    assert b"heron" not in (root / "chats.sqlite").read_bytes().lower()


def test_a_question_that_quotes_other_files_loses_only_its_line_about_the_purged_folder(root: Path) -> None:
    """The line of an unquoted source holds a title and a heading, which are text of the folder as well."""
    mail = Path("/desk/mail/archive.mbox")
    place = Location("Re: the boiler is broken again", line_start=9, line_end=12)
    unquoted = SavedSource(2, mail, "Letters of Idris Gwynne", place, "lines 9-12", "", "cd" * 32)
    kept = replace(TURN, sources=(LEASE, unquoted), notices=("Only 3 files were looked at",))
    refusal = replace(BOAT, answer="I could not find that.", found=False, sources=(unquoted,))
    named = replace(kept, answer="30 June 2027, not as in archive.mbox")
    chats = opened(root)
    cited = replace(kept, notices=("A mail of July 2019 says something else, see [2]",))
    numbers = [chats.add(None, turn).chat_id for turn in (kept, refusal, named, cited)]
    chats.close()
    pieces = ["Re: the boiler is broken again", "Letters of Idris Gwynne", "archive.mbox"]
    assert forget_folder(root, Path("/desk/mail"), pieces) == 2
    again = opened(root)
    assert again.get(numbers[0]).turns == (replace(TURN, notices=kept.notices),)
    assert again.get(numbers[1]).turns == (replace(refusal, sources=()),)
    for number in numbers[2:]:
        with pytest.raises(ConfigError):
            again.get(number)
    content = (root / "chats.sqlite").read_bytes()
    assert not [piece for piece in pieces if piece.encode() in content]


def test_purge_of_a_store_without_chats_makes_none(root: Path) -> None:
    assert forget_folder(root, Path("/desk")) == 0
    assert not (root / "chats.sqlite").exists()
    assert open_chats(root, create=False) == (None, "")


@pytest.mark.parametrize("damage", ["no database", "torn", "empty page"])
def test_damaged_chats_are_put_aside_and_begun_anew(root: Path, damage: str) -> None:
    chats = opened(root)
    for _ in range(30):
        chats.add(None, TURN)
    chats.close()
    file = root / "chats.sqlite"
    content = bytearray(file.read_bytes())
    if damage == "no database":
        content = bytearray(b"this is no database" * 400)
    elif damage == "torn":
        del content[len(content) // 2 :]
    else:
        content[4096:8192] = bytes(4096)
    file.write_bytes(content)
    again, notice = open_chats(root)
    assert again is not None and "put aside as quarantine/chats." in notice
    assert again.add(None, BOAT) and len(again.rows()) == 1
    (aside,) = (root / "quarantine").iterdir()
    assert aside.read_bytes() == bytes(content)
    assert list(ownership.foreign_in(root)) == [], "what desk-rag put aside is its own"


def test_chats_of_a_newer_version_are_left_alone(root: Path) -> None:
    opened(root).close()
    with sqlite3.connect(root / "chats.sqlite") as connection:
        connection.execute("PRAGMA user_version = 99")
    before = (root / "chats.sqlite").read_bytes()
    chats, notice = open_chats(root)
    assert chats is None and "newer desk-rag" in notice
    assert (root / "chats.sqlite").read_bytes() == before


def test_chats_of_an_older_version_are_read_and_go_on(root: Path) -> None:
    chats = opened(root)
    number = chats.add(None, TURN).chat_id
    chats.close()
    with sqlite3.connect(root / "chats.sqlite") as connection:
        connection.execute("ALTER TABLE turns DROP COLUMN notices")
        connection.execute("PRAGMA user_version = 1")
    again = opened(root)
    warned = replace(FOLLOW_UP, notices=("lease.md says something else", "2 files changed since"))
    again.add(number, warned)
    assert again.get(number).turns == (TURN, warned)


def test_link_in_place_of_the_chats_is_not_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.sqlite").write_bytes(b"")
    (root / "chats.sqlite").symlink_to(tmp_path / "mine.sqlite")
    chats, notice = open_chats(root)
    assert chats is None and "is a link" in notice
    assert (tmp_path / "mine.sqlite").read_bytes() == b""


def test_two_processes_write_at_once(root: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from desk_rag.store.chats.chats import open_chats\n"
        "from desk_rag.store.chats.records import SavedTurn\n"
        "chats, _ = open_chats(Path(sys.argv[1]))\n"
        "for n in range(25): chats.add(None, SavedTurn(f'q{n}', '', 'a', True, False, 'm', 'cached', 1.0))\n"
    )
    both = [subprocess.Popen([sys.executable, "-c", program, str(root)]) for _ in range(2)]
    assert [one.wait(timeout=60) for one in both] == [0, 0]
    assert len(opened(root).rows()) == 50


def test_chats_are_removed_with_the_store_and_are_not_foreign(root: Path) -> None:
    chats = opened(root)
    chats.add(None, TURN)
    chats.close()
    (root / "quarantine" / f"chats.{time.time_ns()}.{'0' * 16}.sqlite").write_bytes(b"somebody's notes")
    assert [path.name[:6] for path in ownership.foreign_in(root)] == ["chats."]
    cleared = ownership.clear(root)
    assert not (root / "chats.sqlite").exists()
    assert [path.name for path in cleared.remaining] == ["CACHEDIR.TAG", "quarantine"] or cleared.remaining


def test_a_place_reads_as_it_did_when_it_was_quoted(root: Path) -> None:
    path = Path("/desk/people.vcf")
    location = Location("Ruth Adler", 5, 7, units=place_units(path.name))
    source = replace(LEASE, path=path, location=location, place=str(location))
    chats = opened(root)
    number = chats.add(None, replace(TURN, sources=(source,))).chat_id
    saved = chats.get(number).turns[0].sources[0]
    assert str(saved.location) == str(location) == "entries 5-7"
