"""Check the JSON files of a model directory before a library acts on them.

A configuration decides how much memory is taken and, in transformers, which code runs. Here it is read with limits of
size and depth, code and kernels that it names are refused, and its numbers must be those of a model that can exist.
Nothing is imported and nothing is loaded.
"""

from __future__ import annotations

import json
import math
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from desk_rag.errors import ModelError, ModelNotFound, UnsupportedModel

CONFIG = "config.json"
_MOST_JSON = 64 * 1024**2
_MOST_DEPTH = 24
_FETCH_AGAIN = "Fetch the model's files again from its publisher."
_NO_CODE = "desk-rag runs no code that comes with a model. Take a model of a type that transformers has built in."

_BOUNDS: dict[str, int] = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 1024),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_head", "n_heads"), 4096),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim"), 131_072),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner"), 2_097_152),
    **dict.fromkeys(("max_position_embeddings", "original_max_position_embeddings", "n_positions"), 1 << 28),
    "vocab_size": 16_777_216,
    "head_dim": 8192,
    "sliding_window": 1 << 28,
}
"""Largest value of each whole number that decides about memory; the smallest is 1."""
_BY_LAYER = frozenset({"intermediate_size"})
"""Fields of `_BOUNDS` that may be a list with a number for each layer, as those of Gemma 3n are."""
_REQUIRED = frozenset({"num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size"})
"""Fields of `_BOUNDS` that may not be null."""
_POSITIVE = frozenset(
    {"rope_theta", "rope_local_base_freq", "factor", "rms_norm_eps", "layer_norm_eps", "partial_rotary_factor",
     "low_freq_factor", "high_freq_factor", "attention_factor", "query_pre_attn_scalar"}
)  # fmt: skip
_SWITCHES = frozenset({"tie_word_embeddings", "attention_bias", "mlp_bias", "use_cache", "is_encoder_decoder"})
_MOST_COUNT = 1 << 16
"""Bound of any other field called num_*, n_* or *_layers."""
_ATTENTION_KEYS = frozenset(
    {"attn_implementation", "_attn_implementation", "_attn_implementation_internal", "experts_implementation",
     "_experts_implementation"}
)  # fmt: skip
_ATTENTION = frozenset(
    {"eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention", "grouped_mm", "batched_mm"}
)
_KERNEL_KEYS = frozenset({"kernel_config", "use_kernels", "hub_kernels", "kernels", "fusion_config"})
_CODE_KEYS = frozenset({"custom_code", "custom_pipelines", "trust_remote_code", "custom_generate"})
_ELSEWHERE_KEYS = frozenset({"transformers_weights", "distributed_config", "base_model_name_or_path", "tp_plan"})


def regular_file(directory: Path, name: str) -> Path | None:
    """The file `name` of a model directory; None where there is none.

    A link must stay in the directory, or in the hub cache that the directory is part of. Raises ModelError for a link
    that leads out of it and for what is no regular file: a pipe would block whoever opens it.
    """
    file = directory / name
    try:
        target = file.resolve(strict=True)
        mode = target.stat().st_mode
    except FileNotFoundError:
        if file.is_symlink():
            raise ModelError(f"{file} is a link to a file that is not there.", remedy=_FETCH_AGAIN) from None
        return None
    except (OSError, RuntimeError) as error:  # a loop of links, no permission
        raise ModelError(f"{file} cannot be read: {error}.", remedy="Check its permissions.") from error
    if not stat.S_ISREG(mode):
        raise ModelError(f"{file} is not a regular file.", remedy=_FETCH_AGAIN)
    home = directory.resolve()
    places = [home]
    if home.parent.name == "snapshots":  # of the hub cache, whose files are links to blobs
        places.append(home.parent.parent / "blobs")
    if not any(target.is_relative_to(place) for place in places):
        raise ModelError(
            f"{file} is a link to {target}, outside of the model's directory.",
            remedy="Put the file itself there, or name the directory in which it lies.",
        )
    return file


def read_json(directory: Path, name: str) -> dict[str, Any]:
    """The JSON object in `name`. Raises ModelNotFound (no such file) or ModelError."""
    file = regular_file(directory, name)
    if file is None:
        raise ModelNotFound(f"There is no {name} in {directory}.", remedy=_FETCH_AGAIN)
    content = _parsed(file)
    if not isinstance(content, dict):
        raise ModelError(f"{file} holds no JSON object.", remedy=_FETCH_AGAIN)
    return content


