"""Families of models whose layers our own passes compute; all others run through transformers' pass."""

from __future__ import annotations

from desk_rag.kv.stitch import has_sliding_layers
from desk_rag.model.language_model import LanguageModel

_PLAIN = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Families with RMS pre-norms, one rotary table and no soft caps."""
_NO_POSITIONS = frozenset({"smollm3"})
"""The same, with layers that do not rotate."""
_SANDWICHED = frozenset({"gemma3_text"})
"""Families with norms before and after attention and MLP, and a rotary table for each kind of layer."""


def is_plain(model: LanguageModel) -> bool:
    """True if all layers are alike: RMS pre-norms, one rotary table, full attention, no soft caps."""
    return model.spec.support.model_type in _PLAIN and not has_sliding_layers(model)


def supports(model: LanguageModel) -> bool:
    """True if the model's layers are what this pass computes; their attention may be full or see a sliding window."""
    config = model.module.config
    if getattr(config, "attn_logit_softcapping", None) or getattr(config, "final_logit_softcapping", None):
        return False
    if getattr(config, "use_bidirectional_attention", False):
        return False
    return str(config.model_type) in _PLAIN | _NO_POSITIONS | _SANDWICHED


def windows(model: LanguageModel) -> tuple[int, ...]:
    """Slots that a token sees in each layer, its own included; 0 for all."""
    config, count = model.module.config, model.spec.num_layers
    if not has_sliding_layers(model):
        return (0,) * count
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * count
    return tuple(int(config.sliding_window) if kind == "sliding_attention" else 0 for kind in kinds)
