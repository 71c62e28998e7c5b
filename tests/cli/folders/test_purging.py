"""`purge` of a folder inside an indexed one: no later command reads it again, until its rule is taken away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from desk_rag.cli import main, store_access
from desk_rag.config import StoreSettings, default_path, load
from desk_rag.documents.status import FileState
from desk_rag.store.store import Store


class Desk:
    """Documents with a private folder inside, indexed without caches."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.docs, self.data, self.capsys = root / "docs", root / "data", capsys
        self.private = self.docs / "private"
        self.rule = f"{self.private}/"
        self.private.mkdir(parents=True)
        (self.private / "health.md").write_text("The blood pressure was 148/92 in March.\n")
        (self.docs / "door.txt").write_text("The kitchen door is painted green.\n")
        assert self.run("index", str(self.docs), "--no-kv")[0] == 0

    def run(self, *words: str) -> tuple[int, str, str]:
        self.capsys.readouterr()
        code = main.main(["--data-dir", str(self.data), *words])
        printed = self.capsys.readouterr()
        return code, printed.out, printed.err

    def indexed(self) -> set[str]:
        with Store.open(self.data, StoreSettings(), writer=False) as store:
            return {row.path.name for row in store.documents() if row.state is FileState.INDEXED}


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, capsys)


def test_a_purged_folder_is_read_by_no_later_command_until_its_rule_is_taken_away(desk: Desk) -> None:
    asked = desk.run("purge", str(desk.private))
    assert asked[0] == 2 and f"“{desk.rule}” is excluded from then on" in asked[2]
    assert not default_path().exists() and "health.md" in desk.indexed()
    code, out, _ = desk.run("purge", str(desk.private), "--verify", "--yes")
    assert code == 0 and "no trace" in out
    assert f"“{desk.rule}” is excluded from now on (`exclude` under [index] in " in out
    assert f"`desk-rag index` does not read {desk.private} again until you remove that line. Under another" in out
    assert load().index.exclude == (desk.rule,)
    code, out, _ = desk.run("purge", str(desk.private), "--verify", "--yes")
    assert code == 0 and "Nothing of it was in the index." in out
    assert f"{desk.private}/ and what is in it" in " ".join(desk.run("status")[1].split()), "no index run was needed"
    assert "No text of it was stored, so there was nothing to search for." in out
    question, search = ("ask", "What is my blood pressure?"), ("search", "blood pressure", "--words")
    for command in (question, search, ("index", str(desk.docs), "--no-kv")):
        assert "148/92" not in desk.run(*command)[1]
        assert desk.indexed() == {"door.txt"}
    for path in (desk.private, desk.private / "health.md"):
        explained = desk.run("why", str(path))[1]
        assert f"exclude: {desk.rule}" in explained and "`exclude` under [index] in " in explained
    default_path().unlink()
    explained = desk.run("why", str(desk.private))[1]
    assert f"not indexed yet; it was left out (exclude: {desk.rule}) and no longer is" in explained
    assert desk.run("index", str(desk.docs), "--no-kv")[0] == 0
    assert desk.indexed() == {"door.txt", "health.md"}


def test_a_folder_of_the_same_name_elsewhere_stays(desk: Desk) -> None:
    other, deeper = desk.docs.parent / "stick" / "private", desk.docs / "work" / "private"
    for folder, word in ((other, "Basilisk"), (deeper, "Umbra")):
        folder.mkdir(parents=True)
        (folder / f"{word}.md").write_text(f"The {word} lamp costs 31 crowns.\n")
    assert desk.run("index", str(other.parent), str(desk.docs), "--no-kv")[0] == 0
    assert desk.run("purge", str(desk.private), "--yes")[0] == 0
    assert desk.run("index", str(other.parent), str(desk.docs), "--no-kv")[0] == 0
    assert desk.indexed() == {"door.txt", "Basilisk.md", "Umbra.md"}
    for file in (other / "Basilisk.md", deeper / "Umbra.md"):
        assert "indexed" in desk.run("why", str(file))[1]


def test_why_applies_rules_from_the_indexed_folder_only(desk: Desk) -> None:
    default_path().parent.mkdir(parents=True)
    default_path().write_text('[index]\nexclude = ["/private/"]\n')
    deeper = desk.docs / "work" / "private"
    deeper.mkdir(parents=True)
    (deeper / "umbra.txt").write_text("The umbra is dark.\n")
    (desk.docs / "work" / "plan.txt").write_text("A plan.\n")
    assert desk.run("index", str(desk.docs), "--no-kv")[0] == 0
    assert desk.indexed() >= {"umbra.txt", "plan.txt"}
    assert "left out" not in desk.run("why", str(deeper / "umbra.txt"))[1]
    (deeper / "new.txt").write_text("New.\n")
    assert "not indexed yet" in desk.run("why", str(deeper / "new.txt"))[1]


def test_rules_that_are_there_stay_and_one_that_is_not_needed_is_not_written(desk: Desk) -> None:
    settings = default_path()
    settings.parent.mkdir(parents=True)
    settings.write_text('[index]\nexclude = ["*.log"]  # mine\n')
    assert desk.run("purge", str(desk.private / "health.md"), "--yes")[0] == 0
    assert load().index.exclude == ("*.log", f"{desk.rule}health.md") and "# mine" in settings.read_text()
    report = json.loads(desk.run("purge", str(desk.private / "health.md"), "--yes", "--json")[1])
    assert report["excluded"] == [], "a rule leaves it out already"
    assert load().index.exclude == ("*.log", f"{desk.rule}health.md")


