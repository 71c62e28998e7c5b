"""Sort global options before the command; users may write them before or after it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from desk_rag.errors import ConfigError

_VALUE_OPTIONS = ("--model", "--adapter", "--quantization", "--embedder", "--device", "--rungs", "--data-dir",
                  "--config")  # fmt: skip
_FLAG_OPTIONS = ("--download",)


def split_globals(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the global options with their values, and the other words. Raises ConfigError."""
    global_words, rest = list[str](), list[str]()
    words = iter(_with_value_of_continue(argv))
    for word in words:
        if word == "--" or (word == "bench" and not rest):
            # Plain words, or the options of a benchmark.
            rest.extend([word, *words])
        elif word in _VALUE_OPTIONS:
            global_words.extend([word, _value(word, next(words, "-"))])
        elif word in _FLAG_OPTIONS or word.split("=", 1)[0] in _VALUE_OPTIONS:
            global_words.append(word)
        else:
            rest.append(word)
    return global_words, rest


def _value(option: str, following: str) -> str:
    if following.startswith("-"):
        raise ConfigError(f"{option} needs a value.", remedy="desk-rag --help describes it.")
    return following


def _with_value_of_continue(argv: Sequence[str]) -> list[str]:
    """Write `--continue 7` as `--continue=7` and a bare `--continue`, which is about the latest chat, as with 0."""
    words = list[str]()
    for number, word in enumerate(argv, start=1):
        if words and words[-1] == "--continue":
            has_question = any(" " in each for each in (*words, *argv[number:]))
            if "ask" in words and has_question and re.fullmatch(r"(?!-)\S+", word) and not word.isdecimal():
                raise ConfigError(f"'{word}' is not the number of a chat.", remedy="desk-rag chats lists them.")
            words[-1:] = [f"--continue={word}"] if word.isdecimal() else ["--continue=0", word]
        else:
            words.append(word)
    return [*words[:-1], "--continue=0"] if words and words[-1] == "--continue" else words
