"""Find models in LM Studio's folders, which are only read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from desk_rag.errors import ModelNotFound, UnsupportedModel

PREFIX = "lmstudio:"
_NAME = re.compile(r"[\w.-]+/[\w.-]+(/[\w.-]+\.gguf)?")
_LATER_PART = re.compile(r".*-0*([2-9]|[1-9]\d+)-of-\d+\.gguf", re.I)
_NO_MODEL = re.compile(r"(.*[-_.])?mmproj[-_.].*", re.I)
"""Vision parts, which lie beside the models that they belong to."""


def folders() -> list[Path]:
    """The directories in which LM Studio keeps models, those that exist."""
    places = [Path.home() / ".lmstudio" / "models", Path.home() / ".cache" / "lm-studio" / "models"]
    return [place for place in places if place.is_dir()]


def find(name: str) -> Path:
    """The file or directory of PUBLISHER/MODEL or PUBLISHER/MODEL/FILE.gguf. Raises ModelNotFound."""
    if not _NAME.fullmatch(name) or ".." in name.split("/"):
        raise ModelNotFound(f"'{name[:80]}' is no name of LM Studio's.", remedy="Names look like PUBLISHER/MODEL.")
    for place in folders():
        if (place / name).exists():
            return place / name
    looked = " or ".join(map(str, folders())) or str(Path.home() / ".lmstudio" / "models")
    raise ModelNotFound(f"LM Studio has no '{name}' in {looked}.", remedy="`desk-rag models list` shows what it has.")


def models() -> Iterator[tuple[str, Path]]:
    """Name and path of every GGUF file and every directory of safetensors in LM Studio's folders."""
    for place in folders():
        for folder in sorted(place.glob("*/*/")):
            paths = [folder] if (folder / "config.json").is_file() else gguf_files(folder)
            for path in paths:
                name = (folder if len(paths) == 1 else path).relative_to(place).as_posix()
                yield f"{PREFIX}{name}" if _NAME.fullmatch(name) else str(path), path


def gguf_files(folder: Path) -> list[Path]:
    """The GGUF files of language models in a directory, in order; of a model in parts the first."""
    files = (file for file in folder.iterdir() if file.suffix.lower() == ".gguf" and file.is_file())
    return sorted(file for file in files if not (_NO_MODEL.fullmatch(file.name) or _LATER_PART.fullmatch(file.name)))


def only_gguf(folder: Path) -> Path | None:
    """The one GGUF model in a directory; None where there is none. Raises UnsupportedModel where there are several."""
    files = gguf_files(folder)
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:6])
        raise UnsupportedModel(
            f"There are {len(files)} GGUF models in {folder}: {names}.", remedy="Name one of the files with --model."
        )
    return files[0] if files else None
