"""The architectures that are read from GGUF, and what each of them adds to its configuration. Imports no torch.

A file says little about its layers: which of them have windows or no positions, and some scales, are rules in
llama.cpp's source. Each was compared with llama.cpp itself over random weights (bench/LOG.md, "GGUF files beside
llama.cpp").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from desk_rag.errors import UnsupportedModel
from desk_rag.model.gguf.header import Header

Fields = dict[str, Any]
_THREE_AXES = frozenset(
    {"rope.dimension_sections", "rope.mrope_section", "rope.mrope_interleaved", "n_deepstack_layers"}
)
"""Keys of positions of three axes, which are equal on text, as one position is."""
_SCALES = {
    "attention.scale": "attention_multiplier", "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling",
}  # fmt: skip
_WINDOWS = frozenset({"attention.sliding_window_pattern", "rope.freq_base_swa"})
_MOST_LAYERS = 1024
_SAFETENSORS = "Take the publisher's safetensors of the same model."


def _nothing(header: Header, own: Fields, config: Fields) -> Fields:
    return {}


@dataclass(frozen=True, slots=True)
class Architecture:
    """One of llama.cpp's architectures, and the model of transformers that computes the same."""

    model_type: str
    model_class: str
    more: Callable[[Header, Fields, Fields], Fields] = _nothing
    """Fields of config.json beside the common ones, from the metadata and the common fields."""
    keys: frozenset[str] = frozenset()
    """Metadata that are understood of this architecture alone."""
    turns_part: bool = False
    """True if part of a head may be turned."""
    eps: str = "rms_norm_eps"
    """Field for the epsilon of the norms."""
    interleaves: bool = False
    """True if llama.cpp's converter puts the rows of a rotation's pairs side by side."""
    adds_one_to_norms: bool = False
    """True if the converter stores norms with the one that the layers add."""
    tensors_of: str = ""
    """Another architecture whose names of tensors it has."""
    other_names: Mapping[str, str] = field(default_factory=dict)
    """Parts of names that differ from those, each with the usual one."""


def _biases(header: Header) -> Fields:
    return {"attention_bias": "blk.0.attn_q.bias" in header.tensors, "mlp_bias": "blk.0.ffn_up.bias" in header.tensors}


def _llama(header: Header, own: Fields, config: Fields) -> Fields:
    if not own.get("expert_count"):
        return _biases(header)
    return {
        "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": own["expert_count"],
        "num_experts_per_tok": own.get("expert_used_count"), "sliding_window": None,
    }  # fmt: skip


def _qwen3moe(header: Header, own: Fields, config: Fields) -> Fields:
    return {
        "num_experts": own.get("expert_count"), "num_experts_per_tok": own.get("expert_used_count"),
        "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "moe_intermediate_size": own.get("expert_feed_forward_length"),
    }  # fmt: skip


def _multipliers(own: Fields) -> Fields:
    return {field: own[key] for key, field in _SCALES.items() if own.get(key)}


def _granite(header: Header, own: Fields, config: Fields) -> Fields:
    if own.get("expert_count"):
        raise UnsupportedModel(f"{header.file} is a mixture of experts of an unknown form.", remedy=_SAFETENSORS)
    return _multipliers(own) | _biases(header)


def _granitemoe(header: Header, own: Fields, config: Fields) -> Fields:
    if own.get("expert_shared_feed_forward_length") or own.get("expert_shared_count"):
        raise UnsupportedModel(
            f"{header.file} has an expert that all tokens share, which is not read from GGUF.", remedy=_SAFETENSORS
        )
    return _multipliers(own) | {
        "num_local_experts": own.get("expert_count"), "num_experts_per_tok": own.get("expert_used_count"),
        "attention_bias": False,
    }  # fmt: skip


def _smollm3(header: Header, own: Fields, config: Fields) -> Fields:
    layers = _layer_count(config)
    return {
        "use_sliding_window": False, "no_rope_layers": [int(index % 4 != 3) for index in range(layers)],
        "layer_types": ["full_attention"] * layers,
    }  # fmt: skip


def _olmo2(header: Header, own: Fields, config: Fields) -> Fields:
    window = own.get("attention.sliding_window")
    if not window:
        return {}
    rope = config["rope_parameters"]
    local = {"rope_type": "default", "rope_theta": float(own.get("rope.freq_base_swa", rope["rope_theta"]))}
    return {
        "model_type": "olmo3", "architectures": ["Olmo3ForCausalLM"], "sliding_window": window,
        "layer_types": _windows(header, own, config, 4), "attention_bias": False,
        "rope_parameters": {"full_attention": rope, "sliding_attention": local},
    }  # fmt: skip


