"""Install `desk-rag watch` as a background service of the user: a systemd unit, a launchd agent, or a scheduled task.

Exactly one file is written, with a marker in it; a file without the marker is neither replaced nor removed. Nothing is
started: the commands for that are printed. On Windows nothing is written either.
"""

from __future__ import annotations

import os
import plistlib
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import desk_rag
from desk_rag.cli import output as out
from desk_rag.cli.store_access import print_lines
from desk_rag.config import Settings
from desk_rag.errors import ConfigError, of_system
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.owned_folder import Entry
from desk_rag.sanitize import shown_path

MARKER = "Written by `desk-rag service install`; `desk-rag service remove` deletes it."
_UNIT, _AGENT = "desk-rag.service", "local.desk-rag.watch.plist"


@dataclass(frozen=True, slots=True)
class ServiceFile:
    """The file that makes a system start `desk-rag watch`, and the commands that go with it."""

    path: Path
    content: str
    start: str
    stop: str
    reload: str
    """Command to run after the file has changed; empty if there is none."""


@dataclass(frozen=True, slots=True)
class WatchCommand:
    """The command line of the service, and the directory it must run in, if any."""

    words: tuple[str, ...]
    directory: Path | None


def install(settings: Settings, folders: Sequence[Path], config: Path | None, system: str = sys.platform) -> int:
    """Write the service's file, or print how to make a scheduled task on Windows."""
    roots = [folder.expanduser().resolve() for folder in folders]
    for root in roots:
        if not root.is_dir():
            raise ConfigError(f"There is no folder {shown_path(root)}.", remedy="Check the spelling.")
    if not roots and not settings.folders:
        raise ConfigError("Name the folders to watch.", remedy="desk-rag service install ~/Documents")
    command = watch_command(settings, roots, config)
    if system == "win32":
        task = f'schtasks /Create /SC ONLOGON /TN desk-rag /TR "{_for_windows(command)}"'
        print_lines(["Nothing was written. To start desk-rag at every logon, run:", f"  {task}",
                     "To end that: schtasks /Delete /TN desk-rag"])  # fmt: skip
        return 0
    file = service_file(command, system)
    entry = _entry(file.path)
    if entry is not None and not _is_ours(entry):
        raise _foreign(file.path)
    try:
        file.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        OwnedDirectory(file.path.parent).write(file.path, file.content.encode())
    except OSError as error:
        raise of_system(error, file.path) or _unwritable(file.path, error) from error
    lines = [f"Wrote {shown_path(file.path)}, which runs:", f"  {subprocess.list2cmdline(command.words)}"]
    if file.reload:
        lines += [f"Then: {file.reload}"]
    print_lines([*lines, f"Start it, now and at every login: {file.start}"])
    return 0


def remove(system: str = sys.platform) -> int:
    """Delete the service's file if desk-rag wrote it."""
    if system == "win32":
        print_lines(
            ["Nothing was written, so there is nothing to remove. schtasks /Delete /TN desk-rag ends the task."]
        )
        return 0
    file = service_file(WatchCommand((), None), system)
    entry = _entry(file.path)
    if entry is None:
        print_lines([f"No service is installed ({shown_path(file.path)} does not exist)."])
        return 0
    if not _is_ours(entry):
        raise _foreign(file.path)
    if _is_enabled(file.path):
        raise ConfigError("The service is still started at every login.", remedy=f"First: {file.stop}")
    if OwnedDirectory(file.path.parent).remove(file.path, _is_ours) is None:
        raise ConfigError(f"{shown_path(file.path)} could not be removed.", remedy="Check its permissions.")
    print_lines([f"Removed {shown_path(file.path)}.", *([f"Then: {file.reload}"] if file.reload else [])])
    return 0


def status(*, as_json: bool, system: str = sys.platform) -> int:
    """Say whether the service is installed and started at login."""
    if system == "win32":
        print_lines(["Windows knows the task: schtasks /Query /TN desk-rag"])
        return 0
    file = service_file(WatchCommand((), None), system)
    entry = _entry(file.path)
    installed = entry is not None and _is_ours(entry)
    enabled = installed and _is_enabled(file.path)
    if as_json:
        out.print_json(sys.stdout, {"path": str(file.path), "installed": installed, "enabled": enabled})
    elif entry is None:
        print_lines(["Not installed. desk-rag service install FOLDER writes the file that starts it at login."])
    elif not installed:
        print_lines([f"{shown_path(file.path)} exists and is not desk-rag's."])
    else:
        print_lines([f"Installed: {shown_path(file.path)}", *_enabled_lines(file, enabled=enabled, system=system)])
    return 0


