"""The log of background work: warnings and errors, never text of a document."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from desk_rag.store.private_log import PrivateLog


@contextmanager
def logging_to(data_dir: Path) -> Iterator[None]:
    """Log to files of at most 2 MB in the data directory, which only their owner can read."""
    handler = PrivateLog(data_dir / "logs", "indexer.log", most_bytes=1_000_000, old_files=1, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    handler.setLevel(logging.WARNING)
    logging.getLogger("desk_rag").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("desk_rag").removeHandler(handler)
        handler.close()
