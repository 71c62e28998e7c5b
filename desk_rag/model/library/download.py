"""Fetch a model from the Hugging Face hub, after saying how large it is, under which licence, and where it goes."""

from __future__ import annotations

import fnmatch
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from desk_rag.errors import ModelError, ModelNotFound
from desk_rag.model import weights
from desk_rag.model.library.hub_errors import explained


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
    files = [(file.rfilename, int(file.size or 0)) for file in info.siblings or () if _wanted(file.rfilename)]
    missing = sum(size for file, size in files if not isinstance(try_to_load_from_cache(name, file), str))
    license = next((tag.partition(":")[2] for tag in info.tags or () if tag.startswith("license:")), "")
    cache = Path(constants.HF_HUB_CACHE)
    free = shutil.disk_usage(next(place for place in (cache, *cache.parents) if place.exists())).free
    return Offer(name, sum(size for _, size in files), missing, license, bool(info.gated), cache, free)


def check_room(offer: Offer) -> None:
    """Raise ModelError where the drive has no room for what is missing."""
    if offer.missing > offer.free:
        raise ModelError(
            f"'{offer.name}' needs {offer.missing / 1e9:.1f} GB in {offer.cache}; {offer.free / 1e9:.1f} GB are free.",
            remedy="Make room there, or set HF_HUB_CACHE to a directory on another drive.",
        )


def fetch(offer: Offer) -> Path:
    """Fetch the files that are missing and return the model's directory.

    Broken connections are taken up again where they broke; after an interruption, complete files are kept.
    """
    return weights.from_hub(offer.name, allow_download=True)


def _wanted(file: str) -> bool:
    unwanted = any(fnmatch.fnmatch(file, pattern) for pattern in weights.NO_FETCH)
    return not unwanted and any(fnmatch.fnmatch(file, pattern) for pattern in weights.FETCH)
