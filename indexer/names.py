"""Remember the names of vectors and chunk KV, so that a run without work needs to load neither embedder nor model.

Loads no torch. Only the names are kept; whether work is missing is asked of the store. A name is valid until something
changes that could change it: the settings that name the model, its files, the libraries, or the records of its
preparation. Without a valid name, the model is loaded and its name kept.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, cast

from desk_rag import __version__
from desk_rag.config import Settings
from desk_rag.errors import ForeignPlace
from desk_rag.kv.recompute.policy import AUXILIARY_NAMES, RecomputeChoice
from desk_rag.model import weights
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.retrieval.embedding import EMBEDDED, EMBEDDED_FINGERPRINT, files_of
from desk_rag.retrieval.windows import WINDOW_RULE

if TYPE_CHECKING:
    from desk_rag.kv.types import Namespace
    from desk_rag.store.store import Store

_log = logging.getLogger(__name__)

_LIBRARIES = ("torch", "transformers", "tokenizers", "sentence-transformers", "safetensors", "peft", "bitsandbytes")
_MODEL, _EMBEDDER, _AUXILIARY = "model", "embedder", "auxiliary"
_MOST = 8
"""Models, and embedders, whose names are remembered."""


@dataclass(frozen=True, slots=True)
class MissingWork:
    """Work that, by the rows of the store, is still to be done."""

    vectors: bool
    kv: bool
    token_vectors: bool = False
    """Chunks that have a vector lack token vectors, and the drive has room for them."""
    no_room: bool = False
    """Chunk KV is missing, but its budget is used up."""


EVERYTHING = MissingWork(vectors=True, kv=True, token_vectors=True)
"""The assumption where no names are known."""


def missing_work(store: Store, settings: Settings) -> MissingWork:
    """Return what is missing under the names kept for these settings; EVERYTHING where there are none."""
    embedder, namespaces = kept_embedder(settings), _kept(settings, _MODEL)
    vectors = embedder is None or bool(store.chunks_without_vector(embedder, 1))
    tokens = embedder is None or (
        embedder == EMBEDDED_FINGERPRINT
        and store.has_spare_room()
        and bool(store.chunks_without_token_vectors(embedder, 1))
    )
    if not namespaces or (_wants_auxiliary(settings) and not _is_kept(settings, _AUXILIARY)):
        return MissingWork(vectors, kv=True, token_vectors=tokens)
    names = [cast("Namespace", name) for name in namespaces]
    auxiliary = _kept(settings, _AUXILIARY) if _wants_auxiliary(settings) else []
    store.register_model(names, cast("Namespace", auxiliary[0]) if auxiliary else None)
    names += [cast("Namespace", name) for name in auxiliary]
    kv = any(store.chunks_without_kv(name, 1) for name in names)
    counts = [store.counts(name, None) for name in names]
    full = counts[0].kv_bytes >= counts[0].budget_bytes and any(each.warm < each.chunks for each in counts)
    return MissingWork(vectors, kv, tokens, no_room=full and not kv)


def kept_embedder(settings: Settings) -> str | None:
    """Return the name of the embedder's vectors under these settings; None if it is not known without loading it."""
    if settings.model.embedder == EMBEDDED:
        return EMBEDDED_FINGERPRINT  # that of the weights that are installed now, whatever an earlier version kept
    return next(iter(_kept(settings, _EMBEDDER)), None)


def keep_embedder(settings: Settings, fingerprint: str) -> None:
    """Remember the name of the embedder's vectors under these settings."""
    _keep(settings, _EMBEDDER, [fingerprint])


def keep_namespaces(settings: Settings, namespaces: Sequence[str], auxiliary: str | None = None) -> None:
    """Remember the names of the model's chunk KV under these settings, the plain one first, and of its auxiliary's."""
    _keep(settings, _MODEL, [str(namespace) for namespace in namespaces])
    if _wants_auxiliary(settings):
        _keep(settings, _AUXILIARY, [str(auxiliary)] if auxiliary else [])


def _keep(settings: Settings, part: str, names: list[str]) -> None:
    key = _key(settings, part)
    if key is None:
        return
    record = _read(settings)
    kept = {**{known: value for known, value in record.get(part, {}).items() if known != key}, key: names}
    record[part] = dict(list(kept.items())[-_MOST:])
    try:
        OwnedDirectory(settings.data_dir).write(_file(settings), json.dumps(record).encode())
    except (OSError, ForeignPlace) as error:
        _log.warning("the names of model and embedder could not be kept (%s)", error)


def _kept(settings: Settings, part: str) -> list[str]:
    key = _key(settings, part)
    return _read(settings).get(part, {}).get(key, []) if key is not None else []


def _is_kept(settings: Settings, part: str) -> bool:
    return _key(settings, part) in _read(settings).get(part, {})


def _file(settings: Settings) -> Path:
    return settings.data_dir / "models" / "names.json"


def _read(settings: Settings) -> dict[str, dict[str, list[str]]]:
    try:
        record = json.loads(_file(settings).read_text(encoding="utf-8"))
        return {
            part: {str(key): [str(name) for name in names] for key, names in record[part].items()}
            for part in (_MODEL, _EMBEDDER, _AUXILIARY)
            if part in record
        }
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _key(settings: Settings, part: str) -> str | None:
    """Return 32 hex digits over everything that decides a name; None if that needs the model to be loaded."""
    chosen = settings.model
    if part == _EMBEDDER:
        files = files_of(chosen)
        if not files:
            return None
        facts: list[object] = [chosen.embedder, WINDOW_RULE, _stamps(files)]
    else:
        files = _weight_files(chosen.name, settings)
        if chosen.adapter:
            files += Path(chosen.adapter).expanduser().iterdir()
        files += (settings.data_dir / "models").glob("*.safetensors")
        facts = [chosen.name, chosen.adapter, chosen.quantization, chosen.device, chosen.rungs]
        if part == _AUXILIARY:
            name = settings.answer.auxiliary
            files += _weight_files(AUXILIARY_NAMES.get(name, name), settings)
            facts.append(settings.answer.auxiliary)
        facts.append(_stamps(files))
    text = repr([__version__, [_version(library) for library in _LIBRARIES], *facts])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _weight_files(name: str, settings: Settings) -> list[Path]:
    folder = weights.resolve(name, allow_download=settings.model.allow_download)
    return [*folder.glob("*.json"), *folder.glob("*.jinja"), *weights.weight_files(folder)]


def _wants_auxiliary(settings: Settings) -> bool:
    return RecomputeChoice.of(settings.answer).needs_auxiliary


def _stamps(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    statuses = [(file, file.stat()) for file in sorted(files) if file.is_file()]
    return [(str(file), status.st_size, status.st_mtime_ns) for file, status in statuses]


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""
