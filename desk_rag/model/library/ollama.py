"""Find an Ollama model's weights in Ollama's own store, which is only read.

A name leads to a manifest, the manifest to a blob named by its sha256, and the blob is a GGUF file. Everything that an
answer needs is in that file; what a Modelfile adds for chats in Ollama is not used, and `OllamaModel.unused` names it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from desk_rag.errors import ModelError, ModelNotFound, UnsupportedModel
from desk_rag.model.checkpoint.config import read_json

PREFIX = "ollama:"
_REGISTRY, _NAMESPACE, _TAG = "registry.ollama.ai", "library", "latest"
_NAME = re.compile(
    r"(?:(?:(?P<host>[\w.-]+(?::\d+)?)/)?(?P<namespace>[\w.-]+)/)?(?P<model>[\w.-]+)(?::(?P<tag>[\w.-]+))?"
)
_LAYER = "application/vnd.ollama.image."
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_BLOB = re.compile(r"sha256-([0-9a-f]{64})")
_UNUSED = {
    "system": "its SYSTEM text (answers follow desk-rag's instructions)",
    "messages": "its example messages",
    "projector": "its part for images",
}
"""Layers of a manifest that are left out, by kind."""
_PULL = "Fetch it with Ollama: ollama pull {name}"


@dataclass(frozen=True, slots=True)
class OllamaModel:
    """One model in Ollama's store."""

    name: str
    """As `ollama list` shows it, such as 'llama3.2:3b'."""
    file: Path
    """The GGUF file."""
    size: int
    license: str
    """First line of the licence it came with; empty where it came without."""
    unused: str = ""
    """Sentence about what Ollama would add to a chat and desk-rag does not; empty if that is nothing."""


def store() -> Path:
    """The directory in which Ollama keeps models: OLLAMA_MODELS, or its default; it need not exist."""
    named = os.environ.get("OLLAMA_MODELS", "").strip()
    places = [Path(named).expanduser()] if named else [
        Path.home() / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models"),
        Path("/var/lib/ollama/.ollama/models"),
    ]  # fmt: skip
    return next((place for place in places if (place / "manifests").is_dir()), places[0])


def find(name: str) -> OllamaModel:
    """The model that Ollama knows by `name`. Raises ModelNotFound, UnsupportedModel or ModelError."""
    parts = _NAME.fullmatch(name)
    if parts is None or any(part in (".", "..") for part in parts.groups() if part):
        raise ModelNotFound(f"'{name[:80]}' is no name of Ollama's.", remedy="Names look like llama3.2:3b.")
    place = store()
    folder = place / "manifests" / (parts["host"] or _REGISTRY) / (parts["namespace"] or _NAMESPACE) / parts["model"]
    tag = parts["tag"] or _TAG
    if not (folder / tag).is_file():
        raise ModelNotFound(f"Ollama has no '{name}' in {place}.{_similar(folder)}", remedy=_PULL.format(name=name))
    return _read(place, folder, tag, name)


@dataclass(frozen=True, slots=True)
class Unusable:
    """A name in Ollama's store that leads to no weights, and why."""

    name: str
    reason: str


def models() -> Iterator[OllamaModel | Unusable]:
    """Every model in the store, by name."""
    place = store()
    for manifest in sorted((place / "manifests").glob("*/*/*/*")):
        host, namespace, model = manifest.parts[-4:-1]
        name = f"{model}:{manifest.name}"
        if (host, namespace) != (_REGISTRY, _NAMESPACE):
            name = f"{namespace}/{name}" if host == _REGISTRY else f"{host}/{namespace}/{name}"
        try:
            yield _read(place, manifest.parent, manifest.name, name)
        except ModelError as error:
            yield Unusable(name, error.message)


def check_digest(file: Path) -> None:
    """Raise ModelError unless a blob of Ollama's holds what its name says; other files pass."""
    if (named := _BLOB.fullmatch(file.name)) is not None:
        status = file.stat()
        if _sha256(file, status.st_size, status.st_mtime_ns) != named[1]:
            raise ModelError(
                f"{file} is damaged: its sha256 is not the one in its name.",
                remedy="Let Ollama fetch the model again: ollama rm NAME, then ollama pull NAME",
            )


@functools.lru_cache(maxsize=8)
def _sha256(file: Path, _size: int, _changed_ns: int) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _similar(folder: Path) -> str:
    tags = sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []
    return f" It has {', '.join(f'{folder.name}:{tag}' for tag in tags[:5])}." if tags else ""


def _read(place: Path, folder: Path, tag: str, name: str) -> OllamaModel:
    manifest = read_json(folder, tag)
    layers = manifest.get("layers")
    kinds = {
        str(layer.get("mediaType")).removeprefix(_LAYER): layer
        for layer in (layers if isinstance(layers, list) else [])
        if isinstance(layer, dict)
    }
    if "adapter" in kinds:
        raise UnsupportedModel(
            f"'{name}' is a model with an adapter, which is not read from Ollama.", remedy="Take its base model."
        )
    if "model" not in kinds:
        raise UnsupportedModel(
            f"'{name}' has no weights in {place}: it runs elsewhere, or is no language model.",
            remedy="Take a model that Ollama keeps on this machine.",
        )
    file = _blob(place, kinds["model"], name)
    size = file.stat().st_size
    if size != kinds["model"].get("size", size):
        raise ModelError(f"{file} is cut short.", remedy=_PULL.format(name=name))
    return OllamaModel(name, file, size, _license(place, kinds.get("license"), name), _unused(place, kinds, name))


def _unused(place: Path, kinds: dict[str, dict[str, Any]], name: str) -> str:
    """Name the parts of a Modelfile that are not used. Sampling and stop words change nothing in a greedy answer."""
    parts = [words for kind, words in _UNUSED.items() if kind in kinds]
    if (layer := kinds.get("params")) is not None:
        try:
            file = _blob(place, layer, name)
            window = read_json(file.parent, file.name).get("num_ctx")
        except ModelError:
            window = None
        if isinstance(window, int):
            parts.append(f"num_ctx {window:,} (the model's own window holds, cut to the memory that is free)")
    return f"Not used from Ollama: {', '.join(parts)}." if parts else ""


def _blob(place: Path, layer: dict[str, Any], name: str) -> Path:
    digest = _DIGEST.fullmatch(str(layer.get("digest")))
    if digest is None:
        raise ModelError(f"The manifest of '{name}' names no digest.", remedy=_PULL.format(name=name))
    file = place / "blobs" / f"sha256-{digest[1]}"
    if not file.is_file():
        raise ModelNotFound(
            f"'{name}' is listed by Ollama, but its weights are not in {place}.", remedy=_PULL.format(name=name)
        )
    return file


def _license(place: Path, layer: dict[str, Any] | None, name: str) -> str:
    if layer is None:
        return ""
    try:
        with _blob(place, layer, name).open("rb") as stream:
            lines = stream.read(2000).decode("utf-8", "replace").splitlines()
    except (OSError, ModelError):
        return ""
    return next((line.strip()[:80] for line in lines if line.strip()), "")
