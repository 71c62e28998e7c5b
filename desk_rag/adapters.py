"""Puts a LoRA adapter (a peft directory) onto a loaded model, and gives it the fingerprint that names its chunk KV.

Knows peft and files; knows no caches and no training. Safetensors only: an adapter is never unpickled. Over plain
weights the adapter is merged, so that answers cost nothing more; over quantised weights it stays beside them.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from desk_rag import weights
from desk_rag.errors import ConfigError, ModelError, ModelNotFound

if TYPE_CHECKING:
    from desk_rag.model import LanguageModel

CONFIG, WEIGHTS, RECORD = "adapter_config.json", "adapter_model.safetensors", "desk_rag.json"
_BESIDE_THE_POINT = frozenset({"base_model_name_or_path", "inference_mode", "peft_version", "revision"})
"""Of adapter_config.json: what says nothing about the numbers computed."""


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
    """Read what an adapter says of itself. Raises ModelNotFound or ModelError."""
    folder = directory.expanduser()
    if not (folder / CONFIG).is_file() or not (folder / WEIGHTS).is_file():
        raise ModelNotFound(
            f"{directory} is no adapter: it lacks {CONFIG} or {WEIGHTS}.",
            remedy="Give the directory that `desk-rag finetune --lora` or peft's save_pretrained wrote.",
        )
    config = _object(folder / CONFIG)
    kind = config.get("peft_type")
    if kind != "LORA" or config.get("alora_invocation_tokens"):
        raise ModelError(
            f"The adapter in {directory} is of type '{kind}'; only LoRA that acts on every token can be served.",
            remedy="Train one with `desk-rag finetune --lora 16`.",
        )
    record = _object(folder / RECORD) if (folder / RECORD).is_file() else {}
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
            wrapped = peft.PeftModel.from_pretrained(model.module, str(files.directory), is_trainable=False)
        merge = model.spec.weight_quantization == "none"
        module = wrapped.merge_and_unload(safe_merge=True) if merge else wrapped.get_base_model()
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
        reason = str(error).partition("\n")[0]
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


def _object(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}", remedy="Copy or train the adapter again.") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file} holds no JSON object.", remedy="Copy or train the adapter again.")
    return content
