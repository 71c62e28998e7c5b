"""Decide which files desk-rag wrote, by the grammar of their names and by their content.

A data directory is recognised by its CACHEDIR.TAG or its catalog. A directory with neither is used only if everything
in it could be left from a creation that was interrupted. A file is removed only if its name fits the grammar and either
its content or a catalog row proves that desk-rag wrote it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from desk_rag.errors import ForeignPlace, of_system
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.owned_folder import Entry, Proof, proven

CATALOG = "catalog.sqlite"
CHATS = "chats.sqlite"
TAG = "CACHEDIR.TAG"
KV_RECORD = "kv-directory.json"
"""Name of the file in the data directory that says where chunk KV is kept, if elsewhere."""
KV_MARKER = "desk-rag-kv.json"
"""Name of the file in a `kv_dir` that says which data directory it belongs to."""
_SECTOR = 512
"""Bytes that a drive writes whole or not at all."""
_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"
TAG_CONTENT = _SIGNATURE + (
    b"\n# This directory holds caches made by desk-rag from your documents. Unless it is the default directory, your\n"
    b"# saved chats are in it, too (chats.sqlite).\n"
    b"# See https://bford.info/cachedir/\n"
)
SOCKET = "run/resident.sock"
"""Socket of a resident process (indexer/resident)."""
RATES = "rates.json"  # of loading and prefilling, as measured on this machine
LOCK = "run/writer.lock"
"""File that the writer holds a lock on."""
_OWN_FOLDERS = ("kv", "vectors", "quarantine")
"""Folders by which a store without a tag is recognised."""
_FOLDERS = (*_OWN_FOLDERS, "logs", "models", "run")
"""All folders in the order of removal; `run` is last because it holds the lock."""
_BEGUN = re.compile(
    r"kv(/[0-9a-f]{16}(/[0-9a-f]{2})?)?|vectors|quarantine"
    r"|run(/(writer\.(lock|pid)(\.\d+(-\d+)?\.tmp)?|catalog\.mark|held-removals\.(json|tmp)|answering(/\d+\.lock)?|resident\.sock))?"
    r"|logs(/(tui|indexer)\.log(\.\d+)?)?|models(/([0-9a-f]{32}(\.shift)?\.safetensors|names\.json)(\.\d+(-\d+)?\.tmp)?)?"
    r"|(drives|rates|kv-directory)\.json(\.\d+(-\d+)?\.tmp)?|CACHEDIR\.TAG\.\d+(-\d+)?\.tmp"
    r"|lost\+found|\.DS_Store"
)
"""Paths that may exist before the tag does; the last two belong to the operating system."""
SYSTEM_NAMES = frozenset(
    {"lost+found", ".DS_Store", ".Trashes", "Thumbs.db", "desktop.ini", "System Volume Information"}
)
"""Entries that operating systems make by themselves; they are neither ours nor foreign."""
_OWN_DIRECTORY = re.compile(r"kv(/[0-9a-f]{16}(/[0-9a-f]{2})?)?|vectors|quarantine|run(/answering)?|logs|models")
_LOG_LINE = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ \S")
_SQLITE = b"SQLite format 3\x00"
_DATABASE = re.compile(rf"{re.escape(CATALOG)}(-wal|-shm|-journal)?|{re.escape(CHATS)}(-journal)?")
_GRAPH_DATA_AT = 132
"""Offset of the vector in an element of an hnswlib graph with M = 16."""
_Content = Callable[[Entry, "re.Match[str]"], bool]


@dataclass(frozen=True, slots=True)
class Cleared:
    """Result of removing a store."""

    freed_bytes: int
    remaining: tuple[Path, ...]
    """Entries that are not ours or could not be removed; empty if the directory itself is gone."""


def is_store(root: Path) -> bool:
    """Return whether a directory has our CACHEDIR.TAG, or a catalog and the folders beside it."""
    has_parts = (root / CATALOG).is_file() and all((root / name).is_dir() for name in _OWN_FOLDERS)
    return has_parts or is_tagged(root)


def is_tagged(root: Path) -> bool:
    """Return whether a directory has a CACHEDIR.TAG that desk-rag wrote."""
    try:
        with (root / TAG).open("rb") as file:
            return _is_tag(file.read(len(TAG_CONTENT)))
    except OSError:
        return False


def first_foreign(root: Path) -> Path | None:
    """Return one foreign entry of a directory that is no store; None if there is none. Raises OSError."""
    if is_store(root):
        return None
    other = next((path for path in _everything(root) if not _BEGUN.fullmatch(path.relative_to(root).as_posix())), None)
    # Checked again because another process may have created its store here meanwhile.
    return None if other is None or is_store(root) else other


def stamp_of(status: os.stat_result) -> str:
    """Return 16 hex digits of size and time, which a rename keeps; names in quarantine contain them."""
    facts = f"{status.st_size} {int(status.st_mtime) // 2}"
    return hashlib.blake2b(facts.encode(), digest_size=8).hexdigest()


def content_proves(name: str) -> Proof:
    """Return the proof for a file; `name` is its path below the data directory, with slashes.

    Files of a `kv_dir` are named as if they were in `kv`. A name outside the grammar is never proven.
    """

    def proof(entry: Entry) -> bool:
        return entry.is_file and any(
            content(entry, match) for pattern, content in _GRAMMAR if (match := pattern.fullmatch(name)) is not None
        )

    return proof


def foreign_in(root: Path, known: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Yield the files in a data directory that desk-rag did not write; `known` names files that catalog rows prove."""
    return _foreign(OwnedDirectory(root), lambda path: path.relative_to(root).as_posix(), known)