def watch_command(settings: Settings, roots: Sequence[Path], config: Path | None) -> WatchCommand:
    """Return the command that watches `roots`, or the folders of the settings file."""
    script = Path(sys.executable).with_name("desk-rag.exe" if os.name == "nt" else "desk-rag")
    directory = None if script.is_file() else Path(desk_rag.__file__).parent.parent
    program = [str(script)] if directory is None else [sys.executable, "-m", "desk_rag"]
    options = ["--data-dir", str(settings.data_dir)]
    if config is not None:
        options += ["--config", str(config.expanduser().absolute())]
    words = (*program, *options, "watch", *map(str, roots))
    if any(ord(letter) < 32 for word in words for letter in word):
        raise ConfigError("A name with a control character cannot stand in a service's file.", remedy="Rename it.")
    return WatchCommand(words, directory)


def service_file(command: WatchCommand, system: str) -> ServiceFile:
    """Return the file for this system. Raises ConfigError for systems without systemd or launchd."""
    if system == "darwin":
        path = Path.home() / "Library" / "LaunchAgents" / _AGENT
        domain = f"gui/{os.getuid()}"
        return ServiceFile(
            path,
            _agent(command),
            start=f"launchctl bootstrap {domain} '{path}'",
            stop=f"launchctl bootout {domain} '{path}'",
            reload="",
        )
    if not system.startswith("linux"):
        raise ConfigError(
            f"desk-rag cannot install a service on this system ({system}).",
            remedy="Have the system run `desk-rag watch FOLDER` at login.",
        )
    base = os.environ.get("XDG_CONFIG_HOME", "")
    folder = (Path(base) if os.path.isabs(base) else Path.home() / ".config") / "systemd" / "user"  # noqa: PTH117
    return ServiceFile(
        folder / _UNIT,
        _unit(command),
        start=f"systemctl --user enable --now {_UNIT}",
        stop=f"systemctl --user disable --now {_UNIT}",
        reload="systemctl --user daemon-reload",
    )


def _unit(command: WatchCommand) -> str:
    """Return a systemd unit; `watch` lowers its own priority, but not that of answers."""
    directory = "" if command.directory is None else f"WorkingDirectory={_escaped(str(command.directory))}\n"
    return (
        f"# {MARKER}\n"
        "[Unit]\n"
        "Description=desk-rag keeps the index of your folders fresh\n\n"
        "[Service]\n"
        "Type=exec\n"
        f"ExecStart={' '.join(map(_quoted, command.words))}\n"
        f"{directory}"
        "Restart=on-failure\n"
        "RestartSec=60\n"
        "RestartPreventExitStatus=2\n\n"
        "[Install]\n"
        "WantedBy=default.target\n"
    )


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{_escaped(escaped)}"'


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _agent(command: WatchCommand) -> str:
    content: dict[str, object] = {
        "Label": _AGENT.removesuffix(".plist"),
        "ProgramArguments": list(command.words),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 60,
    }
    if command.directory is not None:
        content["WorkingDirectory"] = str(command.directory)
    head, _, rest = plistlib.dumps(content).decode().partition("\n")
    return f"{head}\n<!-- {MARKER} -->\n{rest}"


def _for_windows(command: WatchCommand) -> str:
    words = subprocess.list2cmdline(command.words).replace('"', '\\"')
    return words if command.directory is None else f'cmd /c cd /d \\"{command.directory}\\" && {words}'


def _entry(path: Path) -> Entry | None:
    return OwnedDirectory(path.parent).entry(path)


def _is_ours(entry: Entry) -> bool:
    return entry.is_file and MARKER.encode() in entry.start()[:400]


def _is_enabled(path: Path) -> bool:
    """Return whether systemd starts the unit at login; launchd does so for every file in its folder."""
    return os.path.lexists(path.parent / "default.target.wants" / path.name)


def _enabled_lines(file: ServiceFile, *, enabled: bool, system: str) -> list[str]:
    if system == "darwin":
        return [f"Started at every login. To start it now: {file.start}", f"To stop it: {file.stop}"]
    if enabled:
        return [f"Started at every login. To stop that: {file.stop}"]
    return [f"Not started at login. To change that: {file.start}"]


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{shown_path(path)} cannot be written: {error.strerror}.", remedy="Check that folder.")


def _foreign(path: Path) -> ConfigError:
    return ConfigError(
        f"{shown_path(path)} was not written by desk-rag, so it is left alone.",
        remedy="Move it away, then try again.",
    )
