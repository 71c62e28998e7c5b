"""Which files of a data directory desk-rag wrote: the grammar of their names, and the proof in their content.

A data directory is told from any other by its CACHEDIR.TAG or its catalog. Where neither is, nothing is made and
nothing is removed unless all there is could only come from a creation that was cut off. A file is removed only if its
name is one of ours and either its content or a catalog row says that desk-rag wrote it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from desk_rag.errors import ForeignPlace, of_system
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.owned_folder import Entry, Proof

CATALOG = "catalog.sqlite"
TAG = "CACHEDIR.TAG"
KV_RECORD = "kv-directory.json"
"""In the data directory: where the chunk KV lies, if elsewhere."""
KV_MARKER = "desk-rag-kv.json"
"""In a `kv_dir`: which data directory it belongs to."""
_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"
TAG_CONTENT = _SIGNATURE + (
    b"\n# This directory holds caches made by desk-rag; all of it can be made again from your documents.\n"
    b"# See https://bford.info/cachedir/\n"
)
_OWN_FOLDERS = ("kv", "vectors", "quarantine")
"""Folders by which a store is known."""
_FOLDERS = (*_OWN_FOLDERS, "logs", "models", "run")
"""All folders; `run` last: it holds the lock."""
_BEGUN = re.compile(
    r"kv(/[0-9a-f]{16}(/[0-9a-f]{2})?)?|vectors|quarantine"
    r"|run(/(writer\.(lock|pid)(\.\d+(-\d+)?\.tmp)?|catalog\.mark|held-removals\.(json|tmp)|answering(/\d+\.lock)?))?"
    r"|logs(/(tui|indexer)\.log(\.\d+)?)?|models(/([0-9a-f]{32}\.safetensors|names\.json)(\.\d+(-\d+)?\.tmp)?)?"
    r"|(drives|kv-directory)\.json(\.\d+(-\d+)?\.tmp)?|CACHEDIR\.TAG\.\d+(-\d+)?\.tmp"
    r"|lost\+found|\.DS_Store"
)
"""What may be there before the tag is, by path; the last two are the system's and in nobody's way."""
_OF_THE_SYSTEM = frozenset({"lost+found", ".DS_Store", "Thumbs.db", "desktop.ini"})
_OWN_DIRECTORY = re.compile(r"kv(/[0-9a-f]{16}(/[0-9a-f]{2})?)?|vectors|quarantine|run(/answering)?|logs|models")
_LOG_LINE = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ \S")
_SQLITE = b"SQLite format 3\x00"
_GRAPH_DATA_AT = 132
"""Where hnswlib puts a vector in an element of a graph with M = 16."""
_Content = Callable[[Entry, "re.Match[str]"], bool]


@dataclass(frozen=True, slots=True)
class Cleared:
    """What `clear` did."""

    freed_bytes: int
    left: tuple[Path, ...]
    """What was not ours, or could not be removed; empty if the directory itself is gone."""


def is_store(root: Path) -> bool:
    """True for a directory that desk-rag made: it has our CACHEDIR.TAG, or a catalog and the folders beside it."""
    begun = (root / CATALOG).is_file() and all((root / name).is_dir() for name in _OWN_FOLDERS)
    return begun or is_tagged(root)


def is_tagged(root: Path) -> bool:
    """True if the directory has a CACHEDIR.TAG of desk-rag's."""
    try:
        with (root / TAG).open("rb") as file:
            return _is_tag(file.read(len(TAG_CONTENT)))
    except OSError:
        return False


def stranger(root: Path) -> Path | None:
    """Something in `root` that is not desk-rag's, None if there is nothing or `root` is a store. Raises OSError."""
    if is_store(root):
        return None
    other = next((path for path in _everything(root) if not _BEGUN.fullmatch(path.relative_to(root).as_posix())), None)
    # Asked again: another process may have made its store here meanwhile.
    return None if other is None or is_store(root) else other


def stamp_of(status: os.stat_result) -> str:
    """Return 16 hex digits that a rename does not change: they stand in the name of what is put aside."""
    facts = f"{status.st_size} {int(status.st_mtime) // 2}"
    return hashlib.blake2b(facts.encode(), digest_size=8).hexdigest()


def content_proves(name: str) -> Proof:
    """Return the proof for the file called `name`, its path below the data directory with slashes.

    Files of a `kv_dir` are named as if they lay in `kv`. A name that is not in our grammar is never proven.
    """

    def proof(entry: Entry) -> bool:
        return entry.is_file and any(
            content(entry, match) for pattern, content in _GRAMMAR if (match := pattern.fullmatch(name)) is not None
        )

    return proof


def strangers(root: Path, known: frozenset[str] = frozenset()) -> list[Path]:
    """Return what lies in a data directory and is not desk-rag's; `known` names files that catalog rows prove."""
    home = OwnedDirectory(root)
    others = []
    for path, status in home.scan(root, skip=lambda path: path.name in _OF_THE_SYSTEM):
        name = path.relative_to(root).as_posix()
        if name in known and stat.S_ISREG(status.st_mode):
            continue
        entry = home.entry(path)
        if entry is not None and not content_proves(name)(entry):
            others.append(path)
    return sorted(others)


