"""`desk-rag service`: what it writes, what it refuses, and that systemd and launchd can read it."""

from __future__ import annotations

import plistlib
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from desk_rag.cli import main
from desk_rag.cli.folders import service
from desk_rag.config import Settings
from desk_rag.errors import ConfigError

UNIT = "systemd/user/desk-rag.service"


@pytest.fixture
def config_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # systemd-analyze needs one
    return tmp_path / "config"


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / 'my "100 %" $HOME\\notes'
    folder.mkdir()
    return folder


def install(folders: list[Path], system: str) -> str:
    assert service.install(Settings(data_dir=Path("/data")), folders, None, system) == 0
    return service.service_file(service.WatchCommand((), None), system).path.read_text()


def test_a_unit_is_written_and_removed_again(
    config_home: Path, documents: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = install([documents], "linux")
    assert text.startswith(f"# {service.MARKER}\n")
    assert '"watch" "' + str(documents).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$").replace(
        "%", "%%"
    ) + '"\n' in text  # fmt: skip
    assert stat.S_IMODE((config_home / UNIT).stat().st_mode) == 0o600
    said = capsys.readouterr().out
    assert "desk-rag.service" in said and "systemctl --user enable --now desk-rag.service" in said
    assert service.remove("linux") == 0
    assert [path for path in config_home.rglob("*") if path.is_file()] == []
    assert service.remove("linux") == 0 and "No service is installed" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit_and_reads_the_command_as_meant(config_home: Path, documents: Path) -> None:
    install([documents], "linux")
    unit = config_home / UNIT
    checked = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0 and str(unit.name) not in checked.stderr, checked.stderr
    unit.write_text(unit.read_text().replace("Type=exec", "Type=nonsense"))
    broken = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert "nonsense" in broken.stderr


def test_an_agent_for_launchd_holds_the_command(config_home: Path, documents: Path) -> None:
    text = install([documents], "darwin")
    agent = plistlib.loads(text.encode())
    assert agent["ProgramArguments"][-2:] == ["watch", str(documents)]
    assert agent["RunAtLoad"] and agent["KeepAlive"] == {"SuccessfulExit": False}
    assert service.remove("darwin") == 0
    assert not (config_home.parent / "Library" / "LaunchAgents" / "local.desk-rag.watch.plist").exists()


def test_on_windows_nothing_is_written(config_home: Path, documents: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert service.install(Settings(data_dir=Path("/data")), [documents], None, "win32") == 0
    assert "schtasks /Create /SC ONLOGON" in capsys.readouterr().out
    assert not config_home.exists()


@pytest.mark.parametrize("foreign", ["[Service]\nExecStart=/bin/true\n", None])
def test_a_file_of_somebody_else_is_left_alone(config_home: Path, documents: Path, foreign: str | None) -> None:
    unit = config_home / UNIT
    unit.parent.mkdir(parents=True)
    if foreign is None:
        target = config_home / "elsewhere"
        target.write_text(f"# {service.MARKER}\n")
        unit.symlink_to(target)
    else:
        unit.write_text(foreign)
    before = unit.read_text()
    for attempt in (lambda: install([documents], "linux"), lambda: service.remove("linux")):
        with pytest.raises(ConfigError, match="not written by desk-rag"):
            attempt()
    assert unit.read_text() == before and unit.is_symlink() == (foreign is None)


def test_it_is_not_removed_while_it_is_started_at_login(config_home: Path, documents: Path) -> None:
    install([documents], "linux")
    wants = config_home / "systemd" / "user" / "default.target.wants"
    wants.mkdir()
    (wants / "desk-rag.service").symlink_to(config_home / UNIT)
    with pytest.raises(ConfigError, match="still started"):
        service.remove("linux")
    assert (config_home / UNIT).exists()


def test_the_installed_command_starts_the_program(config_home: Path, tmp_path: Path) -> None:
    command = service.watch_command(Settings(data_dir=tmp_path / "data"), [tmp_path / "nowhere"], None)
    ran = subprocess.run(command.words, cwd=command.directory, capture_output=True, text=True, check=False)
    assert ran.returncode == 2 and "There is no folder" in ran.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="says what systemd does")
def test_the_command_says_what_is_installed(
    config_home: Path, documents: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["service"]) == 0 and "Not installed" in capsys.readouterr().out
    assert main.main(["service", "install"]) == 2 and "Name the folders" in capsys.readouterr().err
    assert main.main(["service", "install", str(documents)]) == 0
    assert main.main(["service", "status", "--json"]) == 0
    assert '"installed": true' in capsys.readouterr().out
