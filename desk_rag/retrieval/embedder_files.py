"""Check an embedder's directory before sentence-transformers loads it.

Such a directory lists modules in modules.json, each a class name and a subdirectory with its own configuration and
weights. Only the modules that plain text embedders consist of are accepted, and each must have safetensors weights: the
library would otherwise open pickles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from desk_rag.config import ModelSettings
from desk_rag.errors import ModelError, ModelNotFound, UnsupportedModel
from desk_rag.model import weights
from desk_rag.model.checkpoint import files
from desk_rag.model.checkpoint.config import (
    CONFIG,
    check_config,
    check_tokenizer_config,
    json_list,
    optional_json,
    read_json,
    regular_file,
)

_MODULE = re.compile(
    r"sentence_transformers\.(models|base\.modules|sentence_transformer\.modules)(\.[a-z_]+)?"
    r"\.(Transformer|Pooling|Normalize|Dense)"
)
_CALLER = re.compile(r"(model|tokenizer|processor|config)_(args|kwargs)")
_HARMLESS = frozenset({"torch_dtype", "dtype", "attn_implementation", "model_max_length", "padding_side", "use_fast"})
_ACTIVATION = re.compile(r"torch\.nn\.modules\.(activation|linear)\.[A-Z]\w*")
_MOST_MODULES = 8
_MOST_FEATURES = 65_536
_REMEDY = "Use embedder = 'embedded', or another sentence-transformers model for text."
_SETTINGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)


_CHOICES = {"multilingual": "intfloat/multilingual-e5-small"}
"""Embedders by the names that settings and guides use for them."""
_E5 = re.compile(r"(?:^|/)(?:multilingual-)?e5-(?:small|base|large)(?:-v2)?(?:$|/)")
_E5_PROMPTS = {"query": "query: ", "document": "passage: "}
"""Texts that E5 models were trained with and whose files do not name them."""


def missing_prompts(embedder: str, prompts: Mapping[str, str]) -> dict[str, str]:
    """Return the prompts of a model; those of its family if its files name none."""
    if any(prompts.values()) or not _E5.search(_CHOICES.get(embedder, Path(embedder).expanduser().as_posix())):
        return dict(prompts)
    return dict(_E5_PROMPTS)


def check_embedder(settings: ModelSettings) -> Path:
    """Return the embedder's directory after all checks that need no weights to be loaded.

    Raises ModelNotFound, UnsupportedModel or ModelError.
    """
    path = Path(settings.embedder).expanduser()
    directory = path if path.is_dir() else _from_hub(settings)
    _check_tensors(_check_modules(directory))
    return directory


def _check_modules(directory: Path) -> Path:
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
        kind, module_dir = _module(directory, entry)
        if kind == "Transformer" and transformer is None:
            transformer = module_dir
            _check_transformer(directory, module_dir)
        elif kind == "Transformer":
            raise ModelError(f"{directory / 'modules.json'} lists two transformers.", remedy=_REMEDY)
        elif kind == "Dense":
            _check_dense(module_dir)
        else:
            check_config(module_dir / CONFIG, optional_json(module_dir, CONFIG))
    if transformer is None:
        raise UnsupportedModel(f"{directory / 'modules.json'} lists no transformer.", remedy=_REMEDY)
    return transformer


def _module(directory: Path, entry: Any) -> tuple[str, Path]:
    """Return (class, directory) of an entry in modules.json."""
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
    module_dir = directory / path
    if path.is_absolute() or ".." in path.parts or "\0" in entry["path"]:
        raise ModelError(f"{file} names a path outside of its directory: {entry['path'][:80]!r}.", remedy=_REMEDY)
    if not module_dir.resolve().is_relative_to(directory.resolve()):
        raise ModelError(f"{module_dir} is a link that leads out of the embedder's directory.", remedy=_REMEDY)
    return match[3], module_dir


def _check_transformer(directory: Path, module_dir: Path) -> None:
    if regular_file(module_dir, CONFIG) is None:
        weights_beside = files.unsafe_files(module_dir)
        what = f"; {weights_beside[0]} is not opened" if weights_beside else ""
        raise ModelNotFound(f"There is no config.json in {module_dir}, so it holds no embedder{what}.", remedy=_REMEDY)
    weights.check_loading(module_dir)
    check_tokenizer_config(module_dir, optional_json(module_dir, "tokenizer_config.json"))
    for name in ("tokenizer.json", "special_tokens_map.json", "added_tokens.json"):
        regular_file(module_dir, name)
    for name in _SETTINGS:
        _check_settings(module_dir / name, optional_json(module_dir, name))


def _check_settings(file: Path, settings: Mapping[str, Any]) -> None:
    """Refuse unusual arguments and method calls in a sentence_bert_config.json."""
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


def _check_dense(module_dir: Path) -> None:
    config = read_json(module_dir, CONFIG)
    sizes = [config.get("in_features"), config.get("out_features")]
    if any(type(size) is not int or not 1 <= size <= _MOST_FEATURES for size in sizes):
        raise ModelError(f"{module_dir / CONFIG}: in_features and out_features must be 1 to 65,536.", remedy=_REMEDY)
    activation = config.get("activation_function", "")
    if not isinstance(activation, str) or (activation and not _ACTIVATION.fullmatch(activation)):
        message = f"{module_dir / CONFIG} names the activation '{str(activation)[:80]}', which is none of PyTorch's."
        raise UnsupportedModel(message, remedy=_REMEDY)
    if regular_file(module_dir, files.SINGLE) is None:
        unsafe = files.unsafe_files(module_dir)
        what = f"are {unsafe[0]}, a format that can run code when it is opened" if unsafe else "are missing"
        raise UnsupportedModel(f"The weights in {module_dir} {what}; desk-rag loads safetensors only.", remedy=_REMEDY)
    tensors = files.read_header(module_dir / files.SINGLE)
    shapes = {name: info.shape for name, info in tensors.items()}
    expected: dict[str, tuple[Any, ...]] = {"linear.weight": (sizes[1], sizes[0])}
    if config.get("bias", True):
        expected["linear.bias"] = (sizes[1],)
    if shapes != expected:
        raise ModelError(f"The weights in {module_dir} do not match its config.json.", remedy=_REMEDY)


def _check_tensors(directory: Path) -> None:
    """Raise ModelError if a transformer's configuration is invalid or contradicts its weights."""
    import torch
    from transformers import AutoConfig, AutoModel

    from desk_rag.model.checkpoint import tensors as checkpoint_tensors

    fields = read_json(directory, CONFIG)
    built_in = checkpoint_tensors.built_in_name(fields.get("model_type"))
    check_config(directory / CONFIG, fields, built_in=built_in)
    try:
        config = AutoConfig.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
        tensors = files.tensors(directory)
        layers = getattr(config, "num_hidden_layers", 0)
        checkpoint_tensors.check_layer_count(directory, layers, tensors)
        with torch.device("meta"):
            module = AutoModel.from_config(config, trust_remote_code=False)
        checkpoint_tensors.compare(directory, module, tensors, may_lack=_POOLER, may_add=_is_head)
    except ModelError:
        raise
    except Exception as error:  # transformers may raise anything for a field of the wrong type
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        raise ModelError(
            f"The embedder in {directory} could not be loaded: {reason}",
            remedy="Use embedder = 'embedded', or download the model's files again.",
        ) from error


