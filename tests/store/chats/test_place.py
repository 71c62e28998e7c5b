"""The chats of the default data directory lie with the user's data: moved there once, forgotten and removed there."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest

from desk_rag.cli.folders import purging
from desk_rag.config import Settings
from desk_rag.store.chats import place
from desk_rag.store.chats.chats import Chats, forget_folder, open_chats
from desk_rag.store.chats.database import ChatsDatabase, ChatsMoved
from desk_rag.store.layout import Layout
from desk_rag.store.store import Store
from tests.store import made
from tests.store.chats.test_chats import BOAT, LEASE, TURN

LETTERS = Path("/desk/letters")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for data of a user whose default data directory is `tmp_path/cache/desk-rag`."""
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / "cache" / name))
    monkeypatch.setattr("platformdirs.user_data_dir", lambda name: str(tmp_path / "share" / name))
    return tmp_path / "share" / "desk-rag"


@pytest.fixture
def root(tmp_path: Path, data: Path) -> Path:
    Layout(tmp_path / "cache" / "desk-rag").create()
    return tmp_path / "cache" / "desk-rag"


def opened(root: Path) -> Chats:
    chats, notice = open_chats(root)
    assert chats is not None and not notice
    return chats


def of_an_older_version(root: Path) -> int:
    chats = Chats(ChatsDatabase(root, create=True))
    number = chats.add(None, TURN).chat_id
    chats.close()
    return number


def test_chats_of_the_default_data_directory_are_no_cache(root: Path, data: Path) -> None:
    chats = opened(root)
    number = chats.add(None, TURN).chat_id
    chats.close()
    assert [path.name for path in data.iterdir()] == ["chats.sqlite"] and not (root / "chats.sqlite").exists()
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert stat.S_IMODE((data / "chats.sqlite").stat().st_mode) == 0o600
    assert opened(root).get(number).turns == (TURN,)


def test_chats_of_a_chosen_data_directory_lie_in_it(tmp_path: Path, data: Path) -> None:
    Layout(tmp_path / "mine").create()
    opened(tmp_path / "mine").add(None, TURN)
    assert (tmp_path / "mine" / "chats.sqlite").exists() and not data.exists()


def test_looking_for_chats_makes_nothing(root: Path, data: Path) -> None:
    assert open_chats(root, create=False) == (None, "") and forget_folder(root, LETTERS) == 0
    assert not data.exists()


def test_chats_of_an_older_version_move_once(root: Path, data: Path) -> None:
    number = of_an_older_version(root)
    left = data / "chats.sqlite.1-1.tmp"
    data.mkdir(parents=True)
    left.write_bytes((root / "chats.sqlite").read_bytes()[:5000])
    assert opened(root).get(number).turns == (TURN,)
    assert [path.name for path in data.iterdir()] == ["chats.sqlite"] and not (root / "chats.sqlite").exists()
    assert stat.S_IMODE((data / "chats.sqlite").stat().st_mode) == 0o600


def _killed_at_line(number: int, run: Callable[[], object]) -> bool:
    """Run in a copy of this process, killed before the given line of the store's own code; False if it got to the end.

    Only lines of the chats and of what writes to their folders count.
    """
    lines = 0

    def each_line(frame: FrameType, event: str, _: object) -> Callable[..., object] | None:
        nonlocal lines
        if not frame.f_code.co_filename.endswith(_WRITING):
            return None
        lines += event == "line"
        if lines == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return each_line

    if (child := os.fork()) == 0:
        try:
            sys.settrace(each_line)
            run()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


_WRITING = ("chats/place.py", "chats/database.py", "desk_rag/owned_directory.py", "desk_rag/owned_folder.py")


@pytest.mark.skipif(sys.platform != "linux", reason="another system may not copy a process that has threads")
def test_chats_survive_a_kill_at_any_line_of_their_move(root: Path, data: Path, tmp_path: Path) -> None:
    number = of_an_older_version(root)
    shutil.copytree(root, kept := tmp_path / "before")
    line, in_both_places = 0, 0
    is_killed = True
    while is_killed:
        line += 1
        for place_of_data in (root, data):
            shutil.rmtree(place_of_data, ignore_errors=True)
        shutil.copytree(kept, root)
        is_killed = _killed_at_line(line, lambda: place.settle(root))
        in_both_places += (root / "chats.sqlite").exists() and (data / "chats.sqlite").exists()
        chats = opened(root)
        assert chats.get(number).turns == (TURN,), f"killed at line {line}"
        later = chats.add(number, replace(TURN, question="And after it?")).chat_id
        chats.close()
        assert len(opened(root).get(later).turns) == 2, f"killed at line {line}"
        assert (data / "chats.sqlite").exists()
    assert line > 50 and in_both_places  # the old database goes after the copy is complete


def test_two_processes_move_them_at_once(root: Path, data: Path, tmp_path: Path) -> None:
    number = of_an_older_version(root)
    program = (
        "import sys; from pathlib import Path; from desk_rag.store.chats.chats import open_chats\n"
        "from desk_rag.store.chats.records import SavedTurn\n"
        "for n in range(5):\n"
        "    chats, notice = open_chats(Path(sys.argv[1])); assert not notice, notice\n"
        "    chats.add(None, SavedTurn(f'q{n}', '', 'a', True, False, 'm', 'cached', 1.0)); chats.close()\n"
    )
    homes = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_DATA_HOME": str(tmp_path / "share")}
    if sys.platform != "linux":
        pytest.skip("other systems have no variables for these folders")
    both = [
        subprocess.Popen([sys.executable, "-c", program, str(root)], env={**os.environ, **homes}) for _ in range(3)
    ]
    assert [one.wait(timeout=60) for one in both] == [0, 0, 0]
    chats = opened(root)
    assert len(chats.rows()) == 16 and chats.get(number).turns == (TURN,)


