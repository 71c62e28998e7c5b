"""Change single settings in the user's settings file, keeping comments, order and everything else as they are.

A change is checked as a whole before anything is written, and the file is replaced in one step.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag import config
from desk_rag.config import Settings
from desk_rag.errors import ConfigError

if TYPE_CHECKING:
    import tomlkit

Key = tuple[str, ...]
"""('folders',) at the top of the file, or ('index', 'exclude') in a section."""


class SettingsFile:
    """The settings file; it need not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def values(self) -> dict[Key, object]:
        """Return the settings that the file sets. Raises ConfigError if it is malformed."""
        set_here: dict[Key, object] = {}
        for name, value in self._document().unwrap().items():
            if isinstance(value, dict):
                set_here.update({(name, key): inner for key, inner in value.items()})
            else:
                set_here[name,] = value
        return set_here

    def check(self, changes: Mapping[Key, object]) -> Settings:
        """Return the settings that the file would hold after `changes`. Raises ConfigError if one is not valid."""
        return config.parsed(self._changed(changes), self.path)

    def write(self, changes: Mapping[Key, object]) -> Settings:
        """Make `changes` and return all settings of the file; None as a value takes a setting out.

        Raises ConfigError if one is not valid or the file cannot be written.
        """
        text = self._changed(changes)
        settings = config.parsed(text, self.path)
        try:
            _replace(self.path, text)
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be written: {error.strerror or error}.",
                remedy="Make room there or correct its permissions, or name another settings file with --config.",
            ) from error
        return settings

    def _changed(self, changes: Mapping[Key, object]) -> str:
        import tomlkit
        from tomlkit.exceptions import TOMLKitError

        document = self._document()
        try:
            for (*section, name), value in changes.items():
                place: object = document
                for part in section:
                    if part not in document and value is not None:
                        document[part] = tomlkit.table()
                    place = document.get(part, {})
                if not isinstance(place, dict):
                    raise ConfigError(f"'{section[0]}' in {self.path} is no section.", remedy="Correct that line.")
                if value is None:
                    if place.pop(name, None) is not None and section and not place and _is_bare(place):
                        document.pop(section[0])  # an empty section that a former change began
                elif _plain(place.get(name)) != value:
                    place[name] = value
        except TOMLKitError as error:
            raise ConfigError(f"{self.path} cannot be changed: {error}.", remedy="Change it by hand.") from error
        return tomlkit.dumps(document)

    def _document(self) -> tomlkit.TOMLDocument:
        import tomlkit
        from tomlkit.exceptions import TOMLKitError

        try:
            with self.path.open(encoding="utf-8", newline="") as file:  # line ends stay as they are
                text = file.read()
        except FileNotFoundError:
            return tomlkit.document()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.path} cannot be read: {error}.", remedy="Correct its permissions.") from error
        try:
            return tomlkit.parse(text)
        except (TOMLKitError, RecursionError) as error:
            raise ConfigError(
                f"{self.path} is not valid TOML: {error}.", remedy="Correct that line, or move the file away."
            ) from error


def _is_bare(section: object) -> bool:
    """Return whether a section holds nothing, no comment either."""
    text = getattr(section, "as_string", lambda: "")()
    return not str(text).strip()


def _plain(value: object) -> object:
    """Return a value of the file without what the file says around it."""
    unwrap = getattr(value, "unwrap", None)
    return value if unwrap is None else unwrap()


def _replace(path: Path, text: str) -> None:
    """Write a file as a whole; a link keeps pointing at what it points at, and permissions stay."""
    target = Path(os.path.realpath(path))
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            Path(name).chmod(target.stat().st_mode & 0o777)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
