"""Forks writers that a test kills. Run as a program: torch is loaded once here, each round is a fork of it.

Round line on stdin: 'ROOT SEED STEP'. The fork opens the store at ROOT and writes until it dies; STEP > 0 kills it at
that system call of its own writing, 0 leaves it to the test. To stdout goes a line before and after every operation
('putting', 'doc', 'kv', 'going', 'gone'), and 'end STATUS' when it is dead. No thread is ever started before a fork.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

import torch

from desk_rag.store.kv import chunk_file  # noqa: F401  (loaded before the fork)
from desk_rag.store.store import Store
from tests.store import made

CALLS = ("open", "write", "fsync", "replace", "unlink", "mkdir")


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def die_at(step: int) -> None:
    """Kill this process at its STEP-th system call that changes files."""
    count = 0
    for name in CALLS:
        real = getattr(os, name)

        def call(*args: object, _real: object = real, **kwargs: object) -> object:
            nonlocal count
            if args[:1] != (1,):  # not the acknowledgements
                count += 1
                if count == step:
                    os.kill(os.getpid(), signal.SIGKILL)
            return _real(*args, **kwargs)  # type: ignore[operator]

        setattr(os, name, call)


def write_for_ever(root: Path, seed: int, step: int) -> None:
    rng = random.Random(seed)
    with Store.open(root, made.settings(), writer=True) as store:
        say(f"pid {os.getpid()}")
        if step:
            die_at(step)
        while True:
            path = Path(f"/d/{rng.randrange(6)}")
            if rng.random() < 0.15:
                say(f"going {path}")
                store.remove_document(path)
                say(f"gone {path}")
                continue
            texts = [f"{path.name} {rng.randrange(8)} {part}" for part in range(rng.randrange(1, 4))]
            say(f"putting {path}")
            store.put_document(made.document(path, texts), made.chunks(texts), made.stamp())
            say(f"doc {path} {'|'.join(texts)}")
            for text in texts:
                key = made.key(text)
                if store.put_kv(key, made.kv_for(key), [made.chunk_id(text)], 0.5):
                    say(f"kv {text}")


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        root, seed, step = line.rsplit(maxsplit=2)
        pid = os.fork()
        if pid == 0:
            try:
                write_for_ever(Path(root), int(seed), int(step))
            finally:
                os._exit(3)
        _, status = os.waitpid(pid, 0)
        say(f"end {status}")


if __name__ == "__main__":
    main()
