"""Fetching a model from the Models screen, in a real terminal, from a local server that stands in for the hub."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from desk_rag import config
from tests.model.library.hub_server import NAME, Hub, serve
from tests.model.prequantized import write_plain
from tests.tui.terminal import Terminal

_ALT_L, _ENTER, _ESCAPE, _CTRL_Q = "\x1bl", "\r", "\x1b", "\x11"
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class User:
    """The program in a terminal, its home and the hub."""

    home: Path
    hub: Hub
    terminal: Terminal

    @property
    def words(self) -> str:
        """The screen with single spaces."""
        return " ".join(self.terminal.text.split())

    def see(self, text: str) -> None:
        self.terminal.until(lambda: text in self.words, 60)

    def wants_the_model(self) -> None:
        """Name the model on the screen of models."""
        self.see("watching")
        self.terminal.send(_ALT_L)
        self.see("ships with desk-rag")
        self.terminal.send(NAME)
        self.see(f"{NAME} ")
        self.terminal.send(_ENTER)
        self.see("It is not on this computer. Enter asks the hub")
        assert self.hub.requests == 0, "nothing connects before that is agreed to"

    def stored(self) -> list[Path]:
        return [file for file in (self.home / "hub").rglob("model.safetensors") if file.is_file()]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_plain(tmp_path_factory.mktemp("model"))


def _program(home: Path, hub: Hub, before: tuple[str, ...] = ()) -> Terminal:
    environment = {
        "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_CACHE": str(home / "hub"), "HF_TOKEN": "",
        "HOME": str(home), "HF_HUB_OFFLINE": "0",
    }  # fmt: skip
    return Terminal(["-m", "tests.tui.wire.program", str(home)], columns=118, rows=32, env=environment, before=before)


@pytest.fixture
def user(model: Path, tmp_path: Path) -> Iterator[User]:
    with serve(model) as hub:
        terminal = _program(tmp_path, hub)
        try:
            yield User(tmp_path, hub, terminal)
        finally:
            hub.go_on.set()
            terminal.close()


def test_a_model_is_named_offered_stopped_fetched_and_chosen(user: User) -> None:
    weights = user.hub.files["model.safetensors"]
    user.hub.files["notes.txt"] = bytes(3 * _PIECE)
    user.hub.held_after = len(weights) // 2
    user.wants_the_model()
    user.terminal.send(_ENTER)
    user.see("licence: apache-2.0")
    user.see("are free")
    assert "not here yet" not in user.words and user.stored() == [] and user.hub.ranges == []
    user.terminal.send(_ENTER)
    user.see("MB")
    user.see("esc Stop")
    user.terminal.send(_ESCAPE)
    user.see("Stopped. What has come is kept; Enter goes on.")
    assert user.stored() == []
    user.hub.held_after = 0
    user.hub.go_on.set()
    user.terminal.send(_ENTER)
    user.see("Enter fetches it")
    user.terminal.send(_ENTER)
    user.see(f"{NAME} is chosen")
    assert user.stored()[0].read_bytes() == weights
    assert config.load(user.home / "config.toml").model.name == NAME
    user.terminal.send(_CTRL_Q)
    assert user.terminal.wait() == 0


@pytest.mark.slow  # a further refusal: the next test has one, and tests/model/library this one
def test_a_gated_model_names_the_page_and_the_command(user: User) -> None:
    user.hub.gated = True
    user.wants_the_model()
    user.terminal.send(_ENTER)
    user.see(f"accept the licence at https://huggingface.co/{NAME}")
    user.see("hf auth login")
    user.terminal.send(_ENTER)
    user.see("wants its licence to be accepted first")
    user.hub.gated = False
    user.see("⏎ Try again")
    user.terminal.send(_ENTER)
    user.see("⏎ Fetch it")
    user.terminal.send(_ENTER)
    user.see(f"{NAME} is chosen")


def test_a_connection_that_breaks_is_said_and_esc_leaves(user: User) -> None:
    user.hub.hidden = True
    user.wants_the_model()
    user.terminal.send(_ENTER)
    user.see("or it is private")
    user.see("⏎ Try again")
    user.terminal.send(_ESCAPE)
    user.see("Type to filter, or name another model" if NAME not in user.words else NAME)
    assert user.stored() == [] and not (user.home / "config.toml").exists()


_HAS_MOUNTS = (
    shutil.which("unshare") is not None
    and subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode == 0
)


@pytest.mark.slow  # as above
@pytest.mark.skipif(not _HAS_MOUNTS, reason="no private mounts here")
def test_a_drive_without_room_is_said_before_and_one_that_fills_up_after(model: Path, tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    mount = f"mount -t tmpfs -o size=512k tmpfs '{tmp_path / 'hub'}'"
    with serve(model) as hub:
        terminal = _program(tmp_path, hub, ("unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh"))
        user = User(tmp_path, hub, terminal)
        try:
            user.wants_the_model()
            terminal.send(_ENTER)
            user.see("are free. Make room there, or set HF_HUB_CACHE")
            assert hub.ranges == []
            hub.stated_size = 100
            terminal.send(_ENTER)
            user.see("⏎ Fetch it")
            terminal.send(_ENTER)
            user.see("The drive filled up")
        finally:
            terminal.close()
