"""Commands of desk-rag in processes forked from one that has imported everything.

Most of a short command's life goes into imports, which a kill cannot harm. A forked command begins with its own work at
once, so that kills at random instants meet that.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess

import psutil

_PRELOADED = [
    "desk_rag.cli.main",
    "desk_rag.cli.work",
    "desk_rag.indexer.daemon",
    "desk_rag.answering.opening",
    "torch",
]
_LONGEST = 8.0
"""Seconds by the clock after which a command without work is killed."""


def start(words: Sequence[str], environment: Mapping[str, str]) -> BaseProcess:
    """Start a command in a session of its own, without output."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    process = context.Process(target=_run, args=(list(words), dict(environment)))
    process.start()
    return process


def wait_some(process: BaseProcess, chance: random.Random) -> None:
    """Wait until the command has worked for a random time, is without work, or has ended."""
    busy, ends = chance.uniform(0.0, 3.0), time.monotonic() + chance.uniform(2.0, _LONGEST)
    with suppress(psutil.Error):
        watched = psutil.Process(process.pid)
        while process.is_alive() and time.monotonic() < ends:
            used = watched.cpu_times()
            if used.user + used.system > busy:
                return
            time.sleep(0.005)


def _run(words: list[str], environment: dict[str, str]) -> None:
    from desk_rag.cli.main import main

    os.environ.update(environment)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    sys.argv = ["desk-rag", *words]
    sys.exit(main())