def strangers_in_kv(place: Path, known: frozenset[str]) -> list[Path]:
    """Return what lies in a `kv_dir` and is not desk-rag's; `known` as in `strangers`."""
    owner = OwnedDirectory(place, follow=False)
    others = []
    for path, status in owner.scan(place, skip=lambda path: path.name in _OF_THE_SYSTEM):
        name = name_in_kv(place, path)
        entry = None if name in known and stat.S_ISREG(status.st_mode) else owner.entry(path)
        if entry is not None and not content_proves(name)(entry):
            others.append(path)
    return sorted(others)


def clear(root: Path, known: frozenset[str] = frozenset()) -> Cleared:
    """Remove what is ours, then the directory itself if nothing else is in it. Ask `is_store` before.

    Raises StoreError for a drive that cannot be written. Links stay, and so does what they point to. Cut off at any
    point, what is left is still known to be ours: folders are emptied first, then the catalog goes, then they.
    """
    home = OwnedDirectory(root)
    freed = 0
    try:
        for name in _FOLDERS:
            freed += _empty(home, root / name, known)
        for file in sorted(root.iterdir(), reverse=True):  # what stands beside the catalog before the catalog
            if file.name != TAG:
                freed += _unlink(home, file, content_proves(file.name))
        for name in _FOLDERS:
            home.remove_directory(root / name)
        if is_tagged(root):
            freed += _unlink(home, root / TAG, content_proves(TAG))
        left = tuple(sorted(root.iterdir()))
        if not left:
            OwnedDirectory(root.parent).remove_directory(root)
    except OSError as error:
        raise of_system(error, root) or error from error
    return Cleared(freed, left)


def clear_kv(place: Path, known: frozenset[str] = frozenset()) -> Cleared:
    """Remove what is ours from a `kv_dir`, the marker last; the directory itself stays."""
    owner = OwnedDirectory(place, follow=False)
    files = [path for path, _ in owner.scan(place)]
    freed = 0
    for path in sorted(files, key=lambda path: (path.name == KV_MARKER, path.name == TAG, path)):
        name = name_in_kv(place, path)
        freed += _unlink(owner, path, (lambda entry: entry.is_file) if name in known else content_proves(name))
    for folder in _directories(owner, place):
        if _OWN_DIRECTORY.fullmatch(name_in_kv(place, folder)):
            owner.remove_directory(folder)
    left = tuple(sorted(path for path in place.iterdir() if path.name not in _OF_THE_SYSTEM))
    return Cleared(freed, left)


def name_in_kv(place: Path, path: Path) -> str:
    """Return the name that a path of a `kv_dir` would have below a data directory."""
    parts = path.relative_to(place).parts
    return "/".join(parts if parts[0] in ("quarantine", TAG, KV_MARKER) else ("kv", *parts))


def _empty(home: OwnedDirectory, folder: Path, known: frozenset[str]) -> int:
    try:
        files = sorted(path for path, _ in home.scan(folder))
    except ForeignPlace:
        return 0
    freed = 0
    for path in files:
        name = path.relative_to(home.root).as_posix()
        freed += _unlink(home, path, (lambda entry: entry.is_file) if name in known else content_proves(name))
    for directory in _directories(home, folder):
        if _OWN_DIRECTORY.fullmatch(directory.relative_to(home.root).as_posix()):
            home.remove_directory(directory)
    return freed


def _directories(owner: OwnedDirectory, folder: Path) -> list[Path]:
    """Directories below a folder, the innermost first; none behind a link."""
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
            if entry.name != "lost+found" and entry.is_dir(follow_symlinks=False):  # the file system's, for root alone
                yield from _everything(Path(entry.path))


def _unlink(owner: OwnedDirectory, file: Path, proof: Proof) -> int:
    removed = owner.remove(file, proof)
    return 0 if removed is None else removed.st_size


# proofs -------------------------------------------------------------------------------------------------------------


def _is_tag(start: bytes) -> bool:
    return start.startswith(_SIGNATURE) and b"desk-rag" in start  # other programs tag their caches too


def _unwritten(start: bytes) -> bool:
    """Nothing, or the zeros that a power cut leaves."""
    return not any(start)


def _kv_header(start: bytes, namespace: str, tokens: str) -> bool:
    """The header of a KV file says what its place says, whether or not its checksum still holds."""
    head = start[:4096]
    wanted = (b'"producer":"desk-rag ', f'"namespace":"{namespace}'.encode(), f'"key":"{tokens}"'.encode())
    return head[8:].startswith(b'{"__metadata__":{') and all(piece in head for piece in wanted)


def _kv(entry: Entry, match: re.Match[str]) -> bool:
    return match["tokens"].startswith(match["folder"]) and _kv_header(entry.start(), match["n"], match["tokens"])


