"""Apply a LoRA adapter (a peft directory) to a loaded model, and compute the fingerprint that names its chunk KV.

Only safetensors are read: an adapter is never unpickled, and settings that make peft import or compute anything else
are refused. The adapter is merged into plain weights, so that answers take no longer; beside quantised weights it stays
separate.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from desk_rag.errors import ConfigError, DeskRagError, ModelError, ModelNotFound, UnsupportedModel
from desk_rag.model import weights
from desk_rag.model.checkpoint import files as checkpoint_files
from desk_rag.model.checkpoint.config import optional_json, read_json, regular_file
from desk_rag.model.prompt import FINETUNE_RECORD

if TYPE_CHECKING:
    from desk_rag.model.language_model import LanguageModel

CONFIG, WEIGHTS, RECORD = "adapter_config.json", "adapter_model.safetensors", FINETUNE_RECORD
_BESIDE_THE_POINT = frozenset({"base_model_name_or_path", "inference_mode", "peft_version", "revision"})
"""Keys of adapter_config.json that do not affect the computed numbers."""


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """A checked adapter directory."""

    directory: Path
    config: dict[str, Any]
    base_weights: str | None
    """Fingerprint of the weights it was trained on; None for an adapter made elsewhere."""
    fingerprint: str
    """32 hex digits over its weights and what its configuration says about them."""


def inspect(directory: Path) -> AdapterFiles:
    """Read and check an adapter's configuration. Raises ModelNotFound or ModelError."""
    folder = directory.expanduser()
    if regular_file(folder, CONFIG) is None or regular_file(folder, WEIGHTS) is None:
        unsafe = checkpoint_files.unsafe_files(folder)
        note = f" {unsafe[0]} is a format that can run code when it is opened, so it is not used." if unsafe else ""
        raise ModelNotFound(
            f"{directory} is no adapter: it lacks {CONFIG} or {WEIGHTS}.{note}",
            remedy="Give the directory that `desk-rag finetune --lora` or peft's save_pretrained wrote.",
        )
    config = read_json(folder, CONFIG)
    kind = config.get("peft_type")
    if kind != "LORA" or config.get("alora_invocation_tokens"):
        raise ModelError(
            f"The adapter in {directory} is of type '{kind}'; only LoRA that acts on every token can be served.",
            remedy="Train one with `desk-rag finetune --lora 16`.",
        )
    _check_config(folder / CONFIG, config)
    _check_ranks(folder, config, checkpoint_files.read_header(folder / WEIGHTS))
    record = optional_json(folder, RECORD)
    base = record.get("base_weights")
    telling = {key: value for key, value in config.items() if key not in _BESIDE_THE_POINT}
    text = json.dumps(telling, sort_keys=True) + weights.fingerprint([folder / WEIGHTS])
    fingerprint = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return AdapterFiles(folder, config, base if isinstance(base, str) else None, fingerprint)


def attach(model: LanguageModel, directory: Path) -> LanguageModel:
    """The model with the adapter on it; its module is changed in place, so use the result and forget `model`.

    Raises ModelNotFound, ConfigError (peft is not installed) or ModelError (not made for these weights).
    """
    files = inspect(directory)
    if files.base_weights is not None and files.base_weights != model.spec.weights_fingerprint:
        raise ModelError(
            f"The adapter in {directory} was trained on other weights than those of '{model.spec.name}'.",
            remedy="Give --model the model it was trained on, or train the adapter again.",
        )
    peft = require_peft()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by a name it is about to drop
            warnings.simplefilter("ignore", UserWarning)  # of tensors that are missing, which is checked next
            wrapped = peft.PeftModel.from_pretrained(model.module, str(files.directory), is_trainable=False)
        _check_loaded(files.directory, set(peft.get_peft_model_state_dict(wrapped)))
        merge = model.spec.weight_quantization == "none"
        module = wrapped.merge_and_unload(safe_merge=True) if merge else wrapped.get_base_model()
    except DeskRagError:
        raise
    except Exception as error:  # what a field of the wrong kind provokes in peft is not for us to foresee
        reason = str(error).partition("\n")[0][:300] or type(error).__name__
        raise ModelError(
            f"The adapter in {directory} does not fit '{model.spec.name}': {reason}",
            remedy="Give --model the model it was trained on.",
        ) from error
    module.eval()
    module.requires_grad_(False)
    return replace(model, module=module, spec=replace(model.spec, adapter=files.fingerprint))


