"""Fetch a model from the Hugging Face hub, after saying how large it is, under which licence, and where it goes."""

from __future__ import annotations

import fnmatch
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from desk_rag.errors import Cancelled, DeskRagError, ModelError, ModelNotFound
from desk_rag.model import weights
from desk_rag.model.library.hub_errors import explained
from desk_rag.model.library.resumable import LargeFile, large_files
from desk_rag.model.library.resumable import fetch as fetch_large

_PIECE = 1 << 20
"""Bytes that are fetched between two looks whether to stop; the library takes ten times as many."""

_RATE_SECONDS = 1.0
_LOOK_SECONDS = 0.2
"""Seconds between two looks whether to stop while nothing comes."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Size and licence of a model on the hub."""

    name: str
    size: int
    """Bytes of all files that would be fetched."""
    missing: int
    """Bytes of those that are not in the cache yet."""
    license: str
    gated: bool
    cache: Path
    free: int
    """Bytes that are free where the cache lies."""
    revision: str = "main"
    """Commit of the files."""
    large: tuple[LargeFile, ...] = ()
    """Files that are fetched so that they can be resumed, and are not here."""


class Progress:
    """Progress of a download in words."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def sentence(self, done: int, total: int) -> str:
        """Return '1.2 of 3.4 GB, 12.0 MB/s, about 3 min left'; rate and rest only once they are known."""
        seconds = time.monotonic() - self._begun
        unit, size = ("GB", 1e9) if total >= 1e9 else ("MB", 1e6)
        parts = [f"{done / size:.1f} of {total / size:.1f} {unit}"]
        if done and seconds >= _RATE_SECONDS:
            rate = done / seconds
            left = (total - done) / rate
            parts.append(f"{rate / 1e6:.1f} MB/s")
            parts.append(f"about {left:.0f} s left" if left < 90 else f"about {left / 60:.0f} min left")
        return ", ".join(parts)


def ask_hub(name: str) -> Offer:
    """Ask the hub what would be fetched for `name`. Raises ModelNotFound or ModelError."""
    if not weights.is_hub_name(name):
        raise ModelNotFound(f"'{name[:80]}' is no name of the Hugging Face hub.", remedy="Names look like ORG/NAME.")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import HfApi, constants, try_to_load_from_cache

    try:
        info: Any = HfApi().model_info(name, files_metadata=True)
    except Exception as error:  # the library's own, and those of the network beneath it
        raise explained(name, error) from error
    wanted = [file for file in info.siblings or () if _wanted(file.rfilename)]
    absent = [file for file in wanted if not isinstance(try_to_load_from_cache(name, file.rfilename), str)]
    license = next((tag.partition(":")[2] for tag in info.tags or () if tag.startswith("license:")), "")
    cache = Path(constants.HF_HUB_CACHE)
    free = shutil.disk_usage(next(place for place in (cache, *cache.parents) if place.exists())).free
    large = large_files(name, absent, cache)
    missing = sum(int(file.size or 0) for file in absent) - sum(file.arrived for file in large)
    size = sum(int(file.size or 0) for file in wanted)
    return Offer(name, size, max(missing, 0), license, bool(info.gated), cache, free, info.sha or "main", large)


def check_room(offer: Offer) -> None:
    """Raise ModelError where the drive has no room for what is missing."""
    if offer.missing > offer.free:
        raise ModelError(
            f"'{offer.name}' needs {offer.missing / 1e9:.1f} GB in {offer.cache}; {offer.free / 1e9:.1f} GB are free.",
            remedy="Make room there, or set HF_HUB_CACHE to a directory on another drive.",
        )


def fetch(
    offer: Offer,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    stop: Callable[[], bool] = lambda: False,
) -> Path:
    """Fetch the files that are missing and return the model's directory.

    What was interrupted goes on where it stopped. `progress` takes the bytes that have come and those that will, from
    any thread. Raises Cancelled soon after `stop()` holds, and ModelError.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils.tqdm import tqdm

    arrived: dict[int, int] = {}  # by each bar's count of bytes; the library counts those received and those written
    counting = threading.Lock()
    finished = 0

    class Bar(tqdm):
        """A bar of the library that draws nothing and passes on how many bytes have come."""

        def __init__(self, *items: Any, **options: Any) -> None:
            self.is_of_bytes = options.get("unit") == "B"
            super().__init__(*items, **{**options, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> bool | None:
            if stop():
                raise Cancelled("The download was stopped.", remedy="What has come of it is kept.")
            if self.is_of_bytes:
                with counting:
                    arrived[id(self)] = arrived.get(id(self), 0) + int(n or 0)
                    progress(min(finished + max(arrived.values()), offer.missing), offer.missing)
            return None

    constants.DOWNLOAD_CHUNK_SIZE = _PIECE
    progress(0, offer.missing)
    for file in offer.large:
        before = file.arrived
        _unless_stopped(partial(fetch_large, offer.name, offer.revision, file, Bar), offer.name, stop)
        finished += file.arrived - before
        arrived.clear()
    return weights.from_hub(offer.name, allow_download=True, bar=Bar)


def _unless_stopped(work: Callable[[], None], name: str, stop: Callable[[], bool]) -> None:
    """Do `work` in a thread, and leave it behind if `stop()` holds: a connection may wait long for its next byte."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:  # the library's own, those of the network beneath it, and a full drive
            errors.append(error)

    thread = threading.Thread(target=run, name="download", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_LOOK_SECONDS)
        if stop():
            raise Cancelled("The download was stopped.", remedy="What has come of it is kept.")
    for error in errors:
        raise error if isinstance(error, DeskRagError) else explained(name, error) from error


def _wanted(file: str) -> bool:
    unwanted = any(fnmatch.fnmatch(file, pattern) for pattern in weights.NO_FETCH)
    return not unwanted and any(fnmatch.fnmatch(file, pattern) for pattern in weights.FETCH)
