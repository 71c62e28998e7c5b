"""Where a model's files are, and a fingerprint of them. Knows files; imports no torch.

Names resolve to a directory: 'embedded' (the reader in assets), a path, or a Hugging Face name, which is looked up in
the local hub cache and fetched only when the user asked for a download.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from desk_rag.assets import assets_dir
from desk_rag.errors import ModelNotFound

_WHOLE_BELOW = 256 * 1024**2
_SAMPLES = 64
_SAMPLE_BYTES = 65536
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FETCH = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model"]


def resolve(name: str, *, allow_download: bool) -> Path:
    """Directory with config.json and the weights of `name`. Raises ModelNotFound with the remedy."""
    if name == "embedded":
        return assets_dir() / "reader"
    path = Path(name).expanduser()
    if path.is_dir():
        return _checked(path)
    if path.exists() or not _HUB_NAME.fullmatch(name):
        raise ModelNotFound(
            f"'{name}' is neither a model directory nor a Hugging Face name.",
            remedy="Give a directory with config.json and *.safetensors, or ORG/NAME, or leave --model out.",
        )
    return _checked(_from_hub(name, allow_download=allow_download))


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a model, in name order."""
    return sorted(directory.glob("*.safetensors"))


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


def _checked(directory: Path) -> Path:
    if not (directory / "config.json").is_file():
        raise ModelNotFound(f"There is no config.json in {directory}.", remedy="Point --model at a model directory.")
    if not weight_files(directory):
        raise ModelNotFound(
            f"There are no *.safetensors weights in {directory}.",
            remedy="Download the weights into it; older formats: save_pretrained(safe_serialization=True).",
        )
    return directory


def _from_hub(name: str, *, allow_download: bool) -> Path:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=not allow_download, allow_patterns=_FETCH))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        if allow_download:
            raise ModelNotFound(
                f"'{name}' could not be downloaded: {type(error).__name__}.",
                remedy="Check the name and the network, or copy the model to a directory and give its path.",
            ) from error
        raise ModelNotFound(
            f"'{name}' is not on this machine.",
            remedy="Add --download to fetch it once from the Hugging Face hub; desk-rag opens no socket otherwise.",
        ) from error
