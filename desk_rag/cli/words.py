"""Words of the command line: global options may stand before or after the command."""

from __future__ import annotations

from collections.abc import Sequence

from desk_rag.errors import ConfigError

_VALUE_OPTIONS = ("--model", "--adapter", "--quantization", "--embedder", "--device", "--rungs", "--data-dir",
                  "--config")  # fmt: skip
_FLAG_OPTIONS = ("--download",)


def split_globals(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the global options with their values, and the other words. Raises ConfigError."""
    ahead, rest = list[str](), list[str]()
    words = iter(argv)
    for word in words:
        if word == "--" or (word == "bench" and not rest):
            # What follows is not ours: plain words, or the options of a benchmark.
            rest.extend([word, *words])
        elif word in _VALUE_OPTIONS:
            ahead.extend([word, _value(word, next(words, "-"))])
        elif word in _FLAG_OPTIONS or word.split("=", 1)[0] in _VALUE_OPTIONS:
            ahead.append(word)
        else:
            rest.append(word)
    return ahead, rest


def _value(option: str, following: str) -> str:
    if following.startswith("-"):
        raise ConfigError(f"{option} needs a value.", remedy="desk-rag --help describes it.")
    return following