def test_a_purge_that_fails_leaves_no_rule_behind(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_access, "LOCK_SECONDS", 0.1)
    settings = default_path()
    settings.parent.mkdir(parents=True)
    settings.write_text('[index]\nexclude = ["*.log"]  # mine\n')
    with Store.open(desk.data, StoreSettings(), writer=True):
        code, _, err = desk.run("purge", str(desk.private), "--yes")
    assert code == 4 and "is writing" in err and "end it if it is a UI" in err
    assert load().index.exclude == ("*.log",) and "# mine" in settings.read_text()
    assert desk.indexed() == {"door.txt", "health.md"}


def test_a_second_purge_names_the_rule_that_stands_already(desk: Desk) -> None:
    assert desk.run("purge", str(desk.private), "--yes")[0] == 0
    out = desk.run("purge", str(desk.private), "--yes")[1]
    assert f"“{desk.rule}” excludes it already" in out and "until it ends" not in out


def test_purge_of_everything_says_what_goes_and_what_stays(desk: Desk) -> None:
    settings = default_path()
    settings.parent.mkdir(parents=True)
    settings.write_text('[index]\nexclude = ["*.log"]\n')
    code, out, _ = desk.run("purge", "--all", "--yes")
    assert code == 0 and "and all saved chats." in out
    assert f"Your settings in {settings} stay, with what they exclude." in out


def test_purge_of_everything_leaves_no_empty_directory_of_kernels(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DESK_RAG_KERNELS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kernels = tmp_path / "cache" / "desk-rag-kernels"
    kernels.mkdir(parents=True)
    note = kernels / "note.txt"
    note.write_text("not ours")
    assert desk.run("purge", "--all", "--yes")[0] == 0 and note.exists()
    note.unlink()
    assert desk.run("purge", "--all", "--yes")[0] == 0
    assert not kernels.exists() and kernels.parent.exists()


def test_what_cannot_be_excluded_is_purged_all_the_same_and_said(desk: Desk) -> None:
    default_path().parent.parent.mkdir(parents=True, exist_ok=True)
    default_path().parent.write_text("a file where the folder of the settings should be")
    code, out, _ = desk.run("purge", str(desk.private), "--yes")
    assert code == 0 and "Forgot 1 document" in out and desk.indexed() == {"door.txt"}
    assert "is read again with the next question" in out and f'"{desk.rule}"' in out


def test_a_purged_indexed_folder_is_read_again_by_no_question(desk: Desk) -> None:
    other = desk.docs.parent / "other"
    other.mkdir()
    (other / "boat.md").write_text("The boat is moored in Kiel.\n")
    assert desk.run("index", str(other), "--no-kv")[0] == 0
    assert desk.run("purge", str(desk.docs), "--yes")[0] == 0 and not default_path().exists()
    assert "148/92" not in desk.run("ask", "What is my blood pressure?")[1]
    assert "148/92" not in desk.run("search", "blood pressure", "--words")[1]
    assert desk.indexed() == {"boat.md"}


def test_an_indexed_folder_that_the_settings_name_is_said_to_come_back(desk: Desk) -> None:
    default_path().parent.mkdir(parents=True)
    default_path().write_text(f"folders = [{json.dumps(str(desk.docs))}]\n")
    out = desk.run("purge", str(desk.docs), "--yes")[1]
    assert "It still stands in `folders` in " in out


def test_indexing_an_excluded_folder_by_name_says_which_rule_forbids_it(desk: Desk) -> None:
    assert desk.run("purge", str(desk.private), "--yes")[0] == 0
    for target in (desk.private, desk.private / "health.md"):
        for command in (
            ("index", str(target), "--no-kv"),
            ("ask", "What is my blood pressure?", "--folder", str(target)),
        ):
            code, out, err = desk.run(*command)
            assert code == 2 and "148/92" not in out, command
            assert f"is excluded by “{desk.rule}”" in err and str(default_path()) in err, err
    assert desk.run("watch", str(desk.private))[0] == 2
    assert desk.run("purge", "--all", "--yes")[0] == 0
    assert desk.run("index", str(desk.private), "--no-kv")[0] == 2, "the rule names the folder, whatever is indexed"
    default_path().unlink()
    assert desk.run("index", str(desk.private), "--no-kv")[0] == 0 and desk.indexed() == {"health.md"}


def test_what_was_purged_is_listed_as_excluded_until_it_is_taken_back(desk: Desk) -> None:
    assert desk.run("purge", str(desk.private), "--yes")[0] == 0
    for _ in ("before any scan", "after one"):
        _, listed, _ = desk.run("ls", str(desk.docs))
        (line,) = (line for line in listed.splitlines() if "private" in line)
        assert line.startswith("left out ") and f": excluded by you (desk-rag why {desk.private} says how" in line
        why = desk.run("why", str(desk.private))[1]
        assert "excluded by you: take that line out, or choose “Read it from now on” in the UI (F3)" in why
        assert desk.run("index", str(desk.docs), "--no-kv")[0] == 0
    default_path().write_text("")
    assert desk.run("index", str(desk.docs), "--no-kv")[0] == 0
    assert "private" in desk.run("ls", str(desk.docs))[1] and desk.indexed() == {"door.txt", "health.md"}
    assert "excluded" not in desk.run("ls", str(desk.docs))[1]