def _kv_temporary(entry: Entry, match: re.Match[str]) -> bool:
    return match["tokens"].startswith(match["folder"]) and (_unwritten(entry.start()) or _kv(entry, match))


def _put_aside(entry: Entry, match: re.Match[str]) -> bool:
    return match["stamp"] == stamp_of(entry.status) or _kv_header(entry.start(), match["n"], match["tokens"])


def _catalog_put_aside(entry: Entry, match: re.Match[str]) -> bool:
    start = entry.start()
    return match["stamp"] == stamp_of(entry.status) or (start.startswith(_SQLITE) and b"chunk_words" in start)


def _graph(entry: Entry, _match: re.Match[str]) -> bool:
    start = entry.start()
    if len(start) < 48:
        return False
    _, _, _, stride, label_at, data_at = struct.unpack("<6Q", start[:48])
    return bool(data_at == _GRAPH_DATA_AT and stride == label_at + 8)


def _graph_facts(entry: Entry, _match: re.Match[str]) -> bool:
    return re.match(rb'[0-9a-f]{16}\n\{"version": ', entry.start()) is not None


def _model_record(entry: Entry, _match: re.Match[str]) -> bool:
    start = entry.start()
    return start[8:].startswith(b"{") and all(word in start for word in (b'"canaries"', b'"probe"', b'"told"'))


def _json(*keys: str) -> _Content:
    """Return the proof for a small JSON object that has only these keys at its top."""

    def proof(entry: Entry, _match: re.Match[str]) -> bool:
        try:
            value = json.loads(entry.start())
        except (ValueError, RecursionError):
            return False
        return isinstance(value, dict) and value.keys() <= set(keys)

    return proof


def _or_unwritten(content: _Content) -> _Content:
    return lambda entry, match: _unwritten(entry.start()) or content(entry, match)


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
    """By content, or where it is damaged by the directory that it is in, for it holds text that is to go."""
    return entry.start().startswith(_SQLITE) or entry.status.st_size == 0 or is_store(entry.path.parent)


def _tag_file(entry: Entry, _match: re.Match[str]) -> bool:
    return _is_tag(entry.start()) or (entry.path.name != TAG and TAG_CONTENT.startswith(entry.start()))


_TEMPORARY = r"\.\d+(-\d+)?\.tmp"
_KV = r"kv/(?P<n>[0-9a-f]{16})/(?P<folder>[0-9a-f]{2})/(?P<tokens>[0-9a-f]{32})"
_RECORD = _json("id", "path", "producer")
_GRAMMAR: tuple[tuple[re.Pattern[str], _Content], ...] = tuple(
    (re.compile(pattern), content)
    for pattern, content in (
        (rf"{_KV}\.safetensors", _kv),
        (rf"{_KV}\.\d+-\d+\.tmp", _kv_temporary),
        (
            r"quarantine/(?P<n>[0-9a-f]{16})-(?P<tokens>[0-9a-f]{32})\.\d+-\d+(\.(?P<stamp>[0-9a-f]{16}))?\.safetensors",
            _put_aside,
        ),
        (r"quarantine/catalog\.\d+(\.(?P<stamp>[0-9a-f]{16}))?\.sqlite", _catalog_put_aside),
        (r"vectors/[0-9a-f]{16}\.hnsw", _graph),
        (r"vectors/[0-9a-f]{16}\.json", _graph_facts),
        (rf"vectors/[0-9a-f]{{16}}\.hnsw({_TEMPORARY}|\.tmp)", _or_unwritten(_graph)),
        (rf"vectors/[0-9a-f]{{16}}\.json{_TEMPORARY}", _or_unwritten(_graph_facts)),
        (r"models/[0-9a-f]{32}\.safetensors", _model_record),
        (rf"models/[0-9a-f]{{32}}\.safetensors{_TEMPORARY}", _or_unwritten(_model_record)),
        (r"models/names\.json", _json("model", "embedder")),
        (rf"models/names\.json{_TEMPORARY}", _or_unwritten(_json("model", "embedder"))),
        (r"logs/(tui|indexer)\.log(\.\d+)?", _log),
        (r"run/(answering/\d+|writer)\.lock", _empty_file),
        (rf"run/writer\.pid({_TEMPORARY})?", _pid),
        (r"run/catalog\.mark", _mark),
        (rf"run/held-removals\.(json({_TEMPORARY})?|tmp)", _or_unwritten(_held_removals)),
        (rf"drives\.json({_TEMPORARY})?", _or_unwritten(_json("version", "drives"))),
        (rf"{re.escape(KV_RECORD)}({_TEMPORARY})?", _or_unwritten(_RECORD)),
        (rf"{re.escape(KV_MARKER)}({_TEMPORARY})?", _or_unwritten(_RECORD)),
        (rf"{re.escape(TAG)}({_TEMPORARY})?", _tag_file),
        (rf"{re.escape(CATALOG)}(-wal|-shm|-journal)?", _catalog),
    )
)
"""Every name that desk-rag gives to a file, and what its content must be."""
