"""Turn a GGUF file's metadata into the configuration that transformers builds the same model from.

Every key that says how a layer computes is either taken over or refuses the file: a rope scaling that is left out makes
answers worse the longer the context is, and nothing would tell. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from desk_rag.errors import ModelError, UnsupportedModel
from desk_rag.model.gguf.header import Header

"""Value of a key without its architecture, or a default."""
ROPE_TENSORS = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})
"""Tensors that are part of the configuration, not of the model."""
_SHAPE = {
    "context_length": "max_position_embeddings", "block_count": "num_hidden_layers", "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads", "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}  # fmt: skip
_TAKEN = frozenset(
    {*_SHAPE, "vocab_size", "attention.key_length", "attention.value_length", "rope.dimension_count", "rope.freq_base",
     "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.attn_factor",
     "rope.local.freq_base", "rope.global.freq_base", "attention.sliding_window", "attn_logit_softcapping",
     "final_logit_softcapping", "expert_count",
     "expert_used_count", "expert_feed_forward_length"}
)  # fmt: skip
OTHER_SENSES = ("vision.", "mm.", "v.")
"""Beginnings of keys and tensors of the parts for images, which Ollama keeps in the same file; they are left alone."""
_IGNORED = frozenset({"rope.scaling.finetuned", "attention.causal", "tensor_data_layout", "rope.scale_linear"})
"""Keys without effect on a decoder, or whose only value is the usual one."""
_OF_ONE = {
    "granite": frozenset({"attention.scale", "embedding_scale", "residual_scale", "logit_scale"}),
    **dict.fromkeys(
        ("qwen2vl", "qwen25vl", "qwen3vl", "qwen3vlmoe"),
        frozenset({"rope.dimension_sections", "rope.mrope_section", "rope.mrope_interleaved", "n_deepstack_layers"}),
    ),
}
"""Keys that are understood of one architecture. Positions of three axes are equal on text, as one position is."""
_LLAMA3_FACTORS = (8.0, 32.0)
_TOLERANCE = 1e-4
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
    architecture = header.architecture
    if architecture not in _BUILDERS:
        raise UnsupportedModel(
            f"{header.file} is of the architecture '{architecture[:40]}', which is not read from GGUF"
            f"{_why_not(header)}.",
            remedy=f"Read are: {', '.join(sorted(_BUILDERS))}. Of others take the publisher's safetensors.",
        )
    prefix = f"{architecture}."
    own = {key.removeprefix(prefix): value for key, value in header.metadata.items() if key.startswith(prefix)}
    _check_keys(header, own)
    config = {field: _shape_number(header, own, key) for key, field in _SHAPE.items()}
    config["num_key_value_heads"] = config["num_key_value_heads"] or config["num_attention_heads"]
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    embeddings = header.tensors.get("token_embd.weight")
    config |= {
        "vocab_size": embeddings.shape[0] if embeddings else own.get("vocab_size") or len(tokens or ()),
        "head_dim": own.get("attention.key_length") or _quotient(config["hidden_size"], config["num_attention_heads"]),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "rope_parameters": _rope(header, own),
        "bos_token_id": header.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": end_ids(header) or None,
        "pad_token_id": None,
    }
    if own.get("attention.value_length") not in (None, config["head_dim"]):
        raise UnsupportedModel(f"{header.file} has values of another size than its keys, which is not supported.")
    return config | _BUILDERS[architecture](header, own, config)


def end_ids(header: Header) -> list[int]:
    """Tokens that end an answer."""
    names = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    return sorted({value for name in names if type(value := header.metadata.get(name)) is int})


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


def _check_keys(header: Header, own: dict[str, Any]) -> None:
    """Raise UnsupportedModel for a key that says something about the model which would be left out."""
    understood = _TAKEN | _IGNORED | _OF_ONE.get(header.architecture, frozenset())
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


# Positions ------------------------------------------------------------------------------------------------------------


def _rope(header: Header, own: dict[str, Any]) -> dict[str, Any]:
    theta = float(own.get("rope.freq_base", 10000.0))
    base: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if "rope_freqs.weight" in header.tensors:
        return base | _llama3(header, theta)
    if "rope_factors_long.weight" in header.tensors:
        return base | _longrope(header, own)
    kind, factor = own.get("rope.scaling.type", "none"), own.get("rope.scaling.factor", 1.0)
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return base
    if kind == "linear":
        return base | {"rope_type": "linear", "factor": factor}
    if kind == "yarn" and own.get("rope.scaling.attn_factor", 1.0) == 1.0:
        original = own.get("rope.scaling.original_context_length")
        return base | {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    raise UnsupportedModel(f"{header.file}: RoPE scaling '{str(kind)[:40]}' is not read from GGUF.")


def _llama3(header: Header, theta: float) -> dict[str, Any]:
    """Parameters of Llama 3's scaling, of which a GGUF file has only the divisors that they make."""
    divisors = small_tensor(header, "rope_freqs.weight")
    if all(abs(divisor - 1.0) < _TOLERANCE for divisor in divisors):
        return {}
    for factor in _LLAMA3_FACTORS:
        computed = _llama3_divisors(2 * len(divisors), theta, factor)
        if all(abs(one - other) <= 1e-3 * other for one, other in zip(divisors, computed, strict=True)):
            return {
                "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            }  # fmt: skip
    raise UnsupportedModel(
        f"{header.file} scales its positions by a table (rope_freqs.weight) that is not that of Llama 3.",
        remedy="Take the publisher's safetensors of the same model.",
    )


def _llama3_divisors(dim: int, theta: float, factor: float) -> list[float]:
    """As llama.cpp's converter makes them, from the same formula as transformers'."""
    divisors = []
    for index in range(0, dim, 2):
        wavelength = 2 * math.pi * theta ** (index / dim)
        smooth = min(max((8192 / wavelength - 1.0) / (4.0 - 1.0), 0.0), 1.0)
        divisors.append(1 / ((1 - smooth) / factor + smooth))
    return divisors


def _longrope(header: Header, own: dict[str, Any]) -> dict[str, Any]:
    if "rope_factors_short.weight" not in header.tensors:
        raise ModelError(f"{header.file} lacks the tensor rope_factors_short.weight.", remedy="Download it again.")
    return {
        "rope_type": "longrope",
        "short_factor": small_tensor(header, "rope_factors_short.weight"),
        "long_factor": small_tensor(header, "rope_factors_long.weight"),
        "original_max_position_embeddings": own.get("rope.scaling.original_context_length"),
        "attention_factor": own.get("rope.scaling.attn_factor"),
    }


def small_tensor(header: Header, name: str) -> list[float]:
    """The numbers of a tensor of at most 4,096 plain floats. Raises ModelError."""
    import numpy as np

    tensor = header.tensors[name]
    forms = {0: "<f4", 1: "<f2"}
    if len(tensor.shape) != 1 or tensor.shape[0] > 4096 or tensor.type_id not in forms:
        raise ModelError(f"{header.file}: '{name}' is no short list of numbers.", remedy="Download the file again.")
    with header.file.open("rb") as stream:
        stream.seek(tensor.start)
        numbers = np.frombuffer(stream.read(tensor.size), dtype=forms[tensor.type_id]).astype(float)
    if not bool(np.isfinite(numbers).all()) or bool((numbers <= 0).any()):
        raise ModelError(f"{header.file}: '{name}' holds numbers that cannot be.", remedy="Download the file again.")
    return [float(number) for number in numbers]


# Architectures --------------------------------------------------------------------------------------------------------


def _llama(header: Header, own: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    _check_whole_heads(header, own, config)
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **_no_experts(header, own)}


def _qwen2(header: Header, own: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    _check_whole_heads(header, own, config)
    return {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}


def _qwen3(header: Header, own: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    _check_whole_heads(header, own, config)
    return {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}


def _qwen3moe(header: Header, own: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    _check_whole_heads(header, own, config)
    return {
        "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": own.get("expert_count"),
        "num_experts_per_tok": own.get("expert_used_count"), "norm_topk_prob": True, "decoder_sparse_step": 1,
        "moe_intermediate_size": own.get("expert_feed_forward_length"), "mlp_only_layers": [],
    }  # fmt: skip


def _granite(header: Header, own: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    _check_whole_heads(header, own, config)
    scales = {
        "attention.scale": "attention_multiplier", "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling",
    }  # fmt: skip
    multipliers = {field: own[key] for key, field in scales.items() if own.get(key)}
    return {
        "model_type": "granite", "architectures": ["GraniteForCausalLM"], **multipliers, **_no_experts(header, own),
    }  # fmt: skip


def _smollm3(header: Header, own: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    _check_whole_heads(header, own, config)
    layers = _at_most(config["num_hidden_layers"], 1024)
    return {
        "model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"], "use_sliding_window": False,
        "no_rope_layers": [int(index % 4 != 3) for index in range(layers)],  # llama.cpp's rule
        "layer_types": ["full_attention"] * layers,
    }  # fmt: skip


def _olmo2(header: Header, own: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    _check_whole_heads(header, own, config)
    if own.get("attention.sliding_window"):
        raise UnsupportedModel(
            f"{header.file} has sliding windows in some layers (OLMo 3), which are not read from GGUF.",
            remedy="Take the publisher's safetensors of the same model.",
        )
    return {"model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"]}


def _gemma2(header: Header, own: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    _check_whole_heads(header, own, config)
    largest = config["num_hidden_layers"] == 46  # 27B, by llama.cpp's rule: the file does not say the scale
    scale = _quotient(config["hidden_size"], config["num_attention_heads"]) if largest else config["head_dim"]
    return {
        "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "query_pre_attn_scalar": scale,
        "sliding_window": own.get("attention.sliding_window", 4096), "hidden_activation": "gelu_pytorch_tanh",
        "attn_logit_softcapping": own.get("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": own.get("final_logit_softcapping", 30.0),
    }  # fmt: skip


def _gemma3(header: Header, own: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    _check_whole_heads(header, own, config)
    layers = config["num_hidden_layers"]
    largest = layers == 62  # 27B, by llama.cpp's rule
    scale = _quotient(config["hidden_size"], config["num_attention_heads"]) if largest else config["head_dim"]
    kinds = ["full_attention" if index % 6 == 5 else "sliding_attention" for index in range(_at_most(layers, 1024))]
    theta = own.get("rope.freq_base", own.get("rope.global.freq_base", 1_000_000.0))
    rope = {**config["rope_parameters"], "rope_theta": float(theta)}
    local = float(own.get("rope.local.freq_base", 10000.0))
    return {
        "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "query_pre_attn_scalar": scale,
        "sliding_window": own.get("attention.sliding_window", 1024), "layer_types": kinds,
        "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": None,
        "final_logit_softcapping": own.get("final_logit_softcapping"),
        "rope_parameters": {
            "full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
    }  # fmt: skip


def _phi3(header: Header, own: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    turned, head_dim = own.get("rope.dimension_count"), config["head_dim"]
    rope = dict(config["rope_parameters"])
    if type(turned) is int and head_dim and turned != head_dim:
        rope["partial_rotary_factor"] = turned / head_dim
    original = rope.get("original_max_position_embeddings")
    return {
        "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "rope_parameters": rope,
        "sliding_window": own.get("attention.sliding_window") or None,
        **({"original_max_position_embeddings": original} if original else {}),
    }  # fmt: skip


def _no_experts(header: Header, own: dict[str, Any]) -> dict[str, Any]:
    if own.get("expert_count"):
        raise UnsupportedModel(
            f"{header.file} is a mixture of experts in Llama's form (Mixtral), which is not read from GGUF.",
            remedy="Take the publisher's safetensors of the same model.",
        )
    return {"attention_bias": "blk.0.attn_q.bias" in header.tensors, "mlp_bias": "blk.0.ffn_up.bias" in header.tensors}


def _check_whole_heads(header: Header, own: dict[str, Any], config: dict[str, Any]) -> None:
    turned = own.get("rope.dimension_count", config["head_dim"])
    if turned != config["head_dim"]:
        raise UnsupportedModel(
            f"{header.file} turns {turned} of {config['head_dim']} dimensions of each head, which is not read from "
            "GGUF for this architecture."
        )


def _at_most(number: Any, most: int) -> int:
    """`number` where it is a count that may be believed before it is checked."""
    return number if type(number) is int and 0 <= number <= most else 0


_BUILDERS: dict[str, Callable[[Header, dict[str, Any], dict[str, Any]], dict[str, Any]]] = {
    "gemma2": _gemma2, "gemma3": _gemma3, "granite": _granite, "llama": _llama, "olmo2": _olmo2, "phi3": _phi3,
    "qwen2": _qwen2, "qwen25vl": _qwen2, "qwen2vl": _qwen2, "qwen3": _qwen3, "qwen3moe": _qwen3moe,
    "qwen3vl": _qwen3, "qwen3vlmoe": _qwen3moe, "smollm3": _smollm3,
}  # fmt: skip


def architectures() -> Sequence[str]:
    """Return the architectures that are read, in order."""
    return sorted(_BUILDERS)
