"""Small random models of every family and RoPE scaling we name, and a byte tokenizer; nothing is downloaded.

Default initialisation gives nearly uniform attention, under which a wrong position passes unnoticed. Queries and keys
are therefore scaled up until attention is peaked, and whatever is shown with these models keeps a negative control.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from desk_rag.documents.chunking import ChunkSize
from desk_rag.model import support
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.loading import wrap
from desk_rag.model.prompt import DOC_END, DOC_START, IM_END, IM_START, PromptFormat, PromptParts

SPECIALS = ["<|endoftext|>", IM_START, IM_END, DOC_START, DOC_END]
VOCABULARY = len(SPECIALS) + 256


def byte_tokenizer(specials: list[str] = SPECIALS) -> Tokenizer:
    """Every byte is a token; the specials come first."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*specials, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    return tokenizer


def byte_prompt() -> PromptFormat:
    """A short prompt in the trained form."""
    return PromptFormat(
        byte_tokenizer(),
        PromptParts(f"{IM_START}be brief{IM_END}", DOC_START, DOC_END + "\n", "Q: ", f"{IM_END}\n{IM_START}"),
        stop_ids=frozenset({2}),
        chunk_size=ChunkSize(smallest=10, target=40, largest=60),
        context_tokens=400,
        top_k=3,
    )


@dataclass(frozen=True)
class Family:
    """A model class and a configuration small enough to run in milliseconds."""

    name: str
    build: Callable[[], Any]
    property: str = ""
    """Property of the model, for tables; empty for plain RoPE over whole heads."""


def _config(cls: Any, **changes: Any) -> Any:
    common: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
    }
    return cls(**copy.deepcopy(common | changes))  # configurations complete what they are given


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10000.0, **more}


_LLAMA3 = _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128)
_YARN = _rope("yarn", factor=4.0, original_max_position_embeddings=128)
_LINEAR = _rope("linear", factor=4.0)
_DYNAMIC = _rope("dynamic", factor=4.0)


def _longrope(original: int) -> dict[str, Any]:
    return _rope(
        "longrope",
        short_factor=[1.0 + 0.1 * i for i in range(8)],
        long_factor=[2.0 + 0.3 * i for i in range(8)],
        original_max_position_embeddings=original,
    )


def _family(name: str, model_class: Any, config_class: Any, **changes: Any) -> Family:
    return Family(name, lambda: (model_class, _config(config_class, **changes)))


def _named(name: str, model: str, property: str, **changes: Any) -> Family:
    """A model of transformers by the stem of its classes' names."""

    def build() -> tuple[Any, Any]:
        config_class = getattr(transformers, f"{model}TextConfig", None) or getattr(transformers, f"{model}Config")
        return getattr(transformers, f"{model}ForCausalLM"), _config(config_class, **changes)

    return Family(name, build, property)


def _with_images(name: str, model: str, property: str, *, vision: dict[str, Any], **changes: Any) -> Family:
    """A model that also reads images; its text part has the common sizes."""

    def build() -> tuple[Any, Any]:
        text = _config(dict, **changes)
        config = getattr(transformers, f"{model}Config")(text_config=text, vision_config=vision)
        return getattr(transformers, f"{model}ForConditionalGeneration"), config

    return Family(name, build, property)