def foreign_in_kv(place: Path, known: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Yield the files in a `kv_dir` that desk-rag did not write; `known` as in `foreign_in`."""
    return _foreign(OwnedDirectory(place, follow=False), lambda path: name_in_kv(place, path), known)


def clear(root: Path, known: frozenset[str] = frozenset()) -> Cleared:
    """Remove what is ours, then the directory itself if it is empty. Check `is_store` before.

    Links and what they point to stay. If this is interrupted, what remains is still recognised as a store, because the
    folders are emptied before the catalog is removed and removed after it. Raises StoreError, OSError.
    """
    home = OwnedDirectory(root)
    freed = 0
    try:
        home.remove_socket(root / SOCKET)
        for name in _FOLDERS:
            freed += _empty(home, root / name, known)
        for file in sorted(root.iterdir(), reverse=True):  # the files beside the catalog before the catalog
            if file.name != TAG:
                freed += _unlink(home, file, content_proves(file.name))
        for name in _FOLDERS:
            home.remove_directory(root / name)
        if is_tagged(root):
            freed += _unlink(home, root / TAG, content_proves(TAG))
        remaining = tuple(sorted(root.iterdir()))
        if not remaining:
            OwnedDirectory(root.parent).remove_directory(root)
    except OSError as error:
        raise of_system(error, root) or error from error
    return Cleared(freed, remaining)


def clear_lock(root: Path, cleared: Cleared) -> Cleared:
    """Remove the writer's lock where `clear` could not, because it was held; call this after its release."""
    if root / "run" not in cleared.remaining:
        return cleared
    home = OwnedDirectory(root)
    _unlink(home, root / LOCK, content_proves(LOCK))
    home.remove_directory(root / "run")
    remaining = tuple(sorted(root.iterdir()))
    if not remaining:
        OwnedDirectory(root.parent).remove_directory(root)
    return Cleared(cleared.freed_bytes, remaining)


def clear_kv(place: Path, known: frozenset[str] = frozenset()) -> Cleared:
    """Remove what is ours from a `kv_dir`, the marker last; the directory itself stays."""
    owner = OwnedDirectory(place, follow=False)
    files = [path for path, _ in owner.scan(place)]
    files.sort(key=lambda path: (path.name == KV_MARKER, path.name == TAG, path))
    freed = _remove(owner, files, place, lambda path: name_in_kv(place, path), known)
    remaining = tuple(sorted(path for path in place.iterdir() if path.name not in SYSTEM_NAMES))
    return Cleared(freed, remaining)


def name_in_kv(place: Path, path: Path) -> str:
    """Return the name that a path in a `kv_dir` would have in a data directory."""
    parts = path.relative_to(place).parts
    return "/".join(parts if parts[0] in ("quarantine", TAG, KV_MARKER) else ("kv", *parts))


def _foreign(owner: OwnedDirectory, name_of: Callable[[Path], str], known: frozenset[str]) -> Iterator[Path]:
    for path, status in owner.scan(owner.root, skip=lambda path: path.name in SYSTEM_NAMES):
        name = name_of(path)
        if (name in known and stat.S_ISREG(status.st_mode)) or (name == SOCKET and stat.S_ISSOCK(status.st_mode)):
            continue
        # To close a database's file would give up the locks that SQLite holds on it in this process (POSIX).
        if _DATABASE.fullmatch(name) and stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and is_store(owner.root):
            continue
        entry = owner.entry(path)
        if entry is not None and not content_proves(name)(entry):
            yield path


def _empty(home: OwnedDirectory, folder: Path, known: frozenset[str]) -> int:
    try:
        files = sorted(path for path, _ in home.scan(folder))
    except ForeignPlace:
        return 0
    return _remove(home, files, folder, lambda path: path.relative_to(home.root).as_posix(), known)


def _remove(
    owner: OwnedDirectory, files: Sequence[Path], folder: Path, name_of: Callable[[Path], str], known: frozenset[str]
) -> int:
    """Remove those `files` that are ours, then our directories below `folder`; return the bytes freed."""
    freed = 0
    for path in files:
        name = name_of(path)
        freed += _unlink(owner, path, proven if name in known else content_proves(name))
    for directory in _directories(owner, folder):
        if _OWN_DIRECTORY.fullmatch(name_of(directory)):
            owner.remove_directory(directory)
    return freed


def _directories(owner: OwnedDirectory, folder: Path) -> list[Path]:
    """Return the directories below a folder, innermost first; none behind a link."""
    below: list[Path] = []
    try:
        with owner.opened(folder) as opened:
            names = [name for name, status in opened.scan() if stat.S_ISDIR(status.st_mode)]
    except (ForeignPlace, OSError):
        return below
    for name in names:
        below += [*_directories(owner, folder / name), folder / name]
    return below


def _everything(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in entries:
            yield Path(entry.path)
            if entry.name != "lost+found" and entry.is_dir(follow_symlinks=False):  # readable by root only
                yield from _everything(Path(entry.path))


def _unlink(owner: OwnedDirectory, file: Path, proof: Proof) -> int:
    try:
        removed = owner.remove(file, proof)
    except PermissionError:
        if file != owner.root / LOCK:
            raise
        return 0  # Windows removes no file that is open; `clear_lock` does so later
    return 0 if removed is None else removed.st_size


# proofs -------------------------------------------------------------------------------------------------------------


def _is_tag(start: bytes) -> bool:
    return start.startswith(_SIGNATURE) and b"desk-rag" in start  # other programs tag their caches too


def _unwritten(start: bytes) -> bool:
    """Return whether a file is empty or holds only the zeros that a power cut leaves."""
    return not any(start)


def _kv_header(start: bytes, namespace: str, tokens: str) -> bool:
    """Return whether the header of a KV file names its place, whether or not its checksum is right."""
    head = start[:4096]
    expected = (b'"producer":"desk-rag ', f'"namespace":"{namespace}'.encode(), f'"key":"{tokens}"'.encode())
    return head[8:].startswith(b'{"__metadata__":{') and all(piece in head for piece in expected)


def _kv(entry: Entry, match: re.Match[str]) -> bool:
    return match["tokens"].startswith(match["folder"]) and _kv_header(entry.start(), match["n"], match["tokens"])


def _kv_temporary(entry: Entry, match: re.Match[str]) -> bool:
    return match["tokens"].startswith(match["folder"]) and _is_cut_off(entry.start())


def _quarantined(entry: Entry, match: re.Match[str]) -> bool:
    return match["stamp"] == stamp_of(entry.status) or _kv_header(entry.start(), match["n"], match["tokens"])


def _quarantined_catalog(entry: Entry, match: re.Match[str]) -> bool:
    start = entry.start()
    return match["stamp"] == stamp_of(entry.status) or (start.startswith(_SQLITE) and b"chunk_words" in start)


def _quarantined_chats(entry: Entry, match: re.Match[str]) -> bool:
    start = entry.start()
    return match["stamp"] == stamp_of(entry.status) or (start.startswith(_SQLITE) and b"asked_as" in start)


def _graph(entry: Entry, _match: re.Match[str]) -> bool:
    start = entry.start()
    if len(start) < 48:
        return False
    _, _, _, stride, label_at, data_at = struct.unpack("<6Q", start[:48])
    return bool(data_at == _GRAPH_DATA_AT and stride == label_at + 8)


def _graph_facts(entry: Entry, _match: re.Match[str]) -> bool:
    return re.match(rb'[0-9a-f]{16}\n\{"version": ', entry.start()) is not None


def _model_record(entry: Entry, match: re.Match[str]) -> bool:
    start, record = entry.start(), (b'"canaries"', b'"probe"', b'"told"')
    words = (b'"desk-rag shift ', b'"knots"') if match["shift"] else record
    return start[8:].startswith(b"{") and all(word in start for word in words)


def _json(*keys: str) -> _Content:
    """Return the proof for a small JSON object with no other keys than these."""

    def proof(entry: Entry, _match: re.Match[str]) -> bool:
        try:
            value = json.loads(entry.start())
        except (ValueError, RecursionError):
            return False
        return isinstance(value, dict) and value.keys() <= set(keys)

    return proof


def _or_unwritten(content: _Content) -> _Content:
    return lambda entry, match: _is_cut_off(entry.start()) or content(entry, match)


def _is_cut_off(start: bytes) -> bool:
    """True for what a power cut may leave of a temporary file: a first sector of zeros, or a header that begins."""
    return _unwritten(start[:_SECTOR]) or b'{"' in (start[:2], start[8:10], start[17:19])


def _log(entry: Entry, _match: re.Match[str]) -> bool:
    return entry.status.st_size == 0 or _LOG_LINE.match(entry.start()) is not None


def _pid(entry: Entry, _match: re.Match[str]) -> bool:
    return re.fullmatch(rb"\d{0,10}", entry.start()) is not None


def _mark(entry: Entry, _match: re.Match[str]) -> bool:
    return entry.start().startswith(b"desk-rag catalog ") or entry.status.st_size == 0


def _held_removals(entry: Entry, _match: re.Match[str]) -> bool:
    return re.match(rb'\{"[0-9a-f]{16}": \[', entry.start()) is not None


def _empty_file(entry: Entry, _match: re.Match[str]) -> bool:
    return entry.status.st_size == 0


def _catalog(entry: Entry, _match: re.Match[str]) -> bool:
    """Prove a database by content or, since a damaged one holds text to be removed, by its directory."""
    return entry.start().startswith(_SQLITE) or entry.status.st_size == 0 or is_store(entry.path.parent)


def _tag_file(entry: Entry, _match: re.Match[str]) -> bool:
    return _is_tag(entry.start()) or (entry.path.name != TAG and TAG_CONTENT.startswith(entry.start()))


_STAMP = r"(\.(?P<stamp>[0-9a-f]{16}))"
_MODEL = r"models/[0-9a-f]{32}(?P<shift>\.shift)?\.safetensors"
_TEMPORARY = r"\.\d+(-\d+)?\.tmp"
_KV = r"kv/(?P<n>[0-9a-f]{16})/(?P<folder>[0-9a-f]{2})/(?P<tokens>[0-9a-f]{32})"
_RECORD = _json("id", "path", "producer")
_GRAMMAR: tuple[tuple[re.Pattern[str], _Content], ...] = tuple(
    (re.compile(pattern), content)
    for pattern, content in (
        (rf"{_KV}\.safetensors", _kv),
        (rf"{_KV}\.\d+-\d+\.tmp", _kv_temporary),
        (rf"quarantine/(?P<n>[0-9a-f]{{16}})-(?P<tokens>[0-9a-f]{{32}})\.\d+-\d+{_STAMP}?\.safetensors", _quarantined),
        (r"quarantine/catalog\.\d+(\.(?P<stamp>[0-9a-f]{16}))?\.sqlite", _quarantined_catalog),
        (r"quarantine/chats\.\d+\.(?P<stamp>[0-9a-f]{16})\.sqlite", _quarantined_chats),
        (r"vectors/[0-9a-f]{16}\.hnsw", _graph),
        (r"vectors/[0-9a-f]{16}\.json", _graph_facts),
        (rf"vectors/[0-9a-f]{{16}}\.hnsw({_TEMPORARY}|\.tmp)", _or_unwritten(_graph)),
        (rf"vectors/[0-9a-f]{{16}}\.json{_TEMPORARY}", _or_unwritten(_graph_facts)),
        (_MODEL, _model_record),
        (rf"{_MODEL}{_TEMPORARY}", _or_unwritten(_model_record)),
        (r"models/names\.json", _json("model", "embedder", "auxiliary")),
        (rf"models/names\.json{_TEMPORARY}", _or_unwritten(_json("model", "embedder", "auxiliary"))),
        (r"logs/(tui|indexer)\.log(\.\d+)?", _log),
        (r"run/(answering/\d+|writer)\.lock", _empty_file),
        (rf"run/writer\.pid({_TEMPORARY})?", _pid),
        (r"run/catalog\.mark", _mark),
        (rf"run/held-removals\.(json({_TEMPORARY})?|tmp)", _or_unwritten(_held_removals)),
        (rf"drives\.json({_TEMPORARY})?", _or_unwritten(_json("version", "drives"))),
        (rf"{re.escape(RATES)}({_TEMPORARY})?", _or_unwritten(_json("rates"))),
        (rf"{re.escape(KV_RECORD)}({_TEMPORARY})?", _or_unwritten(_RECORD)),
        (rf"{re.escape(KV_MARKER)}({_TEMPORARY})?", _or_unwritten(_RECORD)),
        (rf"{re.escape(TAG)}({_TEMPORARY})?", _tag_file),
        (rf"{re.escape(CATALOG)}(-wal|-shm|-journal)?", _catalog),
        (rf"{re.escape(CHATS)}(-journal)?", _catalog),
        (rf"{re.escape(CHATS)}{_TEMPORARY}", _catalog),
    )
)
"""Every name that desk-rag gives a file, and the proof of its content."""
