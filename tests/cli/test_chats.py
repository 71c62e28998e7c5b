"""Follow-ups, names in questions and saved chats from the shell: the real reader on real files."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
import stat
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from desk_rag.cli import main
from desk_rag.config import Settings
from desk_rag.store.chats.chats import open_chats
from desk_rag.store.chats.records import SavedTurn
from desk_rag.tui.management.library_changes import LibraryChanges
from desk_rag.tui.management.session import Session

DISHWASHER = (
    "# Dishwasher\n\nThe dishwasher in the kitchen was repaired on 3 May 2025 by Jonas Weil of Weil Appliances. "
    "The repair cost 140 euros and the pump was replaced.\n"
)
LEASE = "# Lease\n\nThe lease of the flat in Mill Lane ends on 30 June 2027. It was signed by Ruth Adler.\n"


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Desk:
    documents: Path
    data: Path
    capsys: pytest.CaptureFixture[str]

    def run(self, *words: str) -> Ran:
        """One command in this process."""
        self.capsys.readouterr()
        code = main.main([*words, "--data-dir", str(self.data)])
        shown = self.capsys.readouterr()
        return Ran(code, shown.out, shown.err)

    def json(self, *words: str) -> dict[str, object]:
        ran = self.run(*words, "--json")
        assert ran.code == 0, ran.err
        return dict(json.loads(ran.out))


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    documents = tmp_path / "documents"
    (documents / "letters").mkdir(parents=True)
    (documents / "dishwasher.md").write_text(DISHWASHER, encoding="utf-8")
    (documents / "letters" / "my lease.md").write_text(LEASE, encoding="utf-8")
    desk = Desk(documents, tmp_path / "data", capsys)
    assert desk.run("index", str(documents), "--no-kv").code == 0
    return desk


def test_a_chat_is_continued_shown_exported_and_deleted(desk: Desk) -> None:
    first = desk.json("ask", "When was the dishwasher repaired?")
    assert first["answer"] == "3 May 2025" and first["chat"] == 1 and first["asked_as"] is None
    second = desk.json("ask", "And who repaired it?", "--continue")
    assert second["asked_as"] == "Who repaired the dishwasher?" and second["answer"] == "Jonas Weil"
    assert second["chat"] == 1
    other = desk.run("ask", "When does the lease of the flat end?")
    assert "30 June 2027" in other.out
    third = desk.run("ask", "--continue", "1", "How much did the repair cost?")
    assert "(asked as: How much did the repair of the dishwasher cost?)" in third.out and "140 euros" in third.out
    listed = desk.run("chats").out.splitlines()
    assert [line.split()[0] for line in listed] == ["1", "2"] and "3 turns" in listed[0]
    shown = desk.run("chats", "show", "1").out
    assert "> And who repaired it?" in shown and "“The repair cost 140 euros and the pump was replaced.”" in shown
    assert desk.run("chats", "search", "jonas", "--json").out.count('"chat": 1') == 1
    exported = desk.run("chats", "export", "1").out
    assert "## And who repaired it?\n\nAsked as: Who repaired the dishwasher?" in exported
    assert "dishwasher.md` line 3\n  > The dishwasher" in exported
    chat = json.loads(desk.run("chats", "export", "1", "--format", "json").out)
    assert [turn["question"] for turn in chat["turns"]][1] == "And who repaired it?"
    source = chat["turns"][0]["sources"][0]
    assert source["path"] == str(desk.documents / "dishwasher.md") and len(source["blake2b_256"]) == 64
    assert source["change"] is None
    (desk.documents / "dishwasher.md").write_text("# Dishwasher\n\nSold.\n", encoding="utf-8")
    (desk.documents / "letters" / "my lease.md").unlink()
    assert "(changed since)" in desk.run("chats", "show", "1").out
    assert "(gone)" in desk.run("chats", "export", "2").out
    assert desk.run("chats", "delete", "1").code == 2, "without a terminal it needs --yes"
    assert desk.run("chats", "delete", "1", "--yes").code == 0
    assert desk.run("chats", "show", "1").code == 2


def test_what_was_said_below_an_answer_stays_with_it(desk: Desk) -> None:
    """What goes to somebody else must not look more certain than it was."""
    (desk.documents / "letters" / "lease 2026.md").write_text(
        "# Lease\n\nThe lease of the flat in Mill Lane ends on 31 July 2029.\n", encoding="utf-8"
    )
    printed = desk.run("ask", "When does the lease of the flat in Mill Lane end?").out
    (warning,) = [line.strip("()") for line in printed.splitlines() if "says something else" in line]
    assert f"({warning})" in desk.run("chats", "show", "1").out.splitlines()
    assert warning.replace("[", "\\[").replace("]", "\\]") in desk.run("chats", "export", "1").out
    (turn,) = desk.json("chats", "export", "1")["turns"]  # type: ignore[misc]
    assert warning in turn["notices"]
    assert desk.run("chats", "search", "says something else").out, "what is shown is found"
    assert desk.run("purge", str(desk.documents / "letters" / "lease 2026.md"), "--yes", "--verify").code == 0
    assert "lease 2026" not in json.dumps(desk.json("chats"))
    assert desk.run("chats", "show", "1").code == 2, "a turn that cites a forgotten file goes with it"


def test_greetings_and_lines_without_a_word_are_not_saved_and_a_private_follow_up_says_so(desk: Desk) -> None:
    assert "30 June 2027" in desk.run("ask", "When does the lease of the flat end?").out
    for line in ("?", "hello", "…", "thanks"):
        assert desk.json("ask", line)["chat"] is None
    assert len(desk.run("chats").out.splitlines()) == 1
    private = desk.run("ask", "Who signed it?", "--continue", "--private")
    assert "Ruth Adler" in private.out and "Nothing of this question is saved." in private.err
    assert "cannot be continued" not in private.err
    assert "saved" not in desk.run("ask", "Who signed it?", "--continue").err
    refused = desk.run("ask", "--continue", "abc", "Who signed it?")
    assert refused.code == 2 and "'abc' is not the number of a chat." in refused.err


def test_the_latest_chats_are_listed_one_line_each(desk: Desk) -> None:
    chats, _ = open_chats(desk.data)
    assert chats is not None
    now = time.time()
    for number in range(23):
        question = f"Question {number}?\nSecond line"
        chats.add(None, SavedTurn(question, "", "An answer.", True, False, "embedded", "cached", now))
    chats.close()
    with closing(sqlite3.connect(desk.data / "chats.sqlite")) as connection, connection:
        connection.execute("UPDATE chats SET changed_at = ? - 86400 * (40 - id) WHERE id < 22", (now,))
    lines = desk.run("chats").out.splitlines()
    assert len(lines) == 21 and lines[-1] == "3 older ones: --all"
    assert re.fullmatch(r" +23  +today \d\d:\d\d  +1 turn  Question 22\? Second line", lines[0])
    assert re.fullmatch(r" +21  \d{4}-\d\d-\d\d \d\d:\d\d  +1 turn  Question 20\? Second line", lines[2])
    every = desk.run("chats", "--all").out.splitlines()
    assert len(every) == 23 and "older" not in every[-1] and every[:20] == lines[:20]
    listed = desk.json("chats")["chats"]
    assert isinstance(listed, list) and len(listed) == 23 and listed[0]["title"].startswith("Question 22?")


def test_private_questions_leave_no_trace(desk: Desk) -> None:
    answer = desk.json("ask", "When was the dishwasher repaired?", "--private")
    assert answer["chat"] is None and not (desk.data / "chats.sqlite").exists()
    config = desk.documents.parent / "config.toml"
    config.write_text("[chats]\nsave = false\n", encoding="utf-8")
    desk.json("ask", "When was the dishwasher repaired?", "--config", str(config))
    assert not (desk.data / "chats.sqlite").exists()
    assert "save = false" in desk.run("chats", "--config", str(config)).out
    nothing = desk.run("ask", "And who?", "--continue")
    assert nothing.code == 2 and "no saved chat to continue" in nothing.err
    assert desk.json("ask", "When was the dishwasher repaired?")["chat"] == 1
    desk.json("ask", "Where does the key of the flat hang?", "--private")
    followed = desk.run("ask", "And who repaired it?", "--continue", "--private")
    assert "Continuing chat 1: “When was the dishwasher repaired?”" in followed.err
    assert "Nothing of this question is saved" in followed.err
    assert "1 turn" in desk.run("chats").out
    desk.run("ask", "And who repaired it?", "--continue")
    third = desk.run("ask", "And what did it cost?", "--continue")
    assert "“When was the dishwasher repaired?”, last “And who repaired it?”" in third.err


def test_names_in_a_question_limit_it_and_are_said(desk: Desk) -> None:
    lease = desk.documents / "letters" / "my lease.md"
    answer = desk.json("ask", '@"my lease.md" when does it end?')
    assert answer["answer"] == "30 June 2027" and answer["limited_to"] == [str(lease)]
    assert {source["path"] for source in answer["sources"]} == {str(lease)}  # type: ignore[attr-defined]
    report = desk.run("ask", "Who repaired the dishwasher? @letters/")
    assert "(searched only " in report.out and "letters)" in report.out and "dishwasher.md" not in report.out
    one_file = desk.json("ask", "When does the lease end?", "--folder", str(lease))
    assert one_file["limited_to"] == [str(lease)] and one_file["answer"] == "30 June 2027"
    unknown = desk.run("ask", "@leese.md when does it end?")
    assert unknown.code == 2 and '@"my lease.md"' in unknown.err and unknown.out == ""
    hits = desk.json("search", "@letters/ repaired", "--words")
    assert all("letters" in str(one["path"]) for one in hits["results"])  # type: ignore[attr-defined]


def test_purge_takes_the_quotes_and_verify_sees_no_trace(desk: Desk) -> None:
    desk.json("ask", "When was the dishwasher repaired?")
    desk.json("ask", "And who repaired it?", "--continue")
    desk.json("ask", "When does the lease of the flat end?")
    purged = desk.run("purge", str(desk.documents / "dishwasher.md"), "--verify", "--yes")
    assert purged.code == 0, purged.out
    assert "Deleted 2 questions with their answers from chats." in purged.out and "no trace" in purged.out
    assert "dishwasher" not in desk.run("chats").out
    assert "30 June 2027" in desk.run("chats", "show", "2").out
    assert desk.run("purge", "--all", "--yes").code == 0
    assert not desk.data.exists()


def test_purge_takes_a_question_that_repeats_the_purged_text(desk: Desk) -> None:
    """Such a question may have found nothing, or quote another file."""
    desk.json("ask", "When does the lease of the flat end?")
    line = (desk.documents / "dishwasher.md").read_text(encoding="utf-8").splitlines()[-1]
    desk.json("ask", f"Who wrote this to the landlord of the flat: {line.upper()}", "--continue")
    purged = desk.run("purge", str(desk.documents / "dishwasher.md"), "--verify", "--yes")
    assert purged.code == 0 and "no trace" in purged.out, purged.out
    assert "Deleted 1 question with its answer from chats." in purged.out
    assert line.casefold() not in (desk.data / "chats.sqlite").read_bytes().decode(errors="replace").casefold()
    assert "1 turn" in desk.run("chats").out


def test_a_misspelt_folder_is_told_before_anything_is_confirmed(desk: Desk) -> None:
    desk.json("ask", "When does the lease of the flat end?")
    purged = desk.run("purge", str(desk.documents.with_name("documants")))
    assert purged.code == 2 and "Check the spelling" in purged.err and "--yes" not in purged.err


def test_damaged_chats_are_said_and_stop_no_answer(desk: Desk) -> None:
    desk.json("ask", "When was the dishwasher repaired?")
    assert stat.S_IMODE((desk.data / "chats.sqlite").stat().st_mode) == 0o600
    (desk.data / "chats.sqlite").write_bytes(b"not a database " * 600)
    answer = desk.run("ask", "When was the dishwasher repaired?")
    assert answer.code == 0 and "3 May 2025" in answer.out
    assert "The saved chats were damaged; they were put aside as quarantine/chats." in answer.err
    assert "1 turn" in desk.run("chats").out
    other = [one for one in desk.json("doctor")["findings"] if one["name"] == "other files"]  # type: ignore[attr-defined]
    assert other == []


def test_excluding_a_file_says_that_saved_chats_still_hold_it(desk: Desk, tmp_path: Path) -> None:
    changes = LibraryChanges(Session(Settings(data_dir=desk.data), [desk.documents], tmp_path / "config.toml"))
    lease, dishwasher = desk.documents / "letters" / "my lease.md", desk.documents / "dishwasher.md"
    assert "Saved chats" not in changes.exclude(changes.exclusion(dishwasher, desk.documents)).sentence
    assert "30 June 2027" in desk.run("ask", "When does the lease of the flat end?").out
    said = changes.exclude(changes.exclusion(lease, desk.documents)).sentence
    command = f"desk-rag purge {shlex.quote(str(lease))}"
    assert f"Saved chats still hold answers from it: `{command}` deletes them, too" in said