_POOLER = re.compile(r"(^|\.)pooler\.")
"""Tensors of a pooler on top of the model, which many embedders lack because they do not use it."""


def _is_head(module: Any, name: str) -> bool:
    """True for tensors of a task head (cls.predictions, lm_head), not of the plain model."""
    parts = {child for child, _ in module.named_children()}
    bare = name.removeprefix(f"{module.base_model_prefix}.")
    return bare.partition(".")[0] not in parts


def _from_hub(settings: ModelSettings) -> Path:
    name = _CHOICES.get(settings.embedder) or _named(settings.embedder)
    name = name if "/" in name else f"sentence-transformers/{name}"  # as the library completes names
    try:
        return weights.from_hub(name, allow_download=settings.allow_download)
    except ModelNotFound as error:
        raise ModelNotFound(
            f"The embedder {error.message}",
            remedy="Use embedder = 'embedded', a folder with a sentence-transformers model, "
            "or download a named one once with --download.",
        ) from error


def _named(name: str) -> str:
    """Return a hub name unchanged; raise ModelNotFound for a path, since none exists there."""
    path = Path(name).expanduser()
    if path.suffix.lower() == ".gguf":
        raise UnsupportedModel(
            f"'{name}' is an embedder in GGUF, which desk-rag does not load.",
            remedy="Take the safetensors of the same embedder, as a folder or a Hugging Face name.",
        )
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ModelNotFound(
            f"There is no embedder at {path}.", remedy="Correct the path in [model] embedder, or set it to 'embedded'."
        )
    return name
