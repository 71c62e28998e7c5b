"""A store on a drive of SIZE in memory: `PLACE SIZE SEED`, in a mount namespace of its own."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from desk_rag.errors import DeskRagError, StoreFull
from desk_rag.store.store import Store
from tests.store import made


def main() -> None:
    """Write until the drive is full, look, make room, write again, look."""
    place, size, seed = Path(sys.argv[1]) / "drive", sys.argv[2], int(sys.argv[3])
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)], check=True)
    chance = random.Random(seed)
    texts = {
        f"/d/{n}": [f"{n} {chance.randrange(99)} {'word ' * chance.randrange(300)}" for _ in range(4)]
        for n in range(60)
    }
    full = False
    try:
        with Store.open(place / "data", made.settings(), writer=True) as store:
            full = fill(store, texts)
    except StoreFull:
        full = True
    if left := list(place.rglob("*.tmp")):
        raise SystemExit(f"left on the full drive: {[path.name for path in left]}")
    subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
    with Store.open(place / "data", made.settings(), writer=True) as store:
        if fill(store, texts):
            raise SystemExit("still full with 64 MB")
        for path, wanted in texts.items():
            if [passage.chunk.text for passage in store.passages_of(Path(path))] != wanted:
                raise SystemExit(f"{path} is not whole once there is room")
        if problems := store.verify().problems:
            raise SystemExit(f"not clean: {problems[0].what}")
    print("full, then whole: ok" if full else "never full: ok")


def fill(store: Store, texts: dict[str, list[str]]) -> bool:
    """Put all documents and their KV; True if the drive was full on the way."""
    full = False
    for path, chunks in texts.items():
        try:
            store.put_document(made.document(Path(path), chunks), made.chunks(chunks), made.stamp())
            for text in chunks:
                store.put_kv(made.key(text), made.kv_for(made.key(text)), [made.chunk_id(text)], 0.5)
        except StoreFull:
            full = True
        except DeskRagError as error:
            raise SystemExit(f"another refusal: {error}") from error
    return full


if __name__ == "__main__":
    main()
