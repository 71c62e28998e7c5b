"""Forks copies between two stores that die at a given system call. Run as a program: torch is loaded once.

Round line on stdin: 'export SOURCE TARGET STEP' or 'import SOURCE TARGET OLD=NEW STEP'; the fork dies at that system
call of its own writing. To stdout goes 'end STATUS' when it is dead or done. No thread is started before a fork.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from desk_rag.config import IndexSettings
from desk_rag.ingest.transfer import Copy, PathMap
from desk_rag.store.kv import chunk_file  # noqa: F401  (loaded before the fork)
from desk_rag.store.store import Store
from tests.store import made
from tests.store.kill_child import die_at, say


def copy(action: str, source_dir: str, target_dir: str, renamed: str, step: int) -> None:
    source = Store.open(Path(source_dir), made.settings(), writer=False)
    with Store.open(Path(target_dir), made.settings(), writer=True) as target:
        die_at(step)
        if action == "export":
            Copy(source, target).export(lambda done, total: None)
        else:
            old, new = renamed.split("=")
            paths = PathMap(((Path(old), Path(new)),))
            Copy(source, target).import_(paths, {str(made.NS)}, IndexSettings(), lambda done, total: None)


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        action, source, target, *rest = line.split()
        pid = os.fork()
        if pid == 0:
            try:
                copy(action, source, target, rest[0] if len(rest) > 1 else "", int(rest[-1]))
            finally:
                os._exit(3)
        _, status = os.waitpid(pid, 0)
        say(f"end {os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0}")


if __name__ == "__main__":
    main()
