"""List every setting with meaning, value and origin, say what a change costs, and make it."""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args, get_origin

from pydantic import BaseModel

from desk_rag.config import GIB, Settings
from desk_rag.sanitize import home_path
from desk_rag.settings_file import Key
from desk_rag.tui.keys.keymap import checked
from desk_rag.tui.wording import count, gib

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from desk_rag.store.types import Counts
    from desk_rag.tui.management.session import Session

_AT_ONCE = frozenset({"index", "idle", "ui"})
"""Sections whose settings take effect without a restart."""
_OTHER_CACHES = (
    "Caches belong to one model: {warm} would not be used by another. They stay until their room is needed, and "
    "caches for the new model are computed while the computer is idle; until then answers are slower."
)
_COSTS: Mapping[Key, str] = {
    ("model", "name"): _OTHER_CACHES,
    ("model", "adapter"): _OTHER_CACHES,
    ("model", "quantization"): _OTHER_CACHES,
    ("model", "rungs"): "Every chunk is kept once for each number: {warm} would be computed again for new ones.",
    ("model", "embedder"): "All vectors are computed again: {chunks}. Until then passages are found by words only.",
    ("index", "max_text_mib"): "All files are read again: {files}. Chunks whose text stays the same keep their caches.",
    ("index", "max_file_mib"): "Files above the limit leave the index, or are read for the first time.",
    ("store", "kv_dir"): "Caches begin anew in the other directory: {warm} stay where they are, unused.",
    ("data_dir",): "A new, empty index begins there: {files} would be read again. The old index stays where it is.",
    ("folders",): "Folders that are no longer named are not looked at again; what is indexed of them stays.",
}
_VARIABLES: Mapping[Key, str] = {("data_dir",): "DESK_RAG_DATA_DIR"}


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting in the list."""

    key: Key
    meaning: str
    value: object
    """Value in the settings file, or the default; editing starts from it."""
    default: object
    origin: str
    """'default', 'file', 'command line', 'environment', or 'next start' for a change that this run does not obey."""
    in_use: object
    """Value with which this run works."""
    choices: tuple[str, ...] = ()
    """All possible values, if there are only a few."""

    @property
    def name(self) -> str:
        """The name that the guides use: 'index.exclude'."""
        return ".".join(self.key)


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A change that was checked but not yet made."""

    row: SettingRow
    value: object
    """New value; None removes the setting from the file."""
    cost: str
    """Cost in words; '' if nothing is read or computed again."""


class SettingsList:
    """View of the settings that can change them. Every method may take a while and raises ConfigError."""

    def __init__(self, session: Session) -> None:
        """Create it in the UI's thread: CPython's `ast` is not safe in two threads, and Textual uses it there."""
        self._session = session
        self._fields = _fields()

    def rows(self) -> list[SettingRow]:
        """Return every setting, in the order of the guide."""
        in_file = self._session.file.values()
        file_settings = self._session.file.check({})
        rows = []
        for key, (meaning, field) in self._fields.items():
            value, in_use = _value(file_settings, key), self._in_use(key)
            default = field.get_default(call_default_factory=True)
            origin = "file" if key in in_file else "default"
            if _absolute(in_use) == _absolute(value):
                in_use = value
            elif key in self._session.changed:
                origin = "next start"
            else:
                origin = "environment" if _is_of_environment(key, in_use) else "command line"
            rows.append(SettingRow(key, meaning, value, default, origin, in_use, _choices(field)))
        return rows

    def _in_use(self, key: Key) -> object:
        return self._session.folders if key == ("folders",) else _value(self._session.settings, key)

    def prepare(self, row: SettingRow, text: str) -> SettingChange:
        """Check a new value, as it was typed; empty text means the default."""
        value = _typed(row, text)
        after = self._session.file.check({row.key: value})
        checked(after.ui.keys)
        if row.key == ("model", "name"):
            from desk_rag.model import weights

            weights.resolve(after.model.name, allow_download=False)
        return SettingChange(row, value, self._cost(row, after))

    def make(self, change: SettingChange) -> str:
        """Write a change to the file and obey it if that needs no new start; return what was done."""
        session, key = self._session, change.row.key
        after = session.file.write({key: change.value})
        session.changed.add(key)
        said = f"{change.row.name} is {shown(_value(after, key))}"
        if key[0] not in _AT_ONCE:
            return f"{said} from the next start on."
        section = getattr(session.settings, key[0]).model_copy(update={key[1]: _value(after, key)})
        settings = session.settings.model_copy(update={key[0]: section})
        if key[0] == "ui":
            session.settings = settings
            return f"{said} now."
        return f"{said} now." if session.use(settings, session.folders) else f"{said} from the next start on."

    def _cost(self, row: SettingRow, after: Settings) -> str:
        new = _value(after, row.key)
        if new == row.value:
            return ""
        store = self._session.store()
        counts = store.counts(self._session.namespace()) if store is not None else None  # type: ignore[arg-type]
        if row.key == ("store", "budget_gib"):
            return _budget_cost(after.store.budget_gib, counts)
        if row.key == ("index", "exclude"):
            return _rules_cost(self._session.settings.index.exclude, after.index.exclude)
        sentence = _COSTS.get(row.key, "")
        if not sentence or counts is None or not (counts.files or counts.kv_bytes):
            return ""
        return sentence.format(
            warm=count(counts.warm, "chunk cache"),
            chunks=count(counts.chunks, "chunk"),
            files=count(counts.files, "file"),
        )