_VISION = {"hidden_size": 32, "intermediate_size": 32, "image_size": 28, "patch_size": 14}
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_PLAIN_ROPE = {"rope_parameters": _rope("default")}
_PARTIAL = {"rope_parameters": _rope("default", partial_rotary_factor=0.5)}
_TWO_KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
_MORE = [
    _named("smollm3", "SmolLM3", "layers without position", no_rope_layers=[1, 1, 0], **_PLAIN_ROPE),
    _named(
        "granite",
        "Granite",
        "attention and other multipliers",
        attention_multiplier=0.3,
        residual_multiplier=0.5,
        embedding_multiplier=3.0,
        logits_scaling=2.0,
        **_PLAIN_ROPE,
    ),
    _named("olmo2", "Olmo2", "norms after the layers, norm of whole keys", **_PLAIN_ROPE),
    _named(
        "olmo3",
        "Olmo3",
        "norms after the layers, sliding windows",
        layer_types=_TWO_KINDS,
        sliding_window=24,
        rope_parameters={kind: _rope("default") for kind in set(_TWO_KINDS)},
    ),
    _named("qwen3-moe", "Qwen3Moe", "mixture of experts", head_dim=32, num_experts=4, **_EXPERTS, **_PLAIN_ROPE),
    _named(
        "mixtral",
        "Mixtral",
        "mixture of experts",
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=None,
        **_PLAIN_ROPE,
    ),
    _named("cohere", "Cohere", "interleaved rotary, attention beside the MLP", **_PLAIN_ROPE),
    _named(
        "cohere2",
        "Cohere2",
        "interleaved rotary, layers without position, sliding windows",
        layer_types=_TWO_KINDS,
        sliding_window=24,
        head_dim=16,
        **_PLAIN_ROPE,
    ),
    _named("glm", "Glm", "interleaved rotary of half a head", head_dim=16, **_PARTIAL),
    _named("glm4", "Glm4", "interleaved rotary of half a head, norms after the layers", head_dim=16, **_PARTIAL),
    _named("ernie4_5", "Ernie4_5", "interleaved rotary", head_dim=16, **_PLAIN_ROPE),
    _named("helium", "Helium", "interleaved rotary", head_dim=16, **_PLAIN_ROPE),
    _named(
        "gpt-oss",
        "GptOss",
        "learned sinks, mixture of experts, sliding windows",
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        layer_types=_TWO_KINDS,
        sliding_window=24,
        **_PLAIN_ROPE,
    ),
    _named(
        "exaone4",
        "Exaone4",
        "layers without position, norms after the layers",
        layer_types=_TWO_KINDS,
        sliding_window=24,
        sliding_window_pattern=2,
        head_dim=16,
        **_PLAIN_ROPE,
    ),
    _named("hunyuan", "HunYuanDenseV1", "norm after the rotation", head_dim=16, **_PLAIN_ROPE),
    _named("seed-oss", "SeedOss", "", head_dim=16, **_PLAIN_ROPE),
    _named(
        "ministral3",
        "Ministral3",
        "scale of queries by position",
        head_dim=16,
        rope_parameters=_rope("yarn", factor=2.0, original_max_position_embeddings=256, llama_4_scaling_beta=0.1),
    ),
    _named("nemotron", "Nemotron", "rotary of half a head", **_PARTIAL),
    _named(
        "glm4-moe", "Glm4Moe", "mixture of experts, rotary of half a head", head_dim=16, n_routed_experts=4,
        first_k_dense_replace=1, **_EXPERTS, **_PARTIAL,
    ),
    _named(
        "olmoe", "Olmoe", "mixture of experts, norm of whole keys", num_experts=4, num_experts_per_tok=2, **_PLAIN_ROPE
    ),
    _named(
        "ernie4_5-moe", "Ernie4_5_Moe", "mixture of experts, interleaved rotary", moe_num_experts=4, moe_k=2,
        moe_intermediate_size=32, **_PLAIN_ROPE,
    ),
    _named(
        "granite-moe", "GraniteMoe", "mixture of experts, multipliers", num_local_experts=4, num_experts_per_tok=2,
        **_PLAIN_ROPE,
    ),
    _named("starcoder2", "Starcoder2", "", sliding_window=None, **_PLAIN_ROPE),
    _named("phi", "Phi", "rotary of half a head, attention beside the MLP", **_PARTIAL),
    _named("stablelm", "StableLm", "rotary of half a head", **_PARTIAL),
    _named("gemma", "Gemma", "", head_dim=16, **_PLAIN_ROPE),
    _named(
        "llama4",
        "Llama4",
        "layers without position, complex rotary, norm after it, chunks",
        head_dim=16,
        layer_types=["chunked_attention", "full_attention", "chunked_attention"],
        no_rope_layers=[1, 0, 1],
        attention_chunk_size=512,
        num_local_experts=2,
        intermediate_size_mlp=96,
        interleave_moe_layer_step=2,
        **_PLAIN_ROPE,
    ),
    _with_images(
        "qwen3-vl",
        "Qwen3VL",
        "positions of three axes, equal on text",
        head_dim=16,
        rope_parameters=_rope("default", mrope_section=[4, 2, 2], mrope_interleaved=True),
        vision={
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_heads": 2,
            "out_hidden_size": 64,
            "deepstack_visual_indexes": [0],
        },
    ),
    _with_images(
        "qwen2.5-vl",
        "Qwen2_5_VL",
        "positions of three axes, equal on text",
        rope_parameters=_rope("default", mrope_section=[2, 3, 3]),
        vision=_VISION | {"depth": 1, "num_heads": 2, "out_hidden_size": 64},
    ),
    _with_images(
        "mistral3-images",
        "Mistral3",
        "text part of a model that also reads images",
        model_type="mistral",
        head_dim=16,
        sliding_window=None,
        **_PLAIN_ROPE,
        vision=_VISION | {"model_type": "pixtral", "num_hidden_layers": 1, "num_attention_heads": 2},
    ),
    _with_images(
        "smolvlm",
        "SmolVLM",
        "text part of a model that also reads images",
        model_type="llama",
        **_PLAIN_ROPE,
        vision=_VISION | {"num_hidden_layers": 1, "num_attention_heads": 2},
    ),
    _with_images(
        "gemma3-images",
        "Gemma3",
        "text part of a model that also reads images",
        head_dim=16,
        sliding_window=24,
        query_pre_attn_scalar=16,
        layer_types=_TWO_KINDS,
        rope_parameters={
            "full_attention": _rope("linear", factor=4.0),
            "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
        },
        vision={
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
        },
    ),
]
FAMILIES = [
    _family("llama", LlamaForCausalLM, LlamaConfig, rope_parameters=_rope("default")),
    _family("llama-linear", LlamaForCausalLM, LlamaConfig, rope_parameters=_LINEAR),
    _family("llama-llama3", LlamaForCausalLM, LlamaConfig, rope_parameters=_LLAMA3),
    _family("llama-yarn", LlamaForCausalLM, LlamaConfig, rope_parameters=_YARN),
    _family("llama-dynamic", LlamaForCausalLM, LlamaConfig, rope_parameters=_DYNAMIC),
    _family("llama-mha", LlamaForCausalLM, LlamaConfig, num_key_value_heads=4, rope_parameters=_rope("default")),
    _family("llama-mqa", LlamaForCausalLM, LlamaConfig, num_key_value_heads=1, rope_parameters=_rope("default")),
    _family("qwen2", Qwen2ForCausalLM, Qwen2Config, rope_parameters=_rope("default")),
    _family("qwen2-yarn", Qwen2ForCausalLM, Qwen2Config, rope_parameters=_YARN),
    _family("qwen3", Qwen3ForCausalLM, Qwen3Config, head_dim=32, rope_parameters=_rope("default")),
    _family("mistral", MistralForCausalLM, MistralConfig, sliding_window=None, rope_parameters=_rope("default")),
    _family("mistral-sliding", MistralForCausalLM, MistralConfig, sliding_window=24, rope_parameters=_rope("default")),
    _family("phi3", Phi3ForCausalLM, Phi3Config, sliding_window=None, rope_parameters=_rope("default")),
    _family(
        "phi3-partial", Phi3ForCausalLM, Phi3Config, sliding_window=None, hidden_size=128,
        rope_parameters=_rope("default", partial_rotary_factor=0.75),
    ),
    _family(
        "phi3-longrope", Phi3ForCausalLM, Phi3Config, sliding_window=None, original_max_position_embeddings=256,
        rope_parameters=_longrope(256),
    ),
    _family(
        "gemma2", Gemma2ForCausalLM, Gemma2Config, head_dim=16, sliding_window=24, query_pre_attn_scalar=16,
        rope_parameters=_rope("default"),
    ),
    _family(
        "gemma3", Gemma3ForCausalLM, Gemma3TextConfig, head_dim=16, sliding_window=24, query_pre_attn_scalar=16,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": _rope("linear", factor=4.0),
            "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
        },
    ),
    *_MORE,
]  # fmt: skip