def test_another_process_moves_them_between_a_look_and_the_move(
    root: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither process may begin a second database in the old place, which nobody would read again."""
    number = of_an_older_version(root)
    move = place._move

    def after_another(old: Path, new: Path) -> None:
        move(old, new)
        move(old, new)

    monkeypatch.setattr(place, "_move", after_another)
    chats = opened(root)
    chats.add(number, BOAT)
    assert opened(root).get(number).turns == (TURN, BOAT) and not (root / "chats.sqlite").exists()


def test_an_open_database_is_followed_when_another_process_moves_it(
    root: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = of_an_older_version(root)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(place, "create_beside", fail)
        stayed = opened(root)
    assert not data.exists() or not list(data.iterdir())
    opened(root)
    assert (data / "chats.sqlite").exists() and not (root / "chats.sqlite").exists()
    stayed.add(number, BOAT)
    assert opened(root).get(number).turns == (TURN, BOAT) and not (root / "chats.sqlite").exists()


def test_nothing_is_written_to_a_database_that_was_moved_away(root: Path, data: Path) -> None:
    of_an_older_version(root)
    old = ChatsDatabase(root, create=False)
    opened(root)
    with pytest.raises(ChatsMoved, match="Try again"), old.write():
        pytest.fail("the block ran")


@pytest.mark.parametrize("call", ["create_beside", "sync_file"])
def test_chats_that_cannot_be_moved_are_used_where_they_are(
    root: Path, data: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    number = of_an_older_version(root)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(place, call, fail)
        chats = opened(root)
        assert chats.get(number).turns == (TURN,)
        chats.add(number, BOAT)
        chats.close()
        assert list(data.iterdir()) == [], "nothing half copied is left"
    assert opened(root).get(number).turns == (TURN, BOAT)
    assert (data / "chats.sqlite").exists() and not (root / "chats.sqlite").exists()


def test_damaged_chats_of_an_older_version_are_put_aside_and_move_later(root: Path, data: Path) -> None:
    of_an_older_version(root)
    (root / "chats.sqlite").write_bytes(b"this is no database" * 400)
    chats, notice = open_chats(root)
    assert chats is not None and "put aside" in notice
    number = chats.add(None, BOAT).chat_id
    chats.close()
    assert opened(root).get(number).turns == (BOAT,) and (data / "chats.sqlite").exists()


def _of_the_store(root: Path, settings: Settings) -> int:
    with Store.open(root, made.settings(), writer=True) as store:
        store.put_document(made.document(LETTERS / "lease.md", ["x"]), made.chunks(["x"]), made.stamp())
    return purging.purge(settings, LETTERS, None, check=True, sure=True, as_json=False)


def _without_an_index(root: Path, settings: Settings) -> int:
    return purging.purge(settings, LETTERS, None, check=False, sure=True, as_json=False)


@pytest.mark.parametrize("purge", [_of_the_store, _without_an_index])
def test_purge_of_a_folder_reaches_both_places_and_what_was_put_aside(
    root: Path, data: Path, purge: Callable[[Path, Settings], int]
) -> None:
    opened(root).add(None, TURN)
    of_an_older_version(root)  # which ran once more
    (data / "quarantine").mkdir()
    aside = data / "quarantine" / f"chats.1.{'0' * 16}.sqlite"
    with sqlite3.connect(aside) as connection:
        connection.execute("CREATE TABLE turns (asked_as TEXT)")
    assert purge(root, Settings(data_dir=root)) == 0
    assert opened(root).rows() == [] and not aside.exists()
    for file in (root / "chats.sqlite", data / "chats.sqlite"):
        assert LEASE.quote.encode() not in file.read_bytes()


@pytest.mark.parametrize("indexed", [True, False])
def test_purge_of_everything_takes_the_chats_and_nothing_else(
    root: Path, data: Path, indexed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    opened(root).add(None, TURN)
    mine = data / "chats.md"
    mine.write_text("a person's own export")
    if not indexed:
        Store.open(root, made.settings(), writer=True).close()
        assert purging.purge(Settings(data_dir=root), None, None, check=False, sure=True, as_json=False) == 0
        opened_again = Chats(ChatsDatabase(data, create=True))
        opened_again.add(None, TURN)
        opened_again.close()
    assert purging.purge(Settings(data_dir=root), None, None, check=False, sure=True, as_json=False) == 0
    assert [path.name for path in data.iterdir()] == ["chats.md"]
    mine.unlink()
    (data / "chats.sqlite").write_bytes(b"")
    place.clear(data, all_of_it=True)
    assert not data.exists()
    assert "Deleted" in capsys.readouterr().out


def test_an_answer_in_the_models_own_words_goes_with_what_it_read(root: Path) -> None:
    """Such an answer may repeat what it read without a quote."""
    read = replace(LEASE, quote="")
    quoted = replace(LEASE, number=2, path=Path("/desk/boats/boat.md"), quote="The boat is 5.2 metres long.")
    written = replace(TURN, answer="The lease ends in June. [?] The boat is long. [2]", sources=(read, quoted))
    looked_up = replace(TURN, answer="5.2 metres", sources=(read, quoted))
    chats = opened(root)
    number = chats.add(None, written).chat_id
    chats.add(number, looked_up)
    chats.close()
    assert forget_folder(root, LETTERS) == 1
    (second,) = opened(root).get(number).turns
    assert second.answer == "5.2 metres" and [source.path for source in second.sources] == [quoted.path]