def _gemma(header: Header, own: Fields, config: Fields) -> Fields:
    return {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"}


def _gemma_scale(config: Fields, largest: int) -> int:
    """Scale of the queries; it is another in the model of 27 billion parameters, which has `largest` layers."""
    if config["num_hidden_layers"] == largest:
        return quotient(config["hidden_size"], config["num_attention_heads"])
    return int(config["head_dim"])


def _gemma2(header: Header, own: Fields, config: Fields) -> Fields:
    return {
        "query_pre_attn_scalar": _gemma_scale(config, 46), "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": own.get("attention.sliding_window", 4096),
        "attn_logit_softcapping": own.get("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": own.get("final_logit_softcapping", 30.0),
        "layer_types": _windows(header, own, config, 2),
    }  # fmt: skip


def _gemma3(header: Header, own: Fields, config: Fields) -> Fields:
    theta: Any = own.get("rope.freq_base", own.get("rope.global.freq_base", 1_000_000.0))
    local: Any = own.get("rope.freq_base_swa", own.get("rope.local.freq_base", 10000.0))
    return {
        "query_pre_attn_scalar": _gemma_scale(config, 62), "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": own.get("attention.sliding_window", 1024), "layer_types": _windows(header, own, config, 6),
        "attn_logit_softcapping": None, "final_logit_softcapping": own.get("final_logit_softcapping"),
        "rope_parameters": {
            "full_attention": {**config["rope_parameters"], "rope_theta": float(theta)},
            "sliding_attention": {"rope_type": "default", "rope_theta": float(local)},
        },
    }  # fmt: skip


def _phi3(header: Header, own: Fields, config: Fields) -> Fields:
    original = config["rope_parameters"].get("original_max_position_embeddings")
    return {
        "sliding_window": own.get("attention.sliding_window") or None,
        **({"original_max_position_embeddings": original} if original else {}),
    }


def _gpt_oss(header: Header, own: Fields, config: Fields) -> Fields:
    rope = dict(config["rope_parameters"])
    if header.architecture == "gptoss" and own.get("rope.scaling.factor", 1.0) != 1.0:  # Ollama does not name the kind
        rope |= {
            "rope_type": "yarn", "factor": own["rope.scaling.factor"],
            "original_max_position_embeddings": own.get("rope.scaling.original_context_length"),
        }  # fmt: skip
    if rope["rope_type"] == "yarn":
        rope["truncate"] = False  # as published; llama.cpp rounds the two dimensions between which it interpolates
    return {
        "num_local_experts": own.get("expert_count"), "num_experts_per_tok": own.get("expert_used_count"),
        "intermediate_size": own.get("expert_feed_forward_length") or config["intermediate_size"],
        "sliding_window": own.get("attention.sliding_window"), "layer_types": _windows(header, own, config, 2),
        "attention_bias": True, "rope_parameters": rope,
    }  # fmt: skip


def _mistral3(header: Header, own: Fields, config: Fields) -> Fields:
    """Ministral 3 if queries are scaled by position, else Mistral Small 3."""
    slope, rope = own.get("attention.temperature_scale"), config["rope_parameters"]
    if not slope:
        return {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None}
    if rope["rope_type"] != "yarn":
        raise UnsupportedModel(f"{header.file} scales queries by position without YaRN.", remedy=_SAFETENSORS)
    return {"sliding_window": None, "rope_parameters": {**rope, "llama_4_scaling_beta": slope}}


def _cohere2(header: Header, own: Fields, config: Fields) -> Fields:
    return {
        "logit_scale": own.get("logit_scale"), "sliding_window": own.get("attention.sliding_window"),
        "layer_types": _windows(header, own, config, 4), "attention_bias": False,
    }  # fmt: skip


def _command_r(header: Header, own: Fields, config: Fields) -> Fields:
    return {
        "logit_scale": own.get("logit_scale"), "attention_bias": False,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in header.tensors,
    }  # fmt: skip


def _exaone4(header: Header, own: Fields, config: Fields) -> Fields:
    layers = _layer_count(config)
    if layers != 64:  # the 32B; smaller ones turn all keys and have no windows
        return {"sliding_window": None, "sliding_window_pattern": None, "layer_types": ["full_attention"] * layers}
    return {
        "sliding_window": own.get("attention.sliding_window", 4096), "sliding_window_pattern": 4,
        "layer_types": _windows(header, own, config, 4),
    }  # fmt: skip


def _seed_oss(header: Header, own: Fields, config: Fields) -> Fields:
    return _biases(header) | {"attention_out_bias": "blk.0.attn_output.bias" in header.tensors}


def _starcoder2(header: Header, own: Fields, config: Fields) -> Fields:
    return {"use_bias": "blk.0.attn_q.bias" in header.tensors, "sliding_window": None}


def _stablelm(header: Header, own: Fields, config: Fields) -> Fields:
    return {
        "use_parallel_residual": bool(own.get("use_parallel_residual")),
        "use_qkv_bias": "blk.0.attn_q.bias" in header.tensors,
    }


_GPT_OSS = Architecture("gpt_oss", "GptOssForCausalLM", _gpt_oss, _WINDOWS)
ARCHITECTURES = {
    "cohere2": Architecture("cohere2", "Cohere2ForCausalLM", _cohere2, _WINDOWS | {"logit_scale"},
                            eps="layer_norm_eps"),
    "command-r": Architecture("cohere", "CohereForCausalLM", _command_r, frozenset({"logit_scale"}),
                              eps="layer_norm_eps"),
    "ernie4_5": Architecture("ernie4_5", "Ernie4_5ForCausalLM"),
    "exaone4": Architecture("exaone4", "Exaone4ForCausalLM", _exaone4, _WINDOWS),
    "gemma": Architecture("gemma", "GemmaForCausalLM", _gemma, adds_one_to_norms=True),
    "gemma2": Architecture("gemma2", "Gemma2ForCausalLM", _gemma2, _WINDOWS, adds_one_to_norms=True),
    "gemma3": Architecture("gemma3_text", "Gemma3ForCausalLM", _gemma3, _WINDOWS, adds_one_to_norms=True),
    "glm4": Architecture("glm4", "Glm4ForCausalLM", lambda header, own, config: _biases(header), turns_part=True),
    "gpt-oss": _GPT_OSS,
    "gptoss": Architecture("gpt_oss", "GptOssForCausalLM", _gpt_oss, _WINDOWS, tensors_of="gpt-oss",
                           other_names={".attn_out.": ".attn_output.", ".ffn_norm.": ".post_attention_norm.",
                                        ".attn_sinks": ".attn_sinks.weight"}),
    "granite": Architecture("granite", "GraniteForCausalLM", _granite, frozenset(_SCALES), interleaves=True),
    "granitemoe": Architecture("granitemoe", "GraniteMoeForCausalLM", _granitemoe, frozenset(_SCALES),
                               interleaves=True),
    "hunyuan-dense": Architecture("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM"),
    "llama": Architecture("llama", "LlamaForCausalLM", _llama, interleaves=True),
    "mistral3": Architecture("ministral3", "Ministral3ForCausalLM", _mistral3,
                             frozenset({"attention.temperature_scale"}), interleaves=True),
    "nemotron": Architecture("nemotron", "NemotronForCausalLM", lambda header, own, config: _biases(header),
                             turns_part=True, eps="norm_eps", adds_one_to_norms=True),
    "olmo2": Architecture("olmo2", "Olmo2ForCausalLM", _olmo2, _WINDOWS),
    "phi3": Architecture("phi3", "Phi3ForCausalLM", _phi3, turns_part=True),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM"),
    "qwen25vl": Architecture("qwen2", "Qwen2ForCausalLM", keys=_THREE_AXES, tensors_of="qwen2"),
    "qwen2vl": Architecture("qwen2", "Qwen2ForCausalLM", keys=_THREE_AXES),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM"),
    "qwen3moe": Architecture("qwen3_moe", "Qwen3MoeForCausalLM", _qwen3moe),
    "qwen3vl": Architecture("qwen3", "Qwen3ForCausalLM", keys=_THREE_AXES),
    "qwen3vlmoe": Architecture("qwen3_moe", "Qwen3MoeForCausalLM", _qwen3moe, _THREE_AXES),
    "seed_oss": Architecture("seed_oss", "SeedOssForCausalLM", _seed_oss),
    "smollm3": Architecture("smollm3", "SmolLM3ForCausalLM", _smollm3, interleaves=True),
    "stablelm": Architecture("stablelm", "StableLmForCausalLM", _stablelm, frozenset({"use_parallel_residual"}),
                             turns_part=True, eps="layer_norm_eps"),
    "starcoder2": Architecture("starcoder2", "Starcoder2ForCausalLM", _starcoder2, eps="norm_epsilon"),
}  # fmt: skip
"""By llama.cpp's names; `gptoss` and `qwen25vl` are Ollama's."""


def _windows(header: Header, own: Fields, config: Fields, every: int) -> list[str]:
    """Kinds of layers, as the file says or, where it does not, with one of full attention in `every`."""
    layers, pattern = _layer_count(config), own.get("attention.sliding_window_pattern", every)
    if isinstance(pattern, list):
        if len(pattern) != layers:
            raise UnsupportedModel(f"{header.file} has {layers} layers, and kinds of {len(pattern)}.")
        sliding = [bool(value) for value in pattern]
    else:
        every = pattern if type(pattern) is int and pattern > 0 else every
        sliding = [index % every != every - 1 for index in range(layers)]
    return ["sliding_attention" if value else "full_attention" for value in sliding]


def _layer_count(config: Fields) -> int:
    """Number of layers if it may be believed before it is checked, else 0."""
    number = config["num_hidden_layers"]
    return number if type(number) is int and 0 <= number <= _MOST_LAYERS else 0


def quotient(whole: Any, parts: Any) -> int:
    """`whole / parts` for numbers that are not checked yet."""
    usable = type(whole) is int and type(parts) is int and parts > 0
    return whole // parts if usable else 0