def build_model(family: Family, dtype: torch.dtype = torch.float32, seed: int = 7) -> LanguageModel:
    """A random model whose attention is peaked, wrapped as the product wraps a loaded one."""
    module = peaked_module(family, seed)
    # Checkpoints load with fp32 rotary frequencies whatever their dtype; a plain `.to(dtype)` would round those too.
    exact = {name: buffer.clone() for name, buffer in module.named_buffers()}
    module.to(dtype)
    for name, buffer in module.named_buffers():
        buffer.data = exact[name]
    return wrap(module, byte_prompt(), name=family.name, directory=None)


def peaked_module(family: Family, seed: int = 7) -> Any:
    """transformers' module of a family in fp32, with random weights under which attention is peaked."""
    torch.manual_seed(seed)
    model_class, config = family.build()
    config._attn_implementation = "eager" if support.check(config).needs_eager else "sdpa"
    module = model_class(config)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if any(word in name for word in ("q_proj.weight", "k_proj.weight", "qkv_proj.weight")):
                parameter.mul_(12.0)
            elif any(word in name for word in ("q_proj.bias", "k_proj.bias", "sinks")):
                parameter.normal_(std=1.0)
            elif name.endswith(("embed_tokens.weight", "lm_head.weight", "v_proj.weight", "o_proj.weight")):
                parameter.mul_(6.0)
    return module
