"""Send a question to the process that answers for others before the libraries of the command line are imported.

That process works on the answer meanwhile. Words that are not understood here are left to the command line, which has
the last word: `ask` uses the answer only if it would have sent the same question.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from desk_rag.cli.arguments.words import split_globals
from desk_rag.errors import DeskRagError
from desk_rag.indexer.resident import client
from desk_rag.indexer.resident.protocol import Connection, NoResident

_VALUES = {"--folder": "folders", "-f": "folders", "--mode": "mode", "--top-k": "top_k"}
_FLAGS = {"--private", "--json", "--no-wait", "--no-index"}
_PLACES = {"--data-dir": "DESK_RAG_DATA_DIR", "--config": "DESK_RAG_CONFIG"}


@dataclass(frozen=True, slots=True)
class Question:
    """A question as it is sent."""

    text: str
    limit: tuple[Path, ...]
    mode: str
    top_k: int | None
    index_first: bool
    wait: bool


@dataclass(frozen=True, slots=True)
class EarlyQuestion:
    """A question that was sent, where its settings come from, and the connection over which the answer comes."""

    question: Question
    config: Path | None
    data_dir: Path | None
    connection: Connection


def send(argv: Sequence[str]) -> EarlyQuestion | None:
    """Send the question in the words of a command line; None if they are another command or nobody listens."""
    if "ask" not in argv:
        return None
    with suppress(DeskRagError, NoResident, OSError, ValueError, RuntimeError):
        global_words, words = split_globals(argv)
        places = dict(zip(global_words[::2], global_words[1::2], strict=True))
        question = _question(words)
        if question is None or not places.keys() <= _PLACES.keys():
            return None
        config, data_dir = (_place(places, option) for option in ("--config", "--data-dir"))
        file = _settings_file(config)
        message: dict[str, object] = {
            "do": "ask",
            "request": {
                "question": question.text,
                "limit": [str(path) for path in question.limit],
                "mode": question.mode,
                "top_k": question.top_k,
            },
            "wait": question.wait,
            "index_first": question.index_first,
            "settings_file": {"path": str(file or ""), "cwd": str(Path.cwd())},
        }
        connection = client.send(data_dir or _data_dir(file), message)
        return EarlyQuestion(question, config, data_dir, connection)
    return None


def _question(words: Sequence[str]) -> Question | None:
    """Return the question in `ask QUESTION… [OPTION…]`; None for words that only the command line understands."""
    values: dict[str, list[str]] = {"folders": [], "mode": [], "top_k": []}
    flags, plain, rest = set[str](), list[str](), iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name in _VALUES and (equals or not name.startswith("--") or name == word):
            values[_VALUES[name]].append(value if equals else next(rest, ""))
        elif word in _FLAGS:
            flags.add(word)
        elif word.startswith("-"):
            return None
        else:
            plain.append(word)
    text = " ".join(plain[1:]).strip()
    if plain[:1] != ["ask"] or not text or not all(map(all, values.values())):
        return None
    folders = [Path(folder).expanduser() for folder in values["folders"]]
    if not all(os.access(folder, os.R_OK) for folder in folders):
        return None
    top_k = int(values["top_k"][-1]) if values["top_k"] else None
    return Question(
        text, tuple(folder.absolute().resolve() for folder in folders), (values["mode"] or ["cached"])[-1],
        top_k, "--no-index" not in flags, "--no-wait" not in flags,
    )  # fmt: skip


def _place(places: dict[str, str], option: str) -> Path | None:
    named = places.get(option) or os.environ.get(_PLACES[option])
    return Path(named) if named else None


def _settings_file(config: Path | None) -> Path | None:
    """Return the settings file, absolute, named or in the default place; None if there is none there."""
    if config is not None:
        return config.expanduser().absolute()
    import platformdirs

    file = Path(platformdirs.user_config_dir("desk-rag"), "config.toml")
    return file if file.is_file() else None


def _data_dir(file: Path | None) -> Path:
    """Return the data directory that a settings file names, or the default one."""
    named: object = None
    if file is not None:
        import tomllib

        named = tomllib.loads(file.read_text(encoding="utf-8")).get("data_dir")
    if isinstance(named, str):
        return Path(named)
    import platformdirs

    return Path(platformdirs.user_cache_dir("desk-rag"))
