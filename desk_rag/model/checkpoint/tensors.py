"""Compare the tensors on disk with those that a configuration asks for, without loading either.

transformers puts random numbers where a checkpoint has none, and says so only in its log. A model on torch's meta
device, where tensors have a shape and take no memory, has the names and shapes that the safetensors headers are held
against, renamed as transformers renames them when it loads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from desk_rag.errors import ModelError
from desk_rag.model.checkpoint.files import TensorInfo, named
from desk_rag.model.checkpoint.row_int8 import SCALE

_REMEDY = "Fetch the model's files again; a config.json of another version of the model has the same effect."
_PAST_BUFFERS = re.compile(r"(.*\.)?(rotary_emb\.inv_freq|position_ids|masked_bias|attn\.bias)")
"""Tensors of old checkpoints that are computed today."""


def built_in_name(model_type: object) -> str:
    """'Phi3' for the type 'phi3', whose classes transformers calls Phi3Config, Phi3Model; '' for a type it lacks."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return str(CONFIG_MAPPING_NAMES.get(model_type, "")).removesuffix("Config") if isinstance(model_type, str) else ""


def check_layer_count(directory: Path, layers: int, tensors: Collection[str]) -> None:
    """Raise ModelError if there are fewer tensors than layers: building such a model could take for ever."""
    if len(tensors) < layers:
        raise ModelError(
            f"{directory / 'config.json'} has {layers:,} layers, but the weights hold only {len(tensors):,} "
            f"tensor{'s' * (len(tensors) > 1)}.",
            remedy=_REMEDY,
        )


def compare(
    directory: Path,
    module: Any,
    tensors: Mapping[str, TensorInfo],
    *,
    may_lack: re.Pattern[str] | None = None,
    may_add: Callable[[Any, str], bool] | None = None,
) -> None:
    """Raise ModelError that names the tensors which the files lack, the model does not know or has in another shape.

    `module` may lie on the meta device. `may_lack` matches names that need not be there; `may_add(module, name)` allows
    further ones.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    missing, unexpected, other_shape = set(expected), set(), []
    for name, info, converted in _renamed(module, _row_int8(directory, tensors), expected):
        if name not in expected:
            unexpected.add(name)
            continue
        missing.discard(name)
        if not converted and info.shape != expected[name]:
            other_shape.append(f"{name} is {list(info.shape)} and should be {list(expected[name])}")
    missing -= _tied(module, missing)
    missing = _without(missing, (module._keys_to_ignore_on_load_missing, may_lack))
    unexpected = _without(unexpected, (module._keys_to_ignore_on_load_unexpected, _PAST_BUFFERS))
    if may_add is not None:
        unexpected = {name for name in unexpected if not may_add(module, name)}
    _report(directory, missing, unexpected, other_shape)


def check_loaded(directory: Path, info: Mapping[str, Any]) -> None:
    """Raise ModelError for what transformers' `output_loading_info` found amiss."""
    mismatched = [str(entry[0] if isinstance(entry, tuple) else entry) for entry in info.get("mismatched_keys", ())]
    _report(directory, set(info["missing_keys"]), set(info["unexpected_keys"]), mismatched)
    if info.get("error_msgs"):
        raise ModelError(f"The weights in {directory} could not be read whole.", remedy=_REMEDY)


def _report(directory: Path, missing: set[str], unexpected: set[str], other_shape: list[str]) -> None:
    faults = []
    if missing:
        faults.append(f"they lack {named(missing)}")
    if unexpected:
        faults.append(f"they hold {named(unexpected)}, which the model has no place for")
    if other_shape:
        more = f" and {len(other_shape) - 2} more" if len(other_shape) > 2 else ""
        faults.append(f"{', '.join(sorted(other_shape)[:2])}{more}")
    if faults:
        message = f"The weights in {directory} do not match its config.json: {'; '.join(faults)}."
        raise ModelError(message, remedy=_REMEDY)


def _row_int8(directory: Path, tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """`tensors` without the scales of the reader's form. Raises ModelError for a scale that fits no matrix."""
    plain = dict(tensors)
    for name in [name for name in tensors if name.endswith(SCALE)]:
        scale, matrix = plain.pop(name), tensors.get(name.removesuffix(SCALE))
        if matrix is None or matrix.dtype != "I8" or scale.shape not in ((matrix.shape[0], 1), matrix.shape[:1]):
            raise ModelError(f"{directory}: the scale {name[:80]} fits no int8 matrix.", remedy=_REMEDY)
    codes = {name for name, info in plain.items() if info.dtype in ("I8", "U8") and f"{name}{SCALE}" not in tensors}
    if codes:
        message = f"The weights in {directory} are whole numbers without scales: {named(codes)}."
        raise ModelError(message, remedy=_REMEDY)
    return plain


def _renamed(
    module: Any, tensors: Mapping[str, TensorInfo], expected: Mapping[str, Any]
) -> Iterable[tuple[str, TensorInfo, bool]]:
    """(the name a tensor is loaded under, the tensor, whether it is merged with others and so changes its shape)."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    mapping = get_model_conversion_mapping(module)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    prefix = module.base_model_prefix
    for source, info in tensors.items():
        name, converter = rename_source_key(source, renamings, converters, prefix, expected)
        if name not in expected and source in expected:
            name, converter = source, None
        yield name, info, converter is not None


def _tied(module: Any, missing: set[str]) -> set[str]:
    """Return the tensors of `missing` that are tied to others which exist."""
    ties = getattr(module, "all_tied_weights_keys", None) or {}
    return {name for name in missing if name in ties and ties[name] not in missing}


def _without(names: set[str], patterns: Iterable[Any]) -> set[str]:
    compiled: list[re.Pattern[str]] = []
    for entry in patterns:
        if isinstance(entry, re.Pattern):
            compiled.append(entry)
        else:
            compiled += [re.compile(pattern) for pattern in entry or ()]
    return {name for name in names if not any(pattern.search(name) for pattern in compiled)}
