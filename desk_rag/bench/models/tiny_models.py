"""Small random models of every family and RoPE scaling we name, and a byte tokenizer; nothing is downloaded.

Default initialisation gives nearly uniform attention, under which a wrong position passes unnoticed. Queries and keys
are therefore scaled up until attention is peaked, and whatever is shown with these models keeps a negative control.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
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
    return cls(**(common | changes))


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
]  # fmt: skip


def build_model(family: Family, dtype: torch.dtype = torch.float32, seed: int = 7) -> LanguageModel:
    """A random model whose attention is peaked, wrapped as the product wraps a loaded one."""
    torch.manual_seed(seed)
    model_class, config = family.build()
    config._attn_implementation = "eager" if "gemma2" in family.name else "sdpa"
    module = model_class(config)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if any(word in name for word in ("q_proj.weight", "k_proj.weight", "qkv_proj.weight")):
                parameter.mul_(12.0)
            elif any(word in name for word in ("q_proj.bias", "k_proj.bias")):
                parameter.normal_(std=1.0)
            elif name.endswith(("embed_tokens.weight", "lm_head.weight", "v_proj.weight", "o_proj.weight")):
                parameter.mul_(6.0)
    # Checkpoints load with fp32 rotary frequencies whatever their dtype; a plain `.to(dtype)` would round those too.
    exact = {name: buffer.clone() for name, buffer in module.named_buffers()}
    module.to(dtype)
    for name, buffer in module.named_buffers():
        buffer.data = exact[name]
    return wrap(module, byte_prompt(), name=family.name, directory=None)
