"""Check an embedder's directory before sentence-transformers loads it.

A directory of sentence-transformers lists modules in modules.json, each a class name and a subdirectory with a
configuration and weights of its own. Only the modules that plain text embedders are made of are let through, and each
must have its weights as safetensors: the library would otherwise open pickles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from desk_rag import checkpoint_files, weights
from desk_rag.checkpoint_config import (
    CONFIG,
    check_config,
    check_tokenizer_config,
    json_list,
    optional_json,
    read_json,
    regular_file,
)
from desk_rag.errors import ModelError, ModelNotFound, UnsupportedModel

_MODULE = re.compile(
    r"sentence_transformers\.(models|base\.modules|sentence_transformer\.modules)(\.[a-z_]+)?"
    r"\.(Transformer|Pooling|Normalize|Dense)"
)
_CALLER = re.compile(r"(model|tokenizer|processor|config)_(args|kwargs)")
_HARMLESS = frozenset({"torch_dtype", "dtype", "attn_implementation", "model_max_length", "padding_side", "use_fast"})
_ACTIVATION = re.compile(r"torch\.nn\.modules\.(activation|linear)\.[A-Z]\w*")
_MOST_MODULES = 8
_MOST_FEATURES = 65_536
_REMEDY = "Take embedder = 'embedded', or another sentence-transformers model for text."
_SETTINGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)


def check(directory: Path) -> Path:
    """Check all files of an embedder; return the directory of its transformer.

    Raises ModelNotFound, UnsupportedModel or ModelError.
    """
    optional_json(directory, "config_sentence_transformers.json")
    listed = json_list(directory, "modules.json")
    if listed is None:  # a plain transformer, to which mean pooling is added
        _check_transformer(directory, directory)
        return directory
    if not 1 <= len(listed) <= _MOST_MODULES:
        raise ModelError(f"{directory / 'modules.json'} lists {len(listed)} modules.", remedy=_REMEDY)
    transformer: Path | None = None
    for entry in listed:
        kind, place = _module(directory, entry)
        if kind == "Transformer" and transformer is None:
            transformer = place
            _check_transformer(directory, place)
        elif kind == "Transformer":
            raise ModelError(f"{directory / 'modules.json'} lists two transformers.", remedy=_REMEDY)
        elif kind == "Dense":
            _check_dense(place)
        else:
            check_config(place / CONFIG, optional_json(place, CONFIG))
    if transformer is None:
        raise UnsupportedModel(f"{directory / 'modules.json'} lists no transformer.", remedy=_REMEDY)
    return transformer


def _module(directory: Path, entry: Any) -> tuple[str, Path]:
    """(class, directory) of an entry in modules.json."""
    file = directory / "modules.json"
    fields = ("name", "path", "type")
    if not isinstance(entry, Mapping) or not all(isinstance(entry.get(field), str) for field in fields):
        raise ModelError(f"{file} does not describe a module by name, path and type.", remedy=_REMEDY)
    match = _MODULE.fullmatch(entry["type"])
    if match is None or (match[2] and match[2][1:] != match[3].lower()):
        raise UnsupportedModel(
            f"{file} names the module type '{entry['type'][:120]}', which is not loaded: only Transformer, Pooling, "
            "Normalize and Dense of sentence-transformers are, and no code that comes with a model.",
            remedy=_REMEDY,
        )
    path = PurePosixPath(entry["path"])
    place = directory / path
    if path.is_absolute() or ".." in path.parts or "\0" in entry["path"]:
        raise ModelError(f"{file} names a path outside of its directory: {entry['path'][:80]!r}.", remedy=_REMEDY)
    if not place.resolve().is_relative_to(directory.resolve()):
        raise ModelError(f"{place} is a link that leads out of the embedder's directory.", remedy=_REMEDY)
    return match[3], place


def _check_transformer(directory: Path, place: Path) -> None:
    if regular_file(place, CONFIG) is None:
        weights_beside = checkpoint_files.unsafe_files(place)
        what = f"; {weights_beside[0]} is not opened" if weights_beside else ""
        raise ModelNotFound(f"There is no config.json in {place}, so it holds no embedder{what}.", remedy=_REMEDY)
    weights.check_loading(place)
    check_tokenizer_config(place, optional_json(place, "tokenizer_config.json"))
    for name in ("tokenizer.json", "special_tokens_map.json", "added_tokens.json"):
        regular_file(place, name)
    for name in _SETTINGS:
        _check_settings(place / name, optional_json(place, name))


def _check_settings(file: Path, settings: Mapping[str, Any]) -> None:
    """Refuse what a sentence_bert_config.json passes on to transformers, or calls on the model, beyond the usual."""
    for name, value in settings.items():
        passed = set(value) if isinstance(value, dict) else {"?"} if value else set()
        if _CALLER.fullmatch(name) and (odd := passed - _HARMLESS):
            raise UnsupportedModel(f"{file} sets {name} = '{min(odd)[:60]}', which is not allowed.", remedy=_REMEDY)
    for kind, calls in (settings.get("modality_config") or {}).items():
        if kind != "text" or not isinstance(calls, dict) or calls.get("method") not in (None, "forward"):
            raise UnsupportedModel(f"{file} describes an input that is not plain text.", remedy=_REMEDY)
    length = settings.get("max_seq_length")
    if length is not None and (type(length) is not int or not 8 <= length <= 1 << 20):
        raise ModelError(f"{file}: max_seq_length is {str(length)[:40]}; it must be 8 to 1,048,576.", remedy=_REMEDY)
    check_config(file, {name: value for name, value in settings.items() if not _CALLER.fullmatch(name)})


def _check_dense(place: Path) -> None:
    config = read_json(place, CONFIG)
    sizes = [config.get("in_features"), config.get("out_features")]
    if any(type(size) is not int or not 1 <= size <= _MOST_FEATURES for size in sizes):
        raise ModelError(f"{place / CONFIG}: in_features and out_features must be 1 to 65,536.", remedy=_REMEDY)
    activation = config.get("activation_function", "")
    if not isinstance(activation, str) or (activation and not _ACTIVATION.fullmatch(activation)):
        message = f"{place / CONFIG} names the activation '{str(activation)[:80]}', which is none of PyTorch's."
        raise UnsupportedModel(message, remedy=_REMEDY)
    if regular_file(place, checkpoint_files.SINGLE) is None:
        unsafe = checkpoint_files.unsafe_files(place)
        what = f"are {unsafe[0]}, a format that can run code when it is opened" if unsafe else "are missing"
        raise UnsupportedModel(f"The weights in {place} {what}; desk-rag loads safetensors only.", remedy=_REMEDY)
    tensors = checkpoint_files.read_header(place / checkpoint_files.SINGLE)
    shapes = {name: info.shape for name, info in tensors.items()}
    wanted = {"linear.weight": (sizes[1], sizes[0])}
    if config.get("bias", True):
        wanted["linear.bias"] = (sizes[1],)
    if shapes != wanted:
        raise ModelError(f"The weights in {place} do not match its config.json.", remedy=_REMEDY)