def optional_json(directory: Path, name: str) -> dict[str, Any]:
    """The JSON object in `name`; empty where there is no such file. Raises ModelError."""
    return read_json(directory, name) if regular_file(directory, name) is not None else {}


def json_list(directory: Path, name: str) -> list[Any] | None:
    """The JSON list in `name`; None where there is no such file. Raises ModelError."""
    file = regular_file(directory, name)
    if file is None:
        return None
    content = _parsed(file)
    if not isinstance(content, list):
        raise ModelError(f"{file} holds no JSON list.", remedy=_FETCH_AGAIN)
    return content


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`: a dictionary of `pairs`; ValueError where a name stands twice."""
    content = dict(pairs)
    if len(content) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it has '{next(name for name in names if names.count(name) > 1)[:80]}' twice")
    return content


def _parsed(file: Path) -> Any:
    try:
        size = file.stat().st_size
        if size > _MOST_JSON:
            raise ModelError(f"{file} is longer than {_MOST_JSON >> 20} MiB.", remedy=_FETCH_AGAIN)
        content = json.loads(file.read_text(encoding="utf-8"))
        if _too_deep(content):
            raise RecursionError
    except RecursionError as error:
        message = f"{file} is nested more than {_MOST_DEPTH} levels deep."
        raise ModelError(message, remedy=_FETCH_AGAIN) from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}", remedy=_FETCH_AGAIN) from error
    return content


def _too_deep(content: Any) -> bool:
    level = [content]
    for _ in range(_MOST_DEPTH):
        level = [item for value in level for item in _items(value)]
        if not level:
            return False
    return True


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def check_config(file: Path, config: Mapping[str, Any], *, built_in: str = "") -> None:
    """Raise ModelError or UnsupportedModel for code, kernels or absurd numbers in the configuration in `file`.

    `built_in` is the class name of transformers' own configuration for the model type, without 'Config'. An `auto_map`
    that names nothing but transformers' classes of that name is left over from before they were built in, and ignored.
    """
    for path, name, value in _fields(config):
        if name == "auto_map":
            _check_auto_map(file, value, built_in)
        _check_keys(file, name, value)
        _check_number(file, path, name, value)
        _check_words(file, path, name, value)
    for section in (config, *(value for value in config.values() if isinstance(value, dict))):
        _check_heads(file, section)
        _check_window(file, section)
    _check_quantization(file, config)


def check_tokenizer_config(directory: Path, config: Mapping[str, Any]) -> None:
    """Raise UnsupportedModel where a tokenizer_config.json names code."""
    for _, name, value in _fields(config):
        if value and (name == "auto_map" or name in _CODE_KEYS):
            raise _code(directory / "tokenizer_config.json", f"'{name}'")


def _fields(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str, Any]]:
    """(dotted path, name, value) of every field at every level; transformers fills in keys that are numbers (Aria)."""
    for name, value in ((str(key), value) for key, value in config.items()):
        yield f"{prefix}{name}", name, value
        if isinstance(value, dict):
            yield from _fields(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, dict):
                    yield from _fields(item, f"{prefix}{name}.")
                elif isinstance(item, int | float):
                    yield f"{prefix}{name}", "", item


def _check_auto_map(file: Path, value: Any, built_in: str) -> None:
    references = value.values() if isinstance(value, dict) else [value]
    own = built_in and all(
        isinstance(reference, str) and re.fullmatch(rf"\w+\.{built_in}[A-Z]\w*", reference) for reference in references
    )
    if value and not own:
        raise _code(file, "'auto_map'")


def _check_keys(file: Path, name: str, value: Any) -> None:
    if value is None or value is False:
        return
    if name in _ATTENTION_KEYS:
        values = value.values() if isinstance(value, dict) else [value]
        odd = [str(item)[:80] for item in values if item is not None and item not in _ATTENTION]
        if odd:
            raise _code(file, f"'{name}' = '{odd[0]}', an attention kernel from elsewhere")
    elif name in _KERNEL_KEYS:
        raise _code(file, f"'{name}', kernels from elsewhere")
    elif name in _CODE_KEYS:
        raise _code(file, f"'{name}'")
    elif name in _ELSEWHERE_KEYS:
        raise UnsupportedModel(
            f"{file} sends the loading elsewhere by '{name}'.",
            remedy="Take a directory that holds the whole model, its weights in model.safetensors or in shards.",
        )


def _check_number(file: Path, path: str, name: str, value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise _absurd(file, path, value, "a finite number")
    if name in _BOUNDS and (value is not None or name in _REQUIRED):
        numbers = value if name in _BY_LAYER and isinstance(value, list) else [value]
        least = 0 if name == "sliding_window" else 1  # 0 where no layer has one; see _check_window
        if any(type(number) is not int or not least <= number <= _BOUNDS[name] for number in numbers):
            raise _absurd(file, path, value, f"a whole number from 1 to {_BOUNDS[name]:,}")
    elif name in _POSITIVE and value is not None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e12:
            raise _absurd(file, path, value, "a number above 0")
    elif name in _SWITCHES and value is not None:
        if not isinstance(value, bool):
            raise _absurd(file, path, value, "true or false")
    elif isinstance(value, int) and not isinstance(value, bool):
        counted = name.startswith(("num_", "n_")) or name.endswith("_layers")
        if abs(value) > (_MOST_COUNT if counted else 1 << 62):
            raise _absurd(file, path, value, f"at most {_MOST_COUNT:,}" if counted else "a number of 64 bits")


def _check_words(file: Path, path: str, name: str, value: Any) -> None:
    if name in ("rope_scaling", "rope_parameters", "quantization_config") and not isinstance(value, dict | None):
        raise _absurd(file, path, value, "an object in braces")
    if (
        name in ("layer_types", "architectures")
        and value is not None
        and not (isinstance(value, list) and all(isinstance(item, str) for item in value))
    ):
        raise _absurd(file, path, value, "a list of names")
    if name in ("short_factor", "long_factor") and not (
        isinstance(value, list) and all(isinstance(item, int | float) and 0 < item < 1e12 for item in value)
    ):
        raise _absurd(file, path, value, "a list of numbers above 0")


def _check_heads(file: Path, config: Mapping[str, Any]) -> None:
    """Raise where heads, sizes and layer types of one section contradict each other."""
    heads, shared = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(shared, int) and heads % shared:
        raise ModelError(f"{file}: {heads} attention heads cannot share {shared} key-value heads.", remedy=_FETCH_AGAIN)
    hidden, head_dim = config.get("hidden_size"), config.get("head_dim")
    if isinstance(heads, int) and isinstance(hidden, int) and not head_dim and hidden % heads:
        raise ModelError(f"{file}: hidden_size {hidden} is no multiple of {heads} heads.", remedy=_FETCH_AGAIN)
    if isinstance(head_dim, int) and head_dim % 2:
        raise ModelError(f"{file}: head_dim {head_dim} is odd, so it cannot be rotated.", remedy=_FETCH_AGAIN)
    kinds, layers = config.get("layer_types"), config.get("num_hidden_layers")
    if isinstance(kinds, list) and isinstance(layers, int) and len(kinds) != layers:
        raise ModelError(f"{file} has {layers} layers and {len(kinds)} layer_types.", remedy=_FETCH_AGAIN)


def _check_window(file: Path, config: Mapping[str, Any]) -> None:
    """Raise for a window of 0, which transformers writes for Qwen2-MoE, unless the windows are switched off."""
    if config.get("sliding_window") == 0 and config.get("use_sliding_window") is not False:
        raise _absurd(file, "sliding_window", 0, f"a whole number from 1 to {_BOUNDS['sliding_window']:,}")


def _check_quantization(file: Path, config: Mapping[str, Any]) -> None:
    quantization = config.get("quantization_config") or config.get("quantization")
    if not isinstance(quantization, dict):
        return
    if "quant_method" not in quantization and not quantization.get("load_in_4bit", quantization.get("load_in_8bit")):
        if "group_size" in quantization and "bits" in quantization:
            raise UnsupportedModel(
                f"{file} is of a model in MLX's form, for Apple's GPUs, which transformers cannot load.",
                remedy="Take the publisher's own safetensors of the same model.",
            )
        raise ModelError(f"{file}: quantization_config names no quant_method.", remedy=_FETCH_AGAIN)


def _absurd(file: Path, path: str, value: Any, wanted: str) -> ModelError:
    shown = repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:40]}…"
    return ModelError(f"{file}: {path} is {shown}; it must be {wanted}.", remedy=_FETCH_AGAIN)


def _code(file: Path, what: str) -> UnsupportedModel:
    return UnsupportedModel(f"{file} names code to be run: {what}.", remedy=_NO_CODE)