def require_peft() -> Any:
    """The peft library. Raises ConfigError if it is not installed."""
    try:
        import peft
    except ImportError as error:
        raise ConfigError(
            "Adapters need peft, which is not installed.", remedy="Install the extra: pip install 'desk-rag[finetune]'."
        ) from error
    return peft


def _check_loaded(folder: Path, wanted: set[str]) -> None:
    """Raise ModelError unless the adapter's file holds the tensors that its configuration asks for, and no others."""
    present = set(checkpoint_files.read_header(folder / WEIGHTS))
    fault = ""
    if wanted - present:
        fault = f"lacks {checkpoint_files.named(wanted - present)}"
    elif present - wanted:
        fault = f"holds {checkpoint_files.named(present - wanted)}, for which the model has no place"
    if fault:
        raise ModelError(
            f"The adapter in {folder} {fault}.",
            remedy="Give --model the model it was trained on, or copy or train the adapter again.",
        )


_IMPORTING = ("megatron_config", "layer_replication", "loftq_config", "eva_config", "corda_config")
"""Keys of adapter_config.json that make peft import modules or compute on the base model."""
_LIBRARY = "transformers."
_MOST_ALPHA = 1 << 18
_NESTED_REPEAT = re.compile(r"[*+}][^()]*\)\s*[*+{]")
"""A repeated group that ends in a repetition: matching one name against it may take for ever."""


def _check_config(file: Path, config: dict[str, Any]) -> None:
    """Raise ModelError for settings that make peft import modules, change the base model or never end."""
    for name in _IMPORTING:
        if config.get(name):
            raise UnsupportedModel(f"{file} sets '{name}', which is not served.", remedy="Train a plain LoRA adapter.")
    mapped = config.get("auto_mapping") or {}
    if not isinstance(mapped, dict) or not str(mapped.get("parent_library") or _LIBRARY).startswith(_LIBRARY):
        raise UnsupportedModel(f"{file} names code to be run ('auto_mapping').", remedy="Train a plain LoRA adapter.")
    if config.get("init_lora_weights", True) not in (True, False, "gaussian"):
        raise UnsupportedModel(
            f"{file}: init_lora_weights is '{str(config['init_lora_weights'])[:40]}', which changes the base model.",
            remedy="Convert the adapter to plain LoRA, as peft's guide on PiSSA and CorDA says.",
        )
    _check_patterns(file, config)


def _check_patterns(file: Path, config: dict[str, Any]) -> None:
    for name in ("r", "lora_alpha"):
        _check_amount(file, name, config.get(name, 8))
    for name in ("rank_pattern", "alpha_pattern"):
        pattern = config.get(name) or {}
        if not isinstance(pattern, dict):
            raise _absurd(file, name, pattern)
        for expression, value in pattern.items():
            _check_expression(file, name, expression)
            _check_amount(file, name, value)
    for name in ("target_modules", "exclude_modules", "layers_pattern"):
        value = config.get(name)
        for expression in value if isinstance(value, list) else [value] if value is not None else []:
            _check_expression(file, name, expression)


def _check_amount(file: Path, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST_ALPHA:
        raise _absurd(file, name, value)


def _check_expression(file: Path, name: str, expression: object) -> None:
    if not isinstance(expression, str) or len(expression) > 500 or _NESTED_REPEAT.search(expression):
        raise _absurd(file, name, expression)


def _absurd(file: Path, name: str, value: object) -> ModelError:
    return ModelError(f"{file}: {name} cannot be {str(value)[:40]!r}.", remedy="Copy or train the adapter again.")


def _check_ranks(folder: Path, config: dict[str, Any], tensors: dict[str, checkpoint_files.TensorInfo]) -> None:
    """Raise ModelError unless the matrices come in pairs of the configured rank."""
    patterned = (config.get("rank_pattern") or {}).values()
    ranks = {config.get("r", 8), *patterned}
    for name, info in tensors.items():
        if ".lora_A." in name or ".lora_B." in name:
            twin = name.replace(".lora_A.", ".lora_B.") if ".lora_A." in name else name.replace(".lora_B.", ".lora_A.")
            if twin not in tensors:
                raise ModelError(
                    f"The adapter in {folder} lacks the tensor {twin[:120]}.", remedy="Copy or train it again."
                )
            rank = (info.shape or (0,))[0 if ".lora_A." in name else -1]
            if len(info.shape) != 2 or rank not in ranks:
                raise ModelError(
                    f"The adapter in {folder} does not match its {CONFIG}: {name[:120]} is {list(info.shape)}.",
                    remedy="Copy or train it again.",
                )
