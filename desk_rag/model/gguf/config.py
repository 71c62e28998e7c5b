"""Turn a GGUF file's metadata into the configuration that transformers builds the same model from.

Every key that says how a layer computes is either taken over or refuses the file: a rope scaling that is left out makes
answers worse the longer the context is, and nothing would tell. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from desk_rag.errors import ModelError, UnsupportedModel
from desk_rag.model.gguf.architectures import ARCHITECTURES, Architecture, quotient
from desk_rag.model.gguf.header import Header
from desk_rag.model.gguf.positions import YARN_KEYS, rope_parameters

_SHAPE = {
    "context_length": "max_position_embeddings", "block_count": "num_hidden_layers", "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
}  # fmt: skip
_TAKEN = frozenset(
    {*_SHAPE, *YARN_KEYS, "vocab_size", "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon",
     "attention.key_length", "attention.value_length", "attention.sliding_window", "rope.dimension_count",
     "rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
     "rope.scaling.attn_factor", "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor",
     "rope.local.freq_base", "rope.global.freq_base", "attn_logit_softcapping", "final_logit_softcapping",
     "expert_count", "expert_used_count", "expert_feed_forward_length"}
)  # fmt: skip
OTHER_SENSES = ("vision.", "mm.", "v.")
"""Beginnings of keys and tensors of the parts for images, which Ollama keeps in the same file; they are left alone."""
_IGNORED = frozenset({"rope.scaling.finetuned", "attention.causal", "tensor_data_layout", "rope.scale_linear"})
"""Keys without effect on a decoder, or whose only value is the usual one."""
_FEATURES = {
    "q_lora_rank": "its attention is latent (MLA) and has no per-head keys to store",
    "kv_lora_rank": "its attention is latent (MLA) and has no per-head keys to store",
    "shared_kv_layers": "some of its layers share the KV of others",
    "ssm.": "it has recurrent layers, whose state depends on all that came before",
    "wkv.": "it has recurrent layers, whose state depends on all that came before",
    "shortconv.": "it has convolutions over the text, whose state depends on all that came before",
    "full_attention_interval": "it has linear-attention layers, whose state depends on all that came before",
    "rope.dimension_sections": "its positions have three axes for images (M-RoPE), which are not read from GGUF",
    "max_alibi_bias": "it has no RoPE but ALiBi: its position is a bias on the scores, not a rotation of the keys",
}
"""Reason to refuse a model, by a part of a key's name."""


def model_config(header: Header) -> dict[str, Any]:
    """The fields of config.json. Raises UnsupportedModel or ModelError."""
    _check_kind(header)
    architecture = ARCHITECTURES.get(header.architecture)
    if architecture is None:
        raise UnsupportedModel(
            f"{header.file} is of the architecture '{header.architecture[:40]}', which is not read from GGUF"
            f"{_why_not(header)}.",
            remedy=f"Read are: {', '.join(architectures())}. Of others take the publisher's safetensors.",
        )
    prefix = f"{header.architecture}."
    own = {key.removeprefix(prefix): value for key, value in header.metadata.items() if key.startswith(prefix)}
    _check_keys(header, own, architecture)
    config: dict[str, Any] = {"model_type": architecture.model_type, "architectures": [architecture.model_class]}
    config |= {field: _shape_number(header, own, key) for key, field in _SHAPE.items()}
    config["num_key_value_heads"] = config["num_key_value_heads"] or config["num_attention_heads"]
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    embeddings = header.tensors.get("token_embd.weight")
    config |= {
        "vocab_size": embeddings.shape[0] if embeddings else own.get("vocab_size") or len(tokens or ()),
        "head_dim": own.get("attention.key_length") or quotient(config["hidden_size"], config["num_attention_heads"]),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "rope_parameters": rope_parameters(header, own),
        "bos_token_id": header.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": end_ids(header) or None,
        "pad_token_id": None,
    }
    if own.get("attention.value_length") not in (None, config["head_dim"]):
        raise UnsupportedModel(f"{header.file} has values of another size than its keys, which is not supported.")
    config[architecture.eps] = _epsilon(header, own)
    _turn_part(header, own, config, architecture)
    return config | architecture.more(header, own, config)