def shown(value: object) -> str:
    """Return a value as it would stand in the settings file, but text without quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(str(part) if isinstance(part, int) else f'"{shown(part)}"' for part in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f' {name} = "{part}"' for name, part in value.items()) + (" }" if value else "}")
    if isinstance(value, Path):
        return home_path(value)
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) or '""'


def _typed(row: SettingRow, text: str) -> object:
    """Return what was typed as a value for the file; what is no TOML value is text."""
    if not text.strip():
        return None
    is_text = isinstance(row.default, str) and row.key != ("answer", "recompute")
    try:
        value: object = tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    return value if not is_text or isinstance(value, str) else text.strip()


def _rules_cost(before: Sequence[str], after: Sequence[str]) -> str:
    """Say which files leave the index and which are read by the change of rules."""
    said = []
    if added := [rule for rule in after if rule not in before]:
        said.append(f"Documents that {_quoted(added)} names leave the index; their caches are kept for a while.")
    if lifted := [rule for rule in before if rule not in after]:
        said.append(f"Files that {_quoted(lifted)} left out are read, unless another rule names them.")
    return " ".join(said)


def _quoted(rules: Sequence[str]) -> str:
    return " or ".join(f"“{rule}”" for rule in rules)


def _budget_cost(budget_gib: float, counts: Counts | None) -> str:
    too_much = 0 if counts is None else counts.kv_bytes - int(budget_gib * GIB)
    if too_much <= 0:
        return ""
    return f"{gib(too_much)} of caches are deleted at the next start, those that save least first."


def _value(settings: Settings, key: Key) -> object:
    value: object = settings
    for part in key:
        value = getattr(value, part)
    return value


def _absolute(value: object) -> object:
    """Return a value whose paths can be compared; other values unchanged."""
    if isinstance(value, tuple):
        return tuple(map(_absolute, value))
    return value.expanduser().absolute() if isinstance(value, Path) else value


def _is_of_environment(key: Key, in_use: object) -> bool:
    """Return whether an environment variable sets the value."""
    text = os.environ.get(_VARIABLES.get(key, ""), "")
    return bool(text) and _absolute(Path(text)) == _absolute(in_use)


@cache
def _fields() -> Mapping[Key, tuple[str, FieldInfo]]:
    """Return meaning and field of every setting; those of no section come first."""
    fields: dict[Key, tuple[str, FieldInfo]] = {}
    sections: dict[Key, tuple[str, FieldInfo]] = {}
    meanings = docstrings(Settings)
    for name, field in Settings.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            inner_meanings = docstrings(kind)
            for inner, inner_field in kind.model_fields.items():
                sections[name, inner] = (inner_meanings.get(inner, ""), inner_field)
        else:
            fields[name,] = (meanings.get(name, ""), field)
    return {**fields, **sections}


def _choices(field: FieldInfo) -> tuple[str, ...]:
    if field.annotation is bool:
        return ("true", "false")
    return tuple(map(str, get_args(field.annotation))) if get_origin(field.annotation) is Literal else ()


def docstrings(section: type[BaseModel]) -> dict[str, str]:
    """Return what the string below each setting says."""
    body = _classes(section.__module__)[section.__name__]
    meanings: dict[str, str] = {}
    for before, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and _is_text(after):
            assert isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            meanings[before.target.id] = re.sub(r"\s+", " ", str(after.value.value)).strip()
    return meanings


@cache
def _classes(module: str) -> Mapping[str, ast.ClassDef]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
