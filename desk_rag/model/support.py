"""Decide from a model's configuration whether its chunk KV can be served at all, or which property forbids it.

There is no list of names. Refused here is what a configuration already shows: no keys per layer and head, a state that
is no cache, positions that are no rotation. What remains is tried on the loaded model itself (`model.layers`).

RoPE scaling: 'default', 'linear', 'llama3' and 'yarn' have fixed frequencies and are exact at any length. 'dynamic' and
'longrope' change their frequencies with the length of each forward; they are exact only inside the range where the
frequencies stand still, which becomes the model's `max_context` here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from desk_rag.errors import UnsupportedModel

STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
_LAYER_TYPES = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
_RECURRENT = frozenset({"linear_attention", "mamba", "hybrid", "recurrent", "conv", "lightning_attention"})
_RECURRENT_FIELDS = (
    *("ssm_cfg", "state_size", "mamba_d_state", "mamba_expand", "conv_L_cache", "linear_num_key_heads"),
    *("rescale_every", "chunkwise_kernel"),
)


@dataclass(frozen=True, slots=True)
class Support:
    """Properties of a configuration that matter for serving chunk KV."""

    model_type: str
    max_context: int
    """Positions up to which stored keys are exact."""
    needs_eager: bool
    """Attention with logit soft-capping or learned sinks, which SDPA does not offer."""


def text_config(config: Any) -> Any:
    """The configuration of the part that reads and writes text; of most models this is all of it."""
    return config.get_text_config(decoder=True)


def model_class(config: Any) -> Any:
    """transformers' class for this whole configuration. Raises UnsupportedModel if none of them writes text."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    for auto in (AutoModelForCausalLM, AutoModelForImageTextToText):
        if type(config) in auto._model_mapping:
            chosen = auto._model_mapping[type(config)]
            return chosen[0] if isinstance(chosen, tuple) else chosen
    raise UnsupportedModel(
        f"Type '{config.model_type}' is not supported: transformers has no class of it that writes text.",
        remedy="Take a model that was trained to chat. The embedded reader is the default.",
    )


def check(config: Any) -> Support:
    """Say how to serve this configuration (a transformers PreTrainedConfig), or raise UnsupportedModel."""
    model_type = str(config.model_type)
    text = text_config(config)
    for look in (_other_than_decoder, _no_plain_keys, _no_rotary):
        if reason := look(text, str(text.model_type)) or look(config, model_type):
            raise UnsupportedModel(
                f"Models of type '{model_type}' are not supported: {reason}.",
                remedy="`desk-rag help models` lists what works. The embedded reader is the default.",
            )
    odd = set(getattr(text, "layer_types", None) or ()) - _LAYER_TYPES
    if odd:
        raise UnsupportedModel(f"'{model_type}' with layers of type {', '.join(sorted(odd))} is not supported.")
    parameters = _rope_parameters(text)
    window = int(text.max_position_embeddings)
    for rope in parameters:
        kind = str(rope["rope_type"])
        if kind == "longrope":
            window = min(window, _original_window(text, rope))
        elif rope.get("llama_4_scaling_beta"):  # from there on queries, so what chunks read, depend on the position
            window = min(window, int(rope.get("original_max_position_embeddings") or window))
        elif kind not in STATIC_ROPE | {"dynamic"}:
            raise UnsupportedModel(
                f"RoPE scaling '{kind}' of '{model_type}' is not supported: its keys could not be moved exactly."
            )
    if getattr(text, "attn_temperature_tuning", False):  # the same, in Llama 4's layers without position
        window = min(window, int(getattr(text, "floor_scale", None) or window) - 1)
    if "chunked_attention" in (getattr(text, "layer_types", None) or ()):
        window = min(window, int(getattr(text, "attention_chunk_size", None) or window))
    return Support(
        model_type=model_type,
        max_context=window,
        needs_eager=_needs_eager(config, text),
    )


def _needs_eager(config: Any, text: Any) -> bool:
    capped = getattr(text, "attn_logit_softcapping", None) is not None
    return capped or not getattr(model_class(config), "_supports_sdpa", True)


def _original_window(config: Any, rope: dict[str, Any]) -> int:
    original = rope.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)
    if not original:
        raise UnsupportedModel("RoPE scaling 'longrope' without original_max_position_embeddings cannot be served.")
    return int(original)


def _rope_parameters(config: Any) -> list[dict[str, Any]]:
    """The rotary parameter sets in force; Gemma 3 keeps one per layer type."""
    parameters = getattr(config, "rope_parameters", None)
    if not parameters:
        raise UnsupportedModel(f"'{config.model_type}' names no RoPE parameters, by which its keys could be moved.")
    if "rope_type" in parameters:
        return [dict(parameters)]
    used = set(getattr(config, "layer_types", None) or parameters)
    return [dict(value) for name, value in parameters.items() if name in used and value]


# What forbids stored keys ---------------------------------------------------------------------------------------------


def _other_than_decoder(config: Any, _model_type: str) -> str:
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder with a decoder, not a decoder alone"
    return ""


def _no_plain_keys(config: Any, _model_type: str) -> str:
    """Attention that keeps no keys per layer and head, or a state beside them."""
    if getattr(config, "kv_lora_rank", None):
        return "its attention is latent (MLA) and has no per-head keys to store"
    kinds = {*(getattr(config, "layer_types", None) or ()), *(getattr(config, "layers_block_type", None) or ())}
    fields = any(getattr(config, field, None) for field in _RECURRENT_FIELDS)
    # Granite 4 without recurrent layers has their fields all the same.
    fields = fields and not (kinds and kinds <= _LAYER_TYPES)
    if kinds & _RECURRENT or any("mamba" in str(name) for name in kinds) or fields:
        return "it has recurrent or linear-attention layers, whose state depends on all that came before"
    if getattr(config, "num_kv_shared_layers", 0):
        return "some of its layers share the KV of others"
    try:
        getattr(config, "head_dim", None)
    except RuntimeError:  # of Gemma 4, whose configuration names it layer by layer
        return "its layers have heads of several sizes, and chunk KV is stored in one"
    return ""


def _no_rotary(config: Any, model_type: str) -> str:
    """Models whose position is not a rotation of queries and keys."""
    alibi = getattr(config, "alibi", False) or getattr(getattr(config, "attn_config", None), "alibi", False)
    if alibi or model_type == "bloom":
        return "it has no RoPE but ALiBi: its position is a bias on the scores, not a rotation of the keys"
    rotary = getattr(config, "rope_parameters", None) or getattr(config, "rotary_dim", None)
    if not rotary and not getattr(config, "text_config", None):
        return "it has no RoPE; its position is learned or absolute and mixed into keys and values"
    return ""
