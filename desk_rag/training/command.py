"""The command line that the trainers of embedder and pointer share."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from desk_rag.errors import ConfigError, told_to_user
from desk_rag.retrieval.embedding import embedded_dir
from desk_rag.sanitize import clean

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Settings = TypeVar("Settings", bound=DataclassInstance)

Say = Callable[[str], None]
"""Prints a line with the seconds that have passed."""


def run(
    argv: Sequence[str] | None,
    module: str,
    description: str | None,
    settings: type[Settings],
    train: Callable[[Path, Sequence[Path], Path, Settings, Say], None],
) -> int:
    """Parse an output folder, data folders and settings, and train with them; returns an exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("out", type=Path, help="folder for the result")
    parser.add_argument("data", type=Path, nargs="+", help="folders with qa_train* and, if any, unanswerable_train*")
    parser.add_argument("--start", type=Path, help="folder with the embedder, if not the installed one")
    for field in fields(settings):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    arguments = parser.parse_args(argv)
    began = time.perf_counter()

    def say(text: str) -> None:
        print(f"{time.perf_counter() - began:6.0f} s  {text}", flush=True)

    try:
        chosen = settings(**{field.name: getattr(arguments, field.name) for field in fields(settings)})
        if arguments.out.exists() and not arguments.out.is_dir():
            remedy = "Name a folder, there or not yet, for the result."
            raise ConfigError(f"{arguments.out} is no folder.", remedy=remedy)
        arguments.out.mkdir(parents=True, exist_ok=True)  # what cannot be written is better known before training
        train(arguments.out, arguments.data, arguments.start or embedded_dir(), chosen, say)
    except Exception as error:
        message = told_to_user(error)
        if message is None:
            raise
        sys.stderr.write(clean(f"desk-rag: {message}\n"))
        return message.exit_code
    return 0
