"""Find a model's files by its name, check them, and fingerprint its weights; imports no torch.

Names resolve to a directory of safetensors or to a GGUF file: 'embedded' (the reader in assets), a path, a name of
Ollama's or LM Studio's, or a Hugging Face name, which is looked up in the local hub cache and fetched only when the
user asked for a download. Everything else is refused here, before any library sees the files.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from desk_rag.assets import assets_dir
from desk_rag.errors import Cancelled, ModelNotFound, UnsupportedModel
from desk_rag.model.checkpoint import files as checkpoint_files
from desk_rag.model.checkpoint.config import CONFIG, optional_json, read_json, regular_file
from desk_rag.model.checkpoint.files import weight_files
from desk_rag.model.gguf.header import is_gguf
from desk_rag.model.library import lm_studio, ollama

__all__ = ["check_loading", "fingerprint", "from_hub", "resolve", "weight_files"]

_WHOLE_BELOW = 256 * 1024**2
_SAMPLES = 64
_SAMPLE_BYTES = 65536
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_SHA256 = re.compile(r"(sha256-)?[0-9a-f]{64}")
_OLLAMA_NAME = re.compile(r"[a-z0-9][\w.-]*(/[\w.-]+)*:[\w.-]+")
_DISTRIBUTED = re.compile(r"shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors")
FETCH = ["*.safetensors", "*.json", "*.jinja", "*.txt", "tokenizer.model"]
NO_FETCH = ["consolidated*", "original/*", "onnx/*", "openvino/*"]
"""Further copies of the same weights, which are never read."""


def resolve(name: str, *, allow_download: bool) -> Path:
    """Directory with config.json and the weights of `name`, or its GGUF file.

    Raises ModelNotFound, or UnsupportedModel or ModelError for files that desk-rag does not open.
    """
    if name == "embedded":
        return assets_dir() / "reader"
    path = Path(name).expanduser()
    if name.startswith(lm_studio.PREFIX):
        path = lm_studio.find(name.removeprefix(lm_studio.PREFIX))
    if path.is_dir():
        return checked(path)
    if is_gguf(path):
        return path
    if name.lower().endswith(".gguf"):
        if path.exists():
            raise ModelNotFound(f"{path} is no GGUF file, in spite of its name.", remedy="Download it again.")
        raise ModelNotFound(f"There is no file {path}.", remedy="`desk-rag models list` shows what is on this machine.")
    if (model := in_ollama(name)) is not None:
        return model.file
    if path.exists() or not _HUB_NAME.fullmatch(name):
        alike = _alike(name)
        raise ModelNotFound(
            f"'{name}' is neither a model directory, a GGUF file, a model of Ollama's nor a Hugging Face name.",
            remedy=f"On this machine there is {', '.join(alike)}." if alike else
            "`desk-rag models list` shows what is on this machine. Leave --model out for the embedded reader.",
        )  # fmt: skip
    return checked(from_hub(name, allow_download=allow_download))


def in_ollama(name: str) -> ollama.OllamaModel | None:
    """The model that a name of Ollama's stands for; None for other names. Raises as `ollama.find`."""
    if name.startswith(ollama.PREFIX) or (_OLLAMA_NAME.fullmatch(name) and not Path(name).expanduser().exists()):
        return ollama.find(name.removeprefix(ollama.PREFIX))
    return None


def _alike(name: str) -> list[str]:
    """Names of up to three models in Ollama's, LM Studio's and the hub's folders that hold `name`."""
    wanted = name.casefold()
    known = [model.name for model in ollama.models() if isinstance(model, ollama.OllamaModel)]
    known += [each for each, _ in (*lm_studio.models(), *in_hub())]
    return [each for each in known if wanted in each.casefold()][:3]


def in_hub() -> Iterator[tuple[str, Path]]:
    """(name, directory) of every model in the Hugging Face cache that has weights and a configuration."""
    default = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface") / "hub"
    cache = Path(os.environ.get("HF_HUB_CACHE") or default)
    for repository in sorted(cache.glob("models--*--*")):
        snapshots = sorted((repository / "snapshots").glob("*/"), key=lambda place: place.stat().st_mtime)
        for snapshot in reversed(snapshots):
            if (snapshot / "config.json").exists() and any(snapshot.glob("*.safetensors")):
                yield "/".join(repository.name.split("--")[1:]), snapshot
                break