def architectures() -> Sequence[str]:
    """Return the architectures that are read, in order."""
    return sorted(ARCHITECTURES)


def end_ids(header: Header) -> list[int]:
    """Tokens that end an answer."""
    names = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    single = {value for name in names if type(value := header.metadata.get(name)) is int}
    several = header.metadata.get("tokenizer.ggml.eos_token_ids")
    return sorted(single | {value for value in several if type(value) is int} if isinstance(several, list) else single)


def _check_kind(header: Header) -> None:
    kind, parts = header.metadata.get("general.type", "model"), header.metadata.get("split.count", 1)
    if kind != "model":
        raise UnsupportedModel(
            f"{header.file} holds no language model but something of the type '{str(kind)[:40]}'.",
            remedy="Name the model's own file; adapters and vision parts lie in files of their own.",
        )
    if parts not in (0, 1):
        raise UnsupportedModel(
            f"{header.file} is one of {parts} parts of a model.",
            remedy="Put them together: llama-gguf-split --merge FIRST-PART.gguf WHOLE.gguf",
        )


def _epsilon(header: Header, own: dict[str, Any]) -> float:
    for key in ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"):
        if type(own.get(key)) is float:
            return float(own[key])
    raise ModelError(f"{header.file} does not say the epsilon of its norms.", remedy="Download the file again.")


def _turn_part(header: Header, own: dict[str, Any], config: dict[str, Any], architecture: Architecture) -> None:
    """Write how much of each head is turned into `config`."""
    turned = own.get("rope.dimension_count", config["head_dim"])
    if turned == config["head_dim"]:
        return
    if not architecture.turns_part or type(turned) is not int or not config["head_dim"]:
        raise UnsupportedModel(
            f"{header.file} turns {turned} of {config['head_dim']} dimensions of each head, which is not read from "
            "GGUF for this architecture."
        )
    config["rope_parameters"] = {**config["rope_parameters"], "partial_rotary_factor": turned / config["head_dim"]}


def _check_keys(header: Header, own: dict[str, Any], architecture: Architecture) -> None:
    """Raise UnsupportedModel for a key that says something about the model which would be left out."""
    understood = _TAKEN | _IGNORED | architecture.keys
    for key, value in own.items():
        for part, reason in _FEATURES.items():
            if part in key and key not in understood and value not in (0, False):
                raise UnsupportedModel(f"{header.file} cannot be served: {reason} ('{key[:60]}').")
        idle = value in (0, 0.0) or (isinstance(value, float) and value == 1.0)
        if key not in understood and not key.startswith(OTHER_SENSES) and not idle:
            raise UnsupportedModel(
                f"{header.file} says something about its layers that is not understood here: '{key[:60]}'.",
                remedy="Take the publisher's safetensors of the same model, or another GGUF file of it.",
            )


def _why_not(header: Header) -> str:
    for key in header.metadata:
        for part, reason in _FEATURES.items():
            if part in key:
                return f": {reason}"
    return ""


def _shape_number(header: Header, own: dict[str, Any], key: str) -> Any:
    value = own.get(key)
    if isinstance(value, list):
        if not value or any(item != value[0] for item in value):
            raise UnsupportedModel(f"{header.file}: '{key}' differs from layer to layer, which is not supported.")
        value = value[0]
    if value is None and key != "attention.head_count_kv":
        raise ModelError(f"{header.file} does not say its '{key}'.", remedy="Download the file again.")
    return value


def _quotient(whole: Any, parts: Any) -> int:
    """`whole / parts` for numbers that are not checked yet."""
    usable = type(whole) is int and type(parts) is int and parts > 0
    return whole // parts if usable else 0
