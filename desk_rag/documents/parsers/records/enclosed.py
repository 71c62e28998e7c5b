"""Read the files inside another one, an archive or a mail, within limits that they share."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from desk_rag.documents.archives import is_archive
from desk_rag.documents.discovery import left_out_inside
from desk_rag.documents.document import Block
from desk_rag.documents.formats import format_of_name, unread_kind
from desk_rag.errors import DocumentError, SecretDocument

_MIB = 1 << 20
_MOST_BYTES = 256 * _MIB
"""All files inside together, unpacked."""
MOST_FILE_BYTES = 50 * _MIB
NO_TIME = "for want of time"


@dataclass(slots=True)
class Enclosed:
    """Reads files inside one file, and counts those that are not read by the reason."""

    parse: Callable[[str, bytes, int], tuple[Block, ...]]
    """Parses a name and content to at most so many bytes of text. Raises DocumentError."""
    text_left: int
    """Bytes of text that may still be kept."""
    until: float
    """Time of `time.monotonic` after which no other file is opened."""
    bytes_left: int = _MOST_BYTES
    read: int = 0
    unread: Counter[str] = field(default_factory=Counter)

    @property
    def exhausted(self) -> bool:
        """True if no other file can be read for want of text, bytes or time."""
        return self.text_left <= 0 or self.bytes_left <= 0 or time.monotonic() > self.until

    def blocks(self, name: str, content: bytes) -> tuple[Block, ...]:
        """Return the blocks of one file; empty, and the file counted, if it is not read."""
        self.bytes_left -= len(content)
        why = ""
        if len(content) > MOST_FILE_BYTES or self.bytes_left < 0:
            why = "too large"
        elif time.monotonic() > self.until:
            why = NO_TIME
        elif self.text_left <= 0:
            why = "more text than is kept of one file"
        if why:
            self.unread[why] += 1
            return ()
        try:
            blocks = self.parse(name, content, self.text_left)
        except SecretDocument:
            self.unread["that may hold secrets"] += 1
            return ()
        except DocumentError:
            self.unread["damaged, locked or without text"] += 1
            return ()
        self.read += 1
        self.text_left -= sum(len(block.text.encode("utf-8")) for block in blocks)
        return blocks

    def reasons(self) -> str:
        """Return why files were not read, the most frequent reason first: 'images (2), empty (1)'."""
        return ", ".join(f"{why} ({count:,})" for why, count in self.unread.most_common())


def left_out(path: str) -> str:
    """Return why a file inside is not opened, by its path in there, in words; '' if it is."""
    name = path.rpartition("/")[2]
    if why := left_out_inside(path):
        return why
    if is_archive(name):
        return "archives"
    return unread_kind(name) if format_of_name(name) is None else ""