def fingerprint(files: Iterable[Path]) -> str:
    """32 hex digits that change when the weights do.

    Files in the hub cache are links to blobs named by their sha256, which is taken as it is. Others are hashed whole
    below 256 MiB; above that by size, header and 64 evenly spaced blocks of 64 KiB, because reading 15 GB at every
    start would cost more than it protects (the stored canary of the namespace catches what sampling misses).
    """
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        digest.update(file.name.encode())
        blob = file.resolve().name
        digest.update(blob.encode() if _SHA256.fullmatch(blob) else _content_digest(file))
    return digest.hexdigest()


def _content_digest(file: Path) -> bytes:
    digest = hashlib.blake2b(digest_size=32)
    size = file.stat().st_size
    digest.update(size.to_bytes(8, "little"))
    with file.open("rb") as stream:
        if size <= _WHOLE_BELOW:
            while block := stream.read(1 << 20):
                digest.update(block)
        else:
            digest.update(stream.read(1 << 20))
            for index in range(_SAMPLES):
                stream.seek((size - _SAMPLE_BYTES) * index // (_SAMPLES - 1))
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.digest()


def is_hub_name(name: str) -> bool:
    """True for ORG/NAME."""
    return _HUB_NAME.fullmatch(name) is not None


def checked(directory: Path) -> Path:
    """`directory` after the checks of its JSON files, or the only GGUF file in it. Raises as `resolve`."""
    if not any((directory / file).exists() for file in (checkpoint_files.SINGLE, checkpoint_files.INDEX)) and (
        file := lm_studio.only_gguf(directory)
    ):
        return file
    if (directory / "modules.json").exists():
        raise UnsupportedModel(
            f"{directory} holds an embedder, which finds passages and writes no text.",
            remedy="Name it with --embedder, and with --model one that answers.",
        )
    if regular_file(directory, CONFIG) is None:
        raise ModelNotFound(f"There is no config.json in {directory}.", remedy="Point --model at a model directory.")
    check_loading(directory)
    for name in (CONFIG, "generation_config.json", "tokenizer_config.json", "special_tokens_map.json"):
        optional_json(directory, name)
    return directory


def check_loading(directory: Path) -> None:
    """Raise unless the safetensors that `checkpoint.files` names are all that transformers would load from here.

    Raises ModelNotFound, UnsupportedModel or ModelError.
    """
    for file in directory.iterdir():
        if _DISTRIBUTED.fullmatch(file.name):
            raise UnsupportedModel(
                f"{file} is part of a distributed training checkpoint, which is not loaded.",
                remedy="Save the model with save_pretrained().",
            )
    if (directory / "adapter_config.json").exists():
        base = read_json(directory, "adapter_config.json").get("base_model_name_or_path")
        raise UnsupportedModel(
            f"{directory} holds an adapter.",
            remedy=f"Name its base model ({str(base)[:80]}) with --model and the adapter's directory with --adapter.",
        )
    if (directory / "custom_generate").exists():
        raise UnsupportedModel(
            f"{directory} brings code to be run (custom_generate).", remedy="desk-rag runs no code of a model's."
        )
    weight_files(directory)


def from_hub(name: str, *, allow_download: bool, bar: type[Any] | None = None) -> Path:
    """The directory of ORG/NAME in the hub cache, fetched first where that is allowed. Raises ModelNotFound.

    `bar` is a class like tqdm's for the progress, by default the library's own.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import snapshot_download

    # A broken connection is tried again without a word; what ends the download is said.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        return Path(
            snapshot_download(
                name,
                local_files_only=not allow_download,
                allow_patterns=FETCH,
                ignore_patterns=NO_FETCH,
                tqdm_class=bar,
            )
        )
    except Cancelled:
        raise
    except Exception as error:  # the library's own, those of the network beneath it, and a full drive
        if allow_download:
            from desk_rag.model.library.hub_errors import explained

            raise explained(name, error) from error
        raise ModelNotFound(
            f"'{name}' is not on this machine.",
            remedy="Add --download to fetch it once from the Hugging Face hub; desk-rag opens no socket otherwise.",
        ) from error
