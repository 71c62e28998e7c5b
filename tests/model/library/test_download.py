"""`models download` against a local server that stands in for the hub, through the real client in a real process."""

from __future__ import annotations

import contextlib
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from desk_rag import owned_folder
from desk_rag.model.library import resumable
from desk_rag.owned_folder import Folder
from tests.model.library.hub_server import NAME, Hub, serve
from tests.model.prequantized import write_plain

BLOCK = 1 << 20
"""Bytes that are fetched at a time."""


@dataclass(frozen=True, slots=True)
class Started:
    """A command whose standard error is a terminal."""

    process: subprocess.Popen[bytes]
    stderr: int

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self) -> None:
        """Read to the end."""
        with contextlib.suppress(OSError):  # the other side is closed
            while os.read(self.stderr, 4096):
                pass
        self.process.wait(60)


@dataclass(frozen=True, slots=True)
class User:
    """A user with an empty home, and the hub."""

    home: Path
    hub: Hub

    def run(self, *arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
        """Run `desk-rag models ...`; `before` is a shell command to run first in the same namespaces."""
        command = [sys.executable, "-m", "desk_rag", "models", *arguments]
        if before:
            command = ["unshare", "-rm", "sh", "-c", f'{before} && exec "$@"', "sh", *command]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=120, check=False)

    def start(self, *arguments: str) -> Started:
        """Start `desk-rag models ...` with a terminal as its standard error."""
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "desk_rag", "models", *arguments]
        process = subprocess.Popen(command, env=self._environment, stdout=subprocess.DEVNULL, stderr=theirs)
        os.close(theirs)
        return Started(process, ours)

    @property
    def _environment(self) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        return environment | {
            "HF_ENDPOINT": self.hub.url, "HF_HOME": str(self.home), "HF_HUB_CACHE": str(self.home / "hub"),
            "DESK_RAG_CONFIG": str(self.home / "config.toml"), "DESK_RAG_DATA_DIR": str(self.home / "data"),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_plain(tmp_path_factory.mktemp("model"))


@pytest.fixture
def user(model: Path, tmp_path: Path) -> Iterator[User]:
    (tmp_path / "config.toml").write_text("# mine\n")
    with serve(model) as hub:
        yield User(tmp_path, hub)


def test_a_model_is_fetched_chosen_and_not_fetched_twice(user: User, model: Path) -> None:
    first = user.run("download", NAME, "--yes")
    assert first.returncode == 0, first.stderr
    assert "licence: apache-2.0" in first.stdout and "are free" in first.stdout and "models use" in first.stdout
    assert user.hub.ranges == [""]
    second = user.run("download", NAME, "--yes")
    assert second.returncode == 0 and "0 B of it not here yet" in second.stdout and user.hub.ranges == [""]
    assert user.run("use", NAME).returncode == 0
    assert f'name = "{NAME}"' in (user.home / "config.toml").read_text()
    assert f"* {NAME}  [hub]" in user.run("list").stdout
    stored = next((user.home / "hub").rglob("model.safetensors"))
    assert stored.read_bytes() == (model / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_broken_connection_is_taken_up_and_said_if_it_stays_broken(user: User) -> None:
    user.hub.files["model.safetensors"] = random.Random(1).randbytes(BLOCK * 5 // 2)
    user.hub.cut_after = BLOCK + 100_000
    broken = user.run("download", NAME, "--yes")
    assert broken.returncode == 5
    assert "connection to the hub broke" in broken.stderr and "what has come is kept" in broken.stderr
    assert "Traceback" not in broken.stderr and "bug" not in broken.stderr
    assert user.hub.ranges[:2] == ["", f"bytes={BLOCK}-"], "taken up where it broke"
    user.hub.ranges.clear()
    user.hub.cut_after = 0
    again = user.run("download", NAME, "--yes")
    assert again.returncode == 0 and user.hub.ranges == [f"bytes={BLOCK}-"], "goes on where it stopped"
    kept = next((user.home / "hub").rglob("model.safetensors"))
    assert kept.read_bytes() == user.hub.files["model.safetensors"]


def test_an_interrupted_download_says_how_much_is_left_and_shows_its_progress(user: User) -> None:
    user.hub.files["model.safetensors"] = random.Random(2).randbytes(BLOCK * 5)
    user.hub.held_after = BLOCK * 3 + 1000
    process = user.start("download", NAME, "--yes")
    seen = ""
    while "3.1 of 5.2 MB" not in seen:
        seen += os.read(process.stderr, 4096).decode()
    os.kill(process.pid, signal.SIGINT)
    process.wait()  # although nothing comes from the hub
    user.hub.go_on.set()
    user.hub.held_after = 0
    user.hub.ranges.clear()
    again = user.run("download", NAME, "--yes")
    assert again.returncode == 0, again.stderr
    assert "2.0 MiB of it not here yet" in again.stdout and user.hub.ranges == [f"bytes={BLOCK * 3}-"]
    left = list((user.home / "hub").rglob("*.incomplete*"))
    assert left == [] and next((user.home / "hub").rglob("model.safetensors")).stat().st_size == BLOCK * 5


def test_a_large_file_that_came_wrong_is_not_kept(user: User) -> None:
    user.hub.stated_checksum = "0" * 64
    refused = user.run("download", NAME, "--yes")
    assert refused.returncode == 5 and "did not come as the hub has it" in refused.stderr
    assert not list((user.home / "hub").rglob("*.incomplete*"))


@pytest.mark.parametrize("case", ["copy", "hard link"])
def test_a_file_in_the_hubs_cache_that_was_not_begun_here_is_left_alone(user: User, case: str) -> None:
    user.hub.files["model.safetensors"] = random.Random(3).randbytes(BLOCK * 3)
    user.hub.held_after = BLOCK * 2 + 1000
    process = user.start("download", NAME, "--yes")
    seen = ""
    while "2.1 of 3." not in seen:
        seen += os.read(process.stderr, 4096).decode()
    os.kill(process.pid, signal.SIGINT)
    process.wait()
    user.hub.go_on.set()
    user.hub.held_after = 0
    (part,) = (user.home / "hub").rglob("*.desk-rag.incomplete")
    other = user.home / "thesis"
    other.write_bytes(part.read_bytes() + b"a person's own")
    if case == "copy":
        shutil.copy(other, part.with_name("copy")).replace(part)
    else:
        part.unlink()
        part.hardlink_to(other)
    written, names = other.read_bytes(), sorted(path.name for path in part.parent.iterdir())
    again = user.run("download", NAME, "--yes")
    assert again.returncode == 0, again.stderr
    assert user.hub.ranges[-1] == "" and other.read_bytes() == written == part.read_bytes()
    assert set(names) < {path.name for path in part.parent.iterdir()}


def test_a_download_is_not_begun_under_the_name_of_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An inode is given out again, so that a copy may have the name that the next download would get."""
    copies: list[Path] = []

    def create_beside(folder: Folder, name: str) -> tuple[str, int]:
        temporary, descriptor = owned_folder.create_beside(folder, name)
        if not copies:
            copies.append(folder.path / resumable._part_name(name, os.fstat(descriptor)))
            copies[0].write_text("a person's own")
        return temporary, descriptor

    monkeypatch.setattr(resumable, "create_beside", create_beside)
    folder = owned_folder.open_folder(tmp_path, None, follow=True)
    part = resumable._begin(folder, "0" * 64)
    assert resumable._begun_here(folder, "0" * 64) == part
    folder.close()
    assert copies[0].read_text() == "a person's own"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([part, copies[0].name])


def test_a_gated_model_names_the_page_and_the_command(user: User) -> None:
    user.hub.gated = True
    refused = user.run("download", NAME, "--yes")
    assert refused.returncode == 5 and "access must be granted" in refused.stdout
    assert f"huggingface.co/{NAME}" in refused.stderr and "hf auth login" in refused.stderr


def test_a_name_that_the_hub_does_not_know_may_be_private(user: User) -> None:
    user.hub.hidden = True
    refused = user.run("download", NAME, "--yes")
    assert refused.returncode == 5 and "or it is private" in refused.stderr and "hf auth login" in refused.stderr
    assert not (user.home / "hub").exists() or not any((user.home / "hub").rglob("*.safetensors"))


def test_nothing_is_fetched_without_a_yes(user: User) -> None:
    refused = user.run("download", NAME)
    assert refused.returncode == 2 and "nobody to ask" in refused.stderr and user.hub.ranges == []


def test_a_hub_that_does_not_answer_is_said(user: User) -> None:
    user.hub.url = "http://127.0.0.1:9"
    refused = user.run("download", NAME, "--yes")
    assert refused.returncode == 5 and "Check the network" in refused.stderr and "bug" not in refused.stderr


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode != 0,
    reason="no private mounts here",
)
def test_a_drive_without_room_is_said_before_and_one_that_fills_up_meanwhile_after(user: User) -> None:
    (user.home / "hub").mkdir()
    mount = f"mount -t tmpfs -o size=512k tmpfs '{user.home / 'hub'}'"
    before = user.run("download", NAME, "--yes", before=mount)
    assert before.returncode == 5 and "are free" in before.stderr and "HF_HUB_CACHE" in before.stderr
    assert user.hub.ranges == []
    user.hub.stated_size = 100
    after = user.run("download", NAME, "--yes", before=mount)
    assert after.returncode == 5 and "filled up" in after.stderr, after.stderr
    assert "HF_HUB_CACHE" in after.stderr and "bug" not in after.stderr
