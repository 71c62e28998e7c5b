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
    own_name: str = ""
    """Name of an architecture that has another one in llama.cpp."""

    @property
    def name(self) -> str:
        """The architecture's name in files."""
        return self.own_name or gguf.MODEL_ARCH_NAMES[self.arch]


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


def _plus_one_weights(state: State, config: Any) -> State:
    """Nemotron's norms have biases too, which stay."""
    return {name: tensor + 1 if name.endswith("norm.weight") else tensor for name, tensor in state.items()}


def _llama3(state: State, config: Any) -> State:
    """Llama 3's scaling becomes a tensor of divisors."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, None)
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    plain = config.rope_parameters["rope_theta"] ** (-torch.arange(0, dim, 2).float() / dim)
    return _permuted(state, config) | {"rope_freqs.weight": plain / scaled}


def _longrope(state: State, config: Any) -> State:
    rope = config.rope_parameters
    factors = {name: torch.tensor(rope[f"{name}_factor"]) for name in ("short", "long")}
    return state | {f"rope_factors_{name}.weight": tensor for name, tensor in factors.items()}


def _experts(state: State, config: Any) -> State:
    """Experts' matrices in three tensors a layer; transformers holds two of them as one."""
    changed = {name: tensor for name, tensor in state.items() if ".experts." not in name}
    for index in range(config.num_hidden_layers):
        place = next(name for name in state if name.startswith(f"model.layers.{index}.") and "gate_up_proj" in name)
        target = f"blk.{index}.ffn"
        gate, up = state[place].chunk(2, 1)
        down = state[place.replace("gate_up", "down")]
        changed |= {f"{target}_{name}_exps.weight": part for name, part in (("gate", gate), ("up", up), ("down", down))}
    return changed


def _permuted_experts(state: State, config: Any) -> State:
    changed = _experts(_permuted(state, config), config)
    return {name.replace("router.weight", "router.layer.weight"): tensor for name, tensor in changed.items()}


def gpt_oss_state(state: State, config: Any) -> State:
    """Matrices of experts turned over, gates and what they open apart; sinks as a weight."""
    changed = {name.replace("sinks", "sinks.weight"): part for name, part in state.items() if ".experts." not in name}
    for index in range(config.num_hidden_layers):
        place, target = f"model.layers.{index}.mlp.experts", f"blk.{index}.ffn"
        both, bias = state[f"{place}.gate_up_proj"].transpose(1, 2), state[f"{place}.gate_up_proj_bias"]
        changed |= {
            f"{target}_gate_exps.weight": both[:, ::2].contiguous(), f"{target}_gate_exps.bias": bias[:, ::2],
            f"{target}_up_exps.weight": both[:, 1::2].contiguous(), f"{target}_up_exps.bias": bias[:, 1::2],
            f"{target}_down_exps.weight": state[f"{place}.down_proj"].transpose(1, 2).contiguous(),
            f"{target}_down_exps.bias": state[f"{place}.down_proj_bias"],
        }  # fmt: skip
    return changed


def _exaone(state: State, config: Any) -> State:
    """EXAONE 4's scaling becomes a tensor of divisors, like Llama 3's."""
    return {**_llama3(state, config), **state}


def _with_norms() -> Any:
    """Qwen 3's experts with shares that add up to one, as every published file has them."""
    model_class, config = next(family for family in FAMILIES if family.name == "qwen3-moe").build()
    config.norm_topk_prob = True
    return model_class, config


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


def _changed(name: str, **fields: Any) -> Family:
    """A family of `tiny_models` with other fields."""

    def build() -> tuple[Any, Any]:
        model_class, config = next(family for family in FAMILIES if family.name == name).build()
        return model_class, type(config)(**{**config.to_dict(), "layer_types": None, **fields})

    return Family(f"{name}-gguf", build)


def _kinds(layers: int, every: int) -> list[str]:
    return ["full_attention" if index % every == every - 1 else "sliding_attention" for index in range(layers)]


_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128,
         "beta_fast": 32.0, "beta_slow": 1.0}  # fmt: skip
