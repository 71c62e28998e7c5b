"""Families of models whose layers our own passes compute; all others run through transformers' pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from desk_rag.kv.stitch import has_sliding_layers
from desk_rag.model.language_model import LanguageModel

_PLAIN = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Families with RMS pre-norms, one rotary table and no soft caps."""
_VARIED = frozenset({"ernie4_5", "gemma", "glm", "granite", "helium", "phi3", "seed_oss", "smollm3"})
"""The same with layers that do not rotate, that rotate a part of a head or neighbouring dimensions, or multipliers."""
_SANDWICHED = frozenset({"gemma3_text", "glm4"})
"""Families with norms before and after attention and MLP."""
_NORMED_AFTERWARDS = frozenset({"exaone4", "olmo2", "olmo3"})
"""Families with norms after attention and MLP only."""
_SERVED = _PLAIN | _VARIED | _SANDWICHED | _NORMED_AFTERWARDS


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
    return str(config.model_type) in _SERVED


def windows(model: LanguageModel) -> tuple[int, ...]:
    """Slots that a token sees in each layer, its own included; 0 for all."""
    config, count = model.module.config, model.spec.num_layers
    if not has_sliding_layers(model):
        return (0,) * count
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * count
    return tuple(int(config.sliding_window) if kind == "sliding_attention" else 0 for kind in kinds)


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Numbers by which a family multiplies what others leave as it is (Granite)."""

    embeddings: float = 1.0
    residual: float = 1.0
    """Factor of the results of attention and MLP, before they are added to the hidden states."""
    query: float = 1.0
    """Scale of the scores, times sqrt(D); 1 where a norm of the query has it."""
    logits: float = 1.0

    @classmethod
    def of(cls, model: LanguageModel) -> Multipliers:
        """The multipliers of a model."""
        config, attention = model.module.config, _attention(model)
        scale = 1.0 if hasattr(attention, "q_norm") else float(attention.scaling) * model.spec.head_dim**0.5
        return cls(
            float(getattr(config, "embedding_multiplier", 1.0)),
            float(getattr(config, "residual_multiplier", 1.0)),
            1.0 if abs(scale - 1) < 1e-6 else scale,
            1.0 / float(getattr(config, "logits_scaling", 1.0)),
        )


def _attention(model: LanguageModel) -> Any:
    return model.decoder_layers[0].self_attn
