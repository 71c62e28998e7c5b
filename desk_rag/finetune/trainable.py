"""Make a loaded model trainable: which weights, in which dtype, and how a forward pass runs.

The module is the one that serves answers: attention, masks and prompt are unchanged, only gradients are enabled.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from desk_rag.errors import ConfigError
from desk_rag.finetune.settings import Method, TrainSettings
from desk_rag.model.adapters import require_peft
from desk_rag.model.language_model import LanguageModel


@dataclass(frozen=True, slots=True)
class Trainable:
    """A module that learns."""

    model: LanguageModel
    """Usable for answering between steps; `module.train()` and `.eval()` are the caller's."""
    parameters: dict[str, torch.nn.Parameter]
    """The weights that move, by name, in the module's order."""
    peft: Any
    """The PeftModel around the module, None when all weights move."""

    def autocast(self) -> AbstractContextManager[Any]:
        """Matrix products in bf16 on a GPU, in the weights' own dtype on a CPU."""
        kind = self.model.device.type
        return torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda")


def make_trainable(model: LanguageModel, settings: TrainSettings) -> Trainable:
    """Let the weights named by the settings learn. Raises ConfigError for what cannot be trained on this device."""
    _check_device(model, settings)
    torch.manual_seed(settings.seed)
    module = model.module
    wrapped = None
    if settings.method is Method.LORA:
        peft = require_peft()
        config = peft.LoraConfig(
            r=settings.lora_rank,
            lora_alpha=2 * settings.lora_rank,
            lora_dropout=settings.lora_dropout,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by a name it is about to drop
            wrapped = peft.get_peft_model(module, config)
    else:
        _to_fp32(module)
        module.requires_grad_(True)
    if settings.checkpointing:
        _compute_activations_twice(module)
    parameters = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
    return Trainable(model, parameters, wrapped)


def _compute_activations_twice(module: Any) -> None:
    options = {"use_reentrant": False}
    if hasattr(module, "activation_checkpointing_enable"):
        module.activation_checkpointing_enable(activation_checkpointing_kwargs=options)
    else:  # its name in transformers before 5.23
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)


def _to_fp32(module: torch.nn.Module) -> None:
    """Steps of the optimiser are smaller than what bf16 can add; the rotary tables are fp32 as they are."""
    for weight in module.parameters():
        weight.data = weight.data.float()


def _check_device(model: LanguageModel, settings: TrainSettings) -> None:
    if model.device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise ConfigError(
            "This GPU has no bf16, in which desk-rag trains.",
            remedy="Use a GPU of the RTX 30 series or newer, or --device cpu for a small model.",
        )
    if settings.method is Method.FULL and model.spec.weight_quantization != "none":
        raise ConfigError(
            f"All weights cannot be trained while they are quantised to {model.spec.weight_quantization}.",
            remedy="Use --lora 16 with --quantization, or --full without it.",
        )
    if model.spec.adapter:
        raise ConfigError(
            "The model carries an adapter already.", remedy="Leave --adapter out; adapters are trained on plain models."
        )
