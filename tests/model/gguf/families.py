"""Tiny random models as GGUF files, with every change of layout that llama.cpp's converter makes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import torch
from gguf import GGMLQuantizationType as Kind

from desk_rag.bench.models.tiny_models import FAMILIES, Family
from tests.model.gguf.writing import add_shape, add_tensors, add_tokenizer, close
from tests.models import VOCABULARY, build_model, byte_tokenizer

State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Tiny:
    """One architecture as GGUF has it."""

    arch: gguf.MODEL_ARCH
    family: str
    """Name in `tiny_models.FAMILIES`."""
    convert: Callable[[State, Any], State] = lambda state, config: state
    """Change to the weights by llama.cpp's converter."""
    keys: Mapping[str, Any] = field(default_factory=dict)
    """Further metadata, without the architecture."""


def _permuted(state: State, config: Any) -> State:
    """Rows of queries and keys interleaved, as llama.cpp wants them of Llama."""

    def permute(weight: torch.Tensor, heads: int) -> torch.Tensor:
        return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)

    changed = dict(state)
    for name, tensor in state.items():
        if "q_proj" in name:
            changed[name] = permute(tensor, config.num_attention_heads)
        elif "k_proj" in name:
            changed[name] = permute(tensor, config.num_key_value_heads)
    return changed


def _plus_one(state: State, config: Any) -> State:
    """Gemma's norms are stored with the one that its layers add."""
    return {name: tensor + 1 if "norm" in name else tensor for name, tensor in state.items()}


def _llama3(state: State, config: Any) -> State:
    """Llama 3's scaling becomes a tensor of divisors."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, None)
    dim = config.hidden_size // config.num_attention_heads
    plain = config.rope_parameters["rope_theta"] ** (-torch.arange(0, dim, 2).float() / dim)
    return _permuted(state, config) | {"rope_freqs.weight": plain / scaled}


def _longrope(state: State, config: Any) -> State:
    rope = config.rope_parameters
    factors = {name: torch.tensor(rope[f"{name}_factor"]) for name in ("short", "long")}
    return state | {f"rope_factors_{name}.weight": tensor for name, tensor in factors.items()}


def _scaled_llama() -> Any:
    """Llama 3's own scaling; a tiny one over short texts would not be that of any published file."""
    from transformers import LlamaForCausalLM

    _, config = next(family for family in FAMILIES if family.name == "llama").build()
    config.rope_parameters = {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    return LlamaForCausalLM, config


def _six_layers() -> Any:
    """Gemma 3 with one layer of full attention after five with a window."""
    from transformers import Gemma3TextConfig

    model_class, config = next(family for family in FAMILIES if family.name == "gemma3").build()
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    rope = {
        "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    fields = {**config.to_dict(), "num_hidden_layers": 6, "layer_types": kinds, "rope_parameters": rope}
    return model_class, Gemma3TextConfig(**{**fields, "tie_word_embeddings": True})


def _tied() -> Any:
    """Gemma 2, which GGUF knows with tied embeddings only."""
    model_class, config = next(family for family in FAMILIES if family.name == "gemma2").build()
    config.tie_word_embeddings = True
    return model_class, config


_OWN = [Family("llama-8b-rope", _scaled_llama), Family("gemma3-six", _six_layers), Family("gemma2-tied", _tied)]
_ARCH = gguf.MODEL_ARCH
TINY = {
    "llama": Tiny(_ARCH.LLAMA, "llama", _permuted),
    "llama-llama3": Tiny(_ARCH.LLAMA, "llama-8b-rope", _llama3),
    "llama-linear": Tiny(_ARCH.LLAMA, "llama-linear", _permuted, {"rope.scaling.type": "linear",
                                                                  "rope.scaling.factor": 4.0}),
    "qwen2": Tiny(_ARCH.QWEN2, "qwen2"),
    "qwen2-yarn": Tiny(_ARCH.QWEN2, "qwen2-yarn", keys={"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                                                        "rope.scaling.original_context_length": 128}),
    "qwen3": Tiny(_ARCH.QWEN3, "qwen3"),
    "phi3": Tiny(_ARCH.PHI3, "phi3"),
    "phi3-partial": Tiny(_ARCH.PHI3, "phi3-partial", keys={"rope.dimension_count": 24}),
    "phi3-longrope": Tiny(_ARCH.PHI3, "phi3-longrope", _longrope, {"rope.scaling.original_context_length": 256,
                                                                   "rope.scaling.attn_factor": 1.0606601}),
    "gemma2": Tiny(_ARCH.GEMMA2, "gemma2-tied", _plus_one, {"attention.sliding_window": 24,
                                                       "attn_logit_softcapping": 50.0,
                                                       "final_logit_softcapping": 30.0}),
    "gemma3": Tiny(_ARCH.GEMMA3, "gemma3-six", _plus_one, {"attention.sliding_window": 24,
                                                           "rope.scaling.type": "linear", "rope.scaling.factor": 4.0,
                                                           "rope.freq_base": 10000.0}),
}  # fmt: skip


def module_of(tiny: Tiny) -> Any:
    """The random model itself, in fp32."""
    return build_model(next(family for family in [*FAMILIES, *_OWN] if family.name == tiny.family)).module


def write_tiny(file: Path, tiny: Tiny, kind: Kind) -> Any:
    """Write the model as GGUF and return it."""
    module = module_of(tiny)
    config = module.config
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[tiny.arch])
    fields = {**config.to_dict(), "rope_theta": _theta(config)}
    fields["head_dim"] = fields.get("head_dim") or config.hidden_size // config.num_attention_heads
    add_shape(
        writer, {**fields, "rope_theta": None, "rope_parameters": {}} if "rope.freq_base" in tiny.keys else fields
    )
    for key, value in tiny.keys.items():
        adders = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
        adders[type(value)](f"{gguf.MODEL_ARCH_NAMES[tiny.arch]}.{key}", value)
    add_tokenizer(writer, _with_a_merge(json.loads(byte_tokenizer().to_str())), eos=2)
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    assert state["model.embed_tokens.weight"].shape[0] == VOCABULARY
    add_tensors(writer, tiny.convert(state, config), tiny.arch, config.num_hidden_layers, kind)
    close(writer)
    return module


def _with_a_merge(described: dict[str, Any]) -> dict[str, Any]:
    """A byte tokenizer that knows one word instead of a byte that no text has: files without merges are damaged."""
    vocabulary = described["model"]["vocab"]
    vocabulary["th"] = vocabulary.pop("\u00ff")
    described["model"]["merges"] = [["t", "h"]]
    return described


def _theta(config: Any) -> float:
    rope = config.rope_parameters
    return float((rope if "rope_theta" in rope else rope["full_attention"])["rope_theta"])
