"""Decide from a model's configuration whether its chunk KV can be served exactly, or why it is refused.

The rule is an allow-list: a decoder whose keys are rotated by split-half RoPE after a module that can be hooked.
Everything else (interleaved rotary, layers without position, shared KV, latent
attention, linear attention) would be served wrong, so it raises UnsupportedModel with the property that forbids it.

RoPE scaling: 'default', 'linear', 'llama3' and 'yarn' have fixed frequencies and are exact at any length. 'dynamic' and
'longrope' change their frequencies with the length of each forward; they are exact only inside the range where the
frequencies stand still, which becomes the model's `max_context` here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from desk_rag.errors import UnsupportedModel


class KeyTap(Enum):
    """The last module before RoPE, whose output is the pre-RoPE key."""

    K_NORM = "k_norm"
    K_PROJ = "k_proj"
    QKV_PROJ = "qkv_proj"


FAMILIES: dict[str, KeyTap] = {
    "llama": KeyTap.K_PROJ,  # Llama 2/3.x, SmolLM2, TinyLlama
    "mistral": KeyTap.K_PROJ,
    "qwen2": KeyTap.K_PROJ,  # Qwen2, Qwen2.5
    "qwen3": KeyTap.K_NORM,
    "phi3": KeyTap.QKV_PROJ,  # Phi-3, Phi-3.5, Phi-4
    "gemma2": KeyTap.K_PROJ,
    "gemma3_text": KeyTap.K_NORM,
}
_HEADS_FIRST = frozenset({"gemma3_text"})
STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
_INTERLEAVED = frozenset({"cohere", "cohere2", "glm", "glm4", "ernie4_5", "helium"})
_MROPE = frozenset({"qwen3_5", "glm4v", "glm4v_text"})
_RECURRENT = frozenset({"linear_attention", "mamba", "hybrid", "recurrent", "conv"})
_SINKS = frozenset({"gpt_oss"})


@dataclass(frozen=True, slots=True)
class Support:
    """Properties of a configuration that matter for serving chunk KV."""

    model_type: str
    key_tap: KeyTap
    heads_first: bool
    """The tapped module runs after the transpose, so its output is [1, H, N, D] instead of [1, N, H, D]. Said here,
    because a chunk of as many tokens as heads cannot tell the two apart."""
    rope_types: tuple[str, ...]
    """One per distinct rotary table: one, or two for models with local and global layers."""
    max_context: int
    """Positions up to which stored keys are exact."""
    needs_eager: bool
    """Attention with logit soft-capping, which SDPA does not offer."""


def check(config: Any) -> Support:
    """Say how to serve this configuration (a transformers PreTrainedConfig), or raise UnsupportedModel."""
    model_type = str(config.model_type)
    if model_type not in FAMILIES:
        raise UnsupportedModel(
            f"Models of type '{model_type}' are not supported: {_why_not(config, model_type)}.",
            remedy=f"Supported types: {', '.join(sorted(FAMILIES))}. The embedded reader is the default.",
        )
    odd = set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES
    if odd:
        raise UnsupportedModel(f"'{model_type}' with layers of type {', '.join(sorted(odd))} is not supported.")
    parameters = _rope_parameters(config)
    window = int(config.max_position_embeddings)
    for rope in parameters:
        kind = str(rope["rope_type"])
        if kind == "longrope":
            window = min(window, _original_window(config, rope))
        elif kind == "dynamic":
            window = min(window, int(config.max_position_embeddings))
        elif kind not in STATIC_ROPE:
            raise UnsupportedModel(f"RoPE scaling '{kind}' is not supported: its keys could not be moved exactly.")
    return Support(
        model_type=model_type,
        key_tap=FAMILIES[model_type],
        heads_first=model_type in _HEADS_FIRST,
        rope_types=tuple(str(rope["rope_type"]) for rope in parameters),
        max_context=window,
        needs_eager=getattr(config, "attn_logit_softcapping", None) is not None,
    )


def _original_window(config: Any, rope: dict[str, Any]) -> int:
    original = rope.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)
    if not original:
        raise UnsupportedModel("RoPE scaling 'longrope' without original_max_position_embeddings cannot be served.")
    return int(original)


def _rope_parameters(config: Any) -> list[dict[str, Any]]:
    """The rotary parameter sets in force; Gemma 3 keeps one per layer type."""
    parameters = getattr(config, "rope_parameters", None)
    if not parameters:
        raise UnsupportedModel(f"'{config.model_type}' names no RoPE parameters, so its keys carry no rotary position.")
    if "rope_type" in parameters:
        return [dict(parameters)]
    used = set(getattr(config, "layer_types", None) or parameters)
    return [dict(value) for name, value in parameters.items() if name in used]


def _why_not(config: Any, model_type: str) -> str:
    """The property of a configuration outside of the families that forbids stored keys; the most telling one first."""
    for told in (_beyond_text, _no_plain_keys, _no_rotary):
        if reason := told(config, model_type):
            return reason
    if any(getattr(config, name, None) for name in ("no_rope_layers", "no_rope_layer_interval")):
        return "some of its layers have no position at all (NoPE)"
    if model_type in _INTERLEAVED:
        return "its rotary embedding is interleaved"
    if model_type in _SINKS:
        return "its attention has learned sinks, which no stitched cache reproduces"
    if any(getattr(config, name, None) for name in ("num_local_experts", "num_experts", "n_routed_experts")):
        return "nobody has shown yet that the chunk KV of this mixture of experts can be moved exactly"
    return "nobody has shown yet that its chunk KV can be moved exactly"


def _beyond_text(config: Any, model_type: str) -> str:
    """Models that are more, or other, than a decoder of text."""
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder with a decoder, not a decoder alone"
    rope = getattr(getattr(config, "text_config", None) or config, "rope_parameters", None) or {}
    if "mrope_section" in rope or "_vl" in model_type or model_type in _MROPE:
        return "its positions have three axes for images (M-RoPE), so one offset cannot move its keys"
    if any(getattr(config, name, None) is not None for name in ("vision_config", "audio_config")):
        return "it reads more than text; take the text-only model of its family where there is one"
    return ""


def _no_plain_keys(config: Any, _model_type: str) -> str:
    """Attention that keeps no keys per layer and head."""
    if getattr(config, "kv_lora_rank", None):
        return "its attention is latent (MLA) and has no per-head keys to store"
    kinds = {*(getattr(config, "layer_types", None) or ()), *(getattr(config, "layers_block_type", None) or ())}
    if kinds & _RECURRENT or any("mamba" in str(name) for name in kinds):
        return "it has recurrent or linear-attention layers, whose state depends on all that came before"
    if getattr(config, "num_kv_shared_layers", 0):
        return "some of its layers share the KV of others"
    return ""


def _no_rotary(config: Any, model_type: str) -> str:
    """Models whose position is not, or not only, a rotation of queries and keys."""
    alibi = getattr(config, "alibi", False) or getattr(getattr(config, "attn_config", None), "alibi", False)
    if alibi or model_type == "bloom":
        return "it has no RoPE but ALiBi: its position is a bias on the scores, not a rotation of the keys"
    if getattr(config, "rotary_dim", None):
        return "its rotary embedding is interleaved"
    if not getattr(config, "rope_parameters", None):
        return "it has no RoPE; its position is learned or absolute and mixed into keys and values"
    return ""
