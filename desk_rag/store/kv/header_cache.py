"""Cache the headers of KV files, which the loader needs before it reads layer by layer."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

from desk_rag.errors import CorruptKV, UnknownFormat
from desk_rag.kv.loading.file_io import Identity, identity_of
from desk_rag.kv.payload import ChunkFile
from desk_rag.kv.types import KVKey
from desk_rag.store.kv import header as kv_header
from desk_rag.store.kv.header import KVHeader
from desk_rag.store.layout import BLOCK, start_readahead

FileOutcome = ChunkFile | CorruptKV | UnknownFormat | OSError | None
"""The file and its header; why it must not be used or could not be read; or None if it does not exist."""
_MAX_HEADERS = 4096
"""Headers kept, of about 20 KB each."""


class HeaderCache:
    """Headers by file identity, evicted least recently used first. Safe to use from several threads."""

    def __init__(self, max_headers: int = _MAX_HEADERS) -> None:
        self._max_headers = max_headers
        self._lock = threading.Lock()
        self._known: OrderedDict[Identity, KVHeader] = OrderedDict()

    def look(self, files: Sequence[tuple[Path, KVKey]]) -> list[FileOutcome]:
        """Return one outcome per file, in order; never raises for a single file."""
        identities = [_identity(path) for path, _ in files]
        fresh = [path for (path, _), identity in zip(files, identities, strict=True) if not self._knows(identity)]
        if len(fresh) > 1:
            start_readahead(fresh, length=BLOCK)
        return [
            self._check(path, key, identity) if isinstance(identity, tuple) else identity
            for (path, key), identity in zip(files, identities, strict=True)
        ]

    def forget(self, paths: Iterable[Path]) -> None:
        """Have the headers of these files read again at their next use."""
        for path in paths:
            with self._lock:
                identity = _identity(path)
                if isinstance(identity, tuple):
                    self._known.pop(identity, None)

    def _knows(self, identity: Identity | OSError | None) -> bool:
        with self._lock:
            return not isinstance(identity, tuple) or identity in self._known

    def _check(self, path: Path, key: KVKey, identity: Identity) -> FileOutcome:
        with self._lock:
            header = self._known.get(identity)
            if header is not None:
                self._known.move_to_end(identity)
        try:
            if header is None:
                header = kv_header.read_header(path)
                with self._lock:
                    self._known[identity] = header
                    while len(self._known) > self._max_headers:
                        self._known.popitem(last=False)
            kv_header.check_identity(header, (str(key.namespace), str(key.tokens)), path)
        except FileNotFoundError:
            return None
        except (CorruptKV, UnknownFormat, OSError) as error:
            return error
        return ChunkFile(path, header)


def _identity(path: Path) -> Identity | OSError | None:
    try:
        return identity_of(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