_LLAMA3_16 = {
    "rope_type": "llama3", "rope_theta": 1000000.0, "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
_MORE = [
    _changed("smollm3", num_hidden_layers=5, no_rope_layers=[1, 1, 1, 0, 1]),
    _changed("cohere2", num_hidden_layers=5, layer_types=_kinds(5, 4), tie_word_embeddings=True),
    _changed("cohere", tie_word_embeddings=True),
    _changed("gemma", tie_word_embeddings=True),
    _changed("ministral3", rope_parameters={**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0,
                                            "llama_4_scaling_beta": 0.1}),
    _changed("gpt-oss", num_hidden_layers=4, layer_types=_kinds(4, 2), rope_parameters={**_YARN, "truncate": False}),
    _changed("olmo3", num_hidden_layers=5, layer_types=_kinds(5, 4)),
    _changed("exaone4", sliding_window=None, sliding_window_pattern=None, layer_types=["full_attention"] * 3),
]  # fmt: skip


def _deep_exaone() -> Any:
    """EXAONE 4 with as many layers as the one that has windows."""
    config = {"num_hidden_layers": 64, "layer_types": _kinds(64, 4), "sliding_window_pattern": 4}
    return _changed("exaone4", **config, rope_parameters=_LLAMA3_16).build()


_OWN = [
    Family("llama-8b-rope", _scaled_llama), Family("gemma3-six", _six_layers), Family("gemma2-tied", _tied),
    Family("qwen3-moe-norm", _with_norms), Family("exaone4-deep", _deep_exaone), *_MORE,
]  # fmt: skip
_ARCH = gguf.MODEL_ARCH
_YARN_KEYS = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128,
    "rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0,
}  # fmt: skip
_OF_EXPERTS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
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
    "granite": Tiny(_ARCH.GRANITE, "granite", _permuted, {"attention.scale": 0.3, "embedding_scale": 3.0,
                                                          "residual_scale": 0.5, "logit_scale": 2.0}),
    "smollm3": Tiny(_ARCH.SMOLLM3, "smollm3-gguf", _permuted),
    "qwen3moe": Tiny(_ARCH.QWEN3MOE, "qwen3-moe-norm", _experts, _OF_EXPERTS),
    "qwen3vlmoe": Tiny(_ARCH.QWEN3VLMOE, "qwen3-moe-norm", _experts,
                       {**_OF_EXPERTS, "rope.dimension_sections": [6, 5, 5, 0]}),
    "mixtral": Tiny(_ARCH.LLAMA, "mixtral", _permuted_experts, {"expert_count": 4, "expert_used_count": 2}),
    "granitemoe": Tiny(_ARCH.GRANITE_MOE, "granite-moe", _permuted_experts, {
        "expert_count": 4, "expert_used_count": 2, "attention.scale": 1.0, "embedding_scale": 1.0,
        "residual_scale": 1.0, "logit_scale": 1.0}),
    "gpt-oss": Tiny(_ARCH.GPT_OSS, "gpt-oss-gguf", gpt_oss_state, {
        **_YARN_KEYS, "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 96,
        "attention.sliding_window": 24}),
    "mistral3-small": Tiny(_ARCH.MISTRAL3, "mistral", _permuted),
    "mistral3": Tiny(_ARCH.MISTRAL3, "ministral3-gguf", _permuted, {
        **_YARN_KEYS, "rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.1}),
    "glm4": Tiny(_ARCH.GLM4, "glm4", keys={"rope.dimension_count": 8}),
    "cohere2": Tiny(_ARCH.COHERE2, "cohere2-gguf", keys={
        "attention.sliding_window": 24, "logit_scale": 0.0625, "rope.scaling.type": "none"}),
    "command-r": Tiny(_ARCH.COMMAND_R, "cohere-gguf", keys={"logit_scale": 0.0625, "rope.scaling.type": "none"}),
    "exaone4": Tiny(_ARCH.EXAONE4, "exaone4-gguf"),
    "exaone4-32b": Tiny(_ARCH.EXAONE4, "exaone4-deep", _exaone, {"attention.sliding_window": 24}),
    "olmo3": Tiny(_ARCH.OLMO2, "olmo3-gguf", keys={"attention.sliding_window": 24, "rope.freq_base_swa": 10000.0}),
    "seed_oss": Tiny(_ARCH.SEED_OSS, "seed-oss"),
    "ernie4_5": Tiny(_ARCH.ERNIE4_5, "ernie4_5"),
    "hunyuan-dense": Tiny(_ARCH.HUNYUAN_DENSE, "hunyuan"),
    "starcoder2": Tiny(_ARCH.STARCODER2, "starcoder2"),
    "stablelm": Tiny(_ARCH.STABLELM, "stablelm", keys={"rope.dimension_count": 8, "use_parallel_residual": False}),
    "nemotron": Tiny(_ARCH.NEMOTRON, "nemotron", _plus_one_weights, {"rope.dimension_count": 8}),
    "gemma": Tiny(_ARCH.GEMMA, "gemma-gguf", _plus_one),
    "olmo2": Tiny(_ARCH.OLMO2, "olmo2"),
    "qwen2vl": Tiny(_ARCH.QWEN2VL, "qwen2", keys={"rope.dimension_sections": [2, 3, 3, 0]}),
    "qwen25vl": Tiny(_ARCH.QWEN2VL, "qwen2", keys={"rope.dimension_sections": [2, 3, 3, 0]}, own_name="qwen25vl"),
    "qwen3vl": Tiny(_ARCH.QWEN3VL, "qwen3", keys={"rope.dimension_sections": [6, 5, 5, 0], "n_deepstack_layers": 3}),
    "gemma3": Tiny(_ARCH.GEMMA3, "gemma3-six", _plus_one, {"attention.sliding_window": 24,
                                                           "rope.scaling.type": "linear", "rope.scaling.factor": 4.0,
                                                           "rope.freq_base": 10000.0}),
}  # fmt: skip


def module_of(tiny: Tiny) -> Any:
    """The random model itself, in fp32."""
    return build_model(next(family for family in [*FAMILIES, *_OWN] if family.name == tiny.family)).module


def write_tiny(file: Path, tiny: Tiny, kind: Kind, kinds: Mapping[str, Kind] | None = None) -> Any:
    """Write the model as GGUF, tensors named in `kinds` in another form, and return it."""
    module = module_of(tiny)
    config = module.config
    writer = gguf.GGUFWriter(file, tiny.name)
    fields = {**config.to_dict(), "rope_theta": _theta(config)}
    fields["head_dim"] = fields.get("head_dim") or config.hidden_size // config.num_attention_heads
    add_shape(
        writer, {**fields, "rope_theta": None, "rope_parameters": {}} if "rope.freq_base" in tiny.keys else fields
    )
    for key, value in tiny.keys.items():
        adders = {
            str: writer.add_string, int: writer.add_uint32, float: writer.add_float32, list: writer.add_array,
            bool: writer.add_bool,
        }  # fmt: skip
        adders[type(value)](f"{tiny.name}.{key}", value)
    add_tokenizer(writer, _with_a_merge(json.loads(byte_tokenizer().to_str())), eos=2)
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    assert state["model.embed_tokens.weight"].shape[0] == VOCABULARY
    add_tensors(writer, tiny.convert(state, config), tiny.arch, config.num_hidden_layers, kind, kinds or {})
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
