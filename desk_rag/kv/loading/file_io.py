"""Read byte ranges of KV files, by direct I/O where possible, and verify each range once per process.

A file is trusted as long as device, inode, size, mtime and ctime stay the same. The checksum (xxh3-64) of a layer group
is computed at its first use in a process.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import torch
import xxhash

from desk_rag.errors import CorruptKV
from desk_rag.kv.loading.host_memory import BLOCK, round_up
from desk_rag.kv.payload import LayerGroup
from desk_rag.owned_folder import READ_BINARY, read_at

Identity = tuple[int, int, int, int, int]
"""Device, inode, size, mtime_ns, ctime_ns."""


def identity_of(path: Path) -> Identity:
    """Current identity of the file at `path`. Raises OSError (FileNotFoundError if there is no file)."""
    return _identity(path.stat())


def is_in_page_cache(path: Path, offset: int) -> bool:
    """Return whether the system has the block at `offset` in memory; True where it does not say."""
    if not hasattr(os, "RWF_NOWAIT"):
        return True
    try:
        descriptor = os.open(path, READ_BINARY)
    except OSError:
        return False
    try:
        return os.preadv(descriptor, [bytearray(BLOCK)], offset, os.RWF_NOWAIT) > 0
    except BlockingIOError:
        return False
    except OSError:  # a file system that cannot tell
        return True
    finally:
        os.close(descriptor)


class FileReader:
    """Reads byte ranges of files; remembers verified groups and drives without direct I/O. Thread-safe."""

    def __init__(self, *, direct: bool) -> None:
        self._direct = direct and hasattr(os, "O_DIRECT")
        self._lock = threading.Lock()
        self._verified: dict[Identity, int] = {}
        self._buffered_only: set[int] = set()
        self.bytes_read = 0

    def read(self, path: Path, identity: Identity, offset: int, nbytes: int, into: torch.Tensor) -> None:
        """Fill `into` (uint8, page aligned, at least `nbytes` rounded up to 4,096) from `offset`, a multiple of 4,096.

        Raises OSError, and CorruptKV if the file is too short or no longer the one that `identity` names.
        """
        view = into[: round_up(nbytes)].numpy().data
        done = 0
        if self._direct and identity[0] not in self._buffered_only:
            done = self._read_direct(path, identity, offset, nbytes, view)
        if done < nbytes:
            self._read_buffered(path, identity, offset, nbytes, view, done)
        with self._lock:
            self.bytes_read += nbytes

    def verify(
        self, path: Path, identity: Identity, groups: Sequence[tuple[int, LayerGroup]], data: torch.Tensor
    ) -> None:
        """Check the consecutive (index, group) pairs in `data` that this process has not verified yet.

        Raises CorruptKV for a group whose checksum differs.
        """
        start = groups[0][1].start
        verified = self._verified.get(identity, 0)
        for index, group in groups:
            if verified >> index & 1:
                continue
            content = data[group.start - start : group.end - start].numpy()
            if xxhash.xxh3_64_hexdigest(content.data) != group.checksum:
                raise CorruptKV(f"{path} is damaged: the checksum of layer group {index} does not match.")
            verified |= 1 << index
        with self._lock:
            self._verified[identity] = self._verified.get(identity, 0) | verified

    def forget_verified(self) -> None:
        """Verify every group again at its next use, as after a restart."""
        with self._lock:
            self._verified.clear()

    def _read_direct(self, path: Path, identity: Identity, offset: int, nbytes: int, view: memoryview) -> int:
        """Read with O_DIRECT; returns the bytes read, fewer than `nbytes` if the rest needs a buffered read."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._buffered_only.add(identity[0])
            return 0
        try:
            _check_identity(descriptor, identity, path)
            done = 0
            while done < nbytes and not done % BLOCK:
                count = os.preadv(descriptor, [view[done:]], offset + done)
                if count == 0:
                    raise CorruptKV(f"{path} was truncated while it was being read.")
                done += count
            return done
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            self._buffered_only.add(identity[0])
            return 0
        finally:
            os.close(descriptor)

    def _read_buffered(
        self, path: Path, identity: Identity, offset: int, nbytes: int, view: memoryview, done: int
    ) -> None:
        descriptor = os.open(path, READ_BINARY)
        try:
            _check_identity(descriptor, identity, path)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, offset, nbytes, os.POSIX_FADV_WILLNEED)
            while done < nbytes:
                count = read_at(descriptor, view[done:nbytes], offset + done)
                if count == 0:
                    raise CorruptKV(f"{path} was truncated while it was being read.")
                done += count
        finally:
            os.close(descriptor)


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _check_identity(descriptor: int, identity: Identity, path: Path) -> None:
    if _identity(os.fstat(descriptor)) != identity:
        raise CorruptKV(f"{path} was replaced or changed while it was being loaded.")
