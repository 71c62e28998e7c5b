"""Load safetensors with each matrix coded as soon as it is read, by transformers' way of quantising while loading.

Tensors are read one after the other from the files, which are not mapped: memory never holds the checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from desk_rag.model.layers.text_part import text_part
from desk_rag.model.on_cpu import placing

_METHOD = "desk-rag-rows"


def load(model_class: Any, config: Any, files: Sequence[Path], attention: str, kind: str) -> tuple[Any, dict[str, Any]]:
    """Load the part of a model that reads and writes text; returns it and transformers' loading information.

    `kind` is as in `MatrixPlacer`.
    """
    tensors: dict[str, Any] = {}
    for file in files:
        opened: Any = safe_open(str(file), framework="pt", device="cpu", backend="pread")
        tensors |= {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - not a dict
    module, info = model_class.from_pretrained(
        None, config=config, state_dict=tensors, dtype=_dtype(config, tensors), quantization_config=RowsConfig(kind),
        attn_implementation=attention, output_loading_info=True,
    )  # fmt: skip
    return placing.finish(text_part(module)), info


def _dtype(config: Any, tensors: dict[str, Any]) -> torch.dtype:
    """That of most tensors, if they are floats of 16 or 32 bits."""
    kinds = [tensor.get_dtype() for tensor in tensors.values()]
    return {"BF16": torch.bfloat16, "F16": torch.float16}.get(max(kinds, key=kinds.count), torch.float32)


@register_quantization_config(_METHOD)
class RowsConfig(QuantizationConfigMixin):  # type: ignore[misc]  # transformers is not typed
    """Name of this way for `from_pretrained`, and the kind of codes."""

    def __init__(self, kind: str, **_: Any) -> None:
        super().__init__(quant_method=_METHOD)
        self.kind = kind


@register_quantizer(_METHOD)
class RowsQuantizer(HfQuantizer):  # type: ignore[misc]  # transformers is not typed
    """Takes the matrices of the part that reads and writes text; all else is loaded as it is."""

    requires_calibration = False

    def __init__(self, quantization_config: RowsConfig, **options: Any) -> None:
        super().__init__(quantization_config, **options)
        self._placer: placing.MatrixPlacer | None = None

    @property
    def is_trainable(self) -> bool:
        return False

    def is_serializable(self) -> bool:
        return False

    def param_needs_quantization(self, model: Any, param_name: str, **_: Any) -> bool:
        return self._placer is not None and self._placer.takes(param_name)

    def get_quantize_ops(self) -> Any:
        return _Place(self._placer)

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> Any:
        kind = self.quantization_config.kind
        placing.check_matrices(model, kind)
        self._placer = placing.MatrixPlacer(model, text_part(model), kind)
        return model

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        assert self._placer is not None
        self._placer.add_tied()
        self.remove_quantization_config(model)
        return model


class _Place(ConversionOps):  # type: ignore[misc]  # transformers is not typed
    """Codes what it is given and leaves nothing to be set."""

    def __init__(self, placer: Any) -> None:
        self._placer = placer

    def convert(self, input_dict: dict[str, Any], *, missing_keys: Any = None, **_: Any) -> dict[str, Any]:
        rest = {}
        for name, tensors in input_dict.items():
            tensor: torch.Tensor = tensors[0] if isinstance(tensors, list) else tensors
            if self._placer.takes(name):
                self._placer.add(name, tensor)
                missing_keys.discard(name)
            else:
                rest[name] = tensor
        return rest
