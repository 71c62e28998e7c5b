"""Turn dataclasses of an answer into JSON and back, by their annotations."""

from __future__ import annotations

import dataclasses
import functools
import os
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path

from desk_rag.answering.events import (
    AnswerDraft,
    AnswerEvent,
    AnswerText,
    AskedAs,
    Evidence,
    FilesWaiting,
    Finished,
    FirstToken,
    PassagesRead,
    ReasoningText,
    Retrieved,
    SentenceChecked,
)
from desk_rag.ingest import events

if typing.TYPE_CHECKING:
    from desk_rag.config import Settings

_EVENTS: dict[str, type[AnswerEvent]] = {
    kind.__name__: kind
    for kind in (
        FilesWaiting, AskedAs, Retrieved, FirstToken, PassagesRead, Evidence, AnswerText, AnswerDraft, ReasoningText,
        SentenceChecked, Finished,
    )
}  # fmt: skip
_INDEX_EVENTS: dict[str, type[events.IndexEvent]] = {kind.__name__: kind for kind in typing.get_args(events.IndexEvent)}


def settings_key(settings: Settings, cwd: Path | None = None) -> str:
    """Return the settings that must be equal in client and resident process, so that both answer alike."""
    absolute = with_absolute_paths(settings, cwd)
    shared = absolute.model_dump_json(include={"data_dir", "answer"})
    return shared + absolute.model.model_dump_json(exclude={"allow_download"})


def with_absolute_paths(settings: Settings, cwd: Path | None = None) -> Settings:
    """Return settings with paths made absolute from `cwd`, by default the working directory."""
    model, base = settings.model, cwd or Path.cwd()
    names = {"name": model.name, "adapter": model.adapter, "embedder": model.embedder}
    paths = {key: base / name for key, name in names.items() if os.sep in name}
    changes = {key: str(path) for key, path in paths.items() if path.exists()}
    return settings.model_copy(update={"model": model.model_copy(update=changes)})


def of_event(event: AnswerEvent | events.IndexEvent) -> dict[str, object]:
    """Convert an event of an answer, or of indexing, to JSON values."""
    return {"kind": type(event).__name__, "event": plain(event)}


def to_event(message: typing.Mapping[str, object]) -> AnswerEvent:
    """Return the event of a message. Raises ValueError, KeyError, TypeError for one that `of_event` did not make."""
    event: AnswerEvent = built(_EVENTS[str(message["kind"])], message["event"])
    return event


def to_index_event(message: typing.Mapping[str, object]) -> events.IndexEvent:
    """Return the index event of a message. Raises ValueError, KeyError, TypeError."""
    event: events.IndexEvent = built(_INDEX_EVENTS[str(message["kind"])], message["event"])
    return event


def plain(value: object) -> object:
    """Return JSON values for a dataclass, an enum, a path or a container of them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return value


def built(kind: typing.Any, value: typing.Any) -> typing.Any:
    """Return the value of type `kind` that `plain` turned into `value`. Raises TypeError, ValueError."""
    if isinstance(kind, typing.NewType):
        return built(kind.__supertype__, value)
    if typing.get_origin(kind) is not None:
        return _container(kind, value)
    if dataclasses.is_dataclass(kind):
        hints = _hints(typing.cast(type, kind))
        return kind(**{name: built(hints[name], item) for name, item in value.items()})  # type: ignore[operator]
    if isinstance(kind, type) and issubclass(kind, Enum | Path):
        return kind(value)
    if isinstance(value, int) and kind is float:
        return float(value)
    if not isinstance(value, kind):
        raise TypeError(f"{kind.__name__} expected")
    return value


def _container(kind: typing.Any, value: typing.Any) -> typing.Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return built(next(argument for argument in arguments if argument is not types.NoneType), value)
    if origin is tuple:
        repeated = len(arguments) == 2 and arguments[1] is Ellipsis
        kinds = [arguments[0]] * len(value) if repeated else arguments
        return tuple(built(one, item) for one, item in zip(kinds, value, strict=True))
    if origin is list:
        return [built(arguments[0], item) for item in value]
    if origin is dict:
        return {built(arguments[0], key): built(arguments[1], item) for key, item in value.items()}
    return value  # Literal


@functools.cache
def _hints(kind: type) -> dict[str, typing.Any]:
    return typing.get_type_hints(kind)


def engine_fields(
    settings: Settings, folders: Sequence[Path], settings_file: Path | None = None
) -> dict[str, object]:
    """Return settings, folders and the settings file as fields of a message; paths are made absolute."""
    absolute, file = with_absolute_paths(settings), "" if settings_file is None else str(settings_file.absolute())
    sent = {"settings": absolute.model_dump_json(), "folders": [str(folder) for folder in folders]}
    return {**sent, "settings_file": file}


def engine_arguments(fields: Mapping[str, object]) -> tuple[Settings, list[Path]]:
    """Return the settings and folders in the fields of a message (`engine_fields`)."""
    from desk_rag.config import Settings

    folders = typing.cast("list[str]", fields["folders"])
    return Settings.model_validate_json(str(fields["settings"])), [Path(folder) for folder in folders]


def settings_file(fields: Mapping[str, object]) -> Path | None:
    """Return the settings file that was sent; None if none was."""
    return Path(str(fields["settings_file"])) if fields.get("settings_file") else None
