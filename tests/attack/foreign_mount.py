"""Somebody's folder mounted in a data directory: `PLACE FOLDER SEED`, in a mount namespace of its own."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from desk_rag.errors import DeskRagError
from desk_rag.store.store import Store
from tests.store import made

TEXTS = [f"text {number}" for number in range(6)]


def main() -> None:
    """Fill a store, mount a folder in it, do everything that removes files, look at the folder."""
    place, inside = Path(sys.argv[1]), sys.argv[2]
    data, theirs = place / "data", place / "theirs"
    with Store.open(data, made.settings(), writer=True) as store:
        store.put_document(made.document(Path("/d/a"), TEXTS), made.chunks(TEXTS), made.stamp())
        for text in TEXTS:
            made.warm(store, text)
    theirs.mkdir()
    for name in ("thesis.md", "ab" * 16 + ".safetensors", "0123456789abcdef.hnsw", "x.tmp", "names.json"):
        (theirs / name).write_text(f"mine: {name}")
    theirs.chmod(0o755)
    before = look(theirs)
    (data / inside).mkdir(exist_ok=True)
    target = data / inside / "mounted" if inside == "kv" else data / inside
    target.mkdir(exist_ok=True)
    subprocess.run(["mount", "--bind", str(theirs), str(target)], check=True)
    said = ""
    try:
        with suppress(OSError), Store.open(data, made.settings(), writer=True) as store:
            store.verify(repair=True)
            store.purge(Path("/d/a"))
            store.empty_quarantine()
    except DeskRagError as error:
        said = "refused"
        print(error)
    subprocess.run(["umount", str(target)], check=True)
    after = look(theirs)
    if changed := [name for name in before if after.get(name) != before[name]]:
        raise SystemExit(f"a foreign folder mounted there was changed: {changed}")
    print(f"untouched{', ' + said if said else ''}: ok")


def look(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of everything."""
    entries = {path.name: (path.stat().st_mode, path.read_bytes()) for path in sorted(folder.iterdir())}
    return {**entries, ".": (folder.stat().st_mode, b"")}


if __name__ == "__main__":
    main()
