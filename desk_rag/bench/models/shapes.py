"""Models of published shapes with random weights, made on the device they run on: latency does not depend on values.

Nothing is downloaded. What such a model says is noise, so it must not be used to speak about quality.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psutil
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Glm4Config,
    Glm4ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from desk_rag.bench.models.synthetic import Shape as ChunkShape
from desk_rag.bench.models.tiny_models import byte_prompt
from desk_rag.errors import ConfigError
from desk_rag.kv.prefill import PrefixKV
from desk_rag.model import directory_check, requantize
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.library.installed import Shape
from desk_rag.model.loading import wrap
from desk_rag.model.memory.device import free_gpu_bytes
from desk_rag.model.memory.page_locked import keep_embeddings_in_ram


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model that decide the cost of running it."""

    family: str
    """Key of `_CLASSES`."""
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool = False
    """The output matrix is the embedding matrix."""
    window: int = 0
    """Tokens of a sliding window in five layers of six; 0 for full attention in all."""

    @property
    def chunk_shape(self) -> ChunkShape:
        """Sizes that decide the cost of its chunk KV."""
        return ChunkShape(self.num_layers, self.num_heads, self.num_kv_heads, self.head_dim)

    @property
    def linear_parameters(self) -> int:
        """Weights that every token passes through, the output matrix left out: it is read for one token only."""
        attention = 2 * self.hidden * self.head_dim * (self.num_heads + self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def head_parameters(self) -> int:
        """Weights of the output matrix."""
        return self.hidden * self.vocabulary

    def prefill_operations(self, tokens: int, past: int = 0) -> float:
        """Floating-point operations of a pass of `tokens` over `past`, causal, logits of the last token only."""
        pairs = tokens * past + tokens * (tokens + 1) / 2
        attention = 4.0 * self.num_layers * self.num_heads * self.head_dim * pairs
        return 2.0 * tokens * self.linear_parameters + attention + 2.0 * self.head_parameters


MODELS = {
    "tiny": ModelShape("qwen2", 3, 64, 4, 2, 16, 128, 300),
    "qwen2.5-1.5b": ModelShape("qwen2", 28, 1536, 12, 2, 128, 8960, 151_936),
    "qwen2.5-3b": ModelShape("qwen2", 36, 2048, 16, 2, 128, 11_008, 151_936),
    "qwen2-7b": ModelShape("qwen2", 28, 3584, 28, 4, 128, 18_944, 152_064),
    "qwen2.5-7b": ModelShape("qwen2", 28, 3584, 28, 4, 128, 18_944, 152_064),
    "llama-3.1-8b": ModelShape("llama", 32, 4096, 32, 8, 128, 14_336, 128_256),
    "qwen2.5-32b": ModelShape("qwen2", 64, 5120, 40, 8, 128, 27_648, 152_064),
    "llama-3.1-70b": ModelShape("llama", 80, 8192, 64, 8, 128, 28_672, 128_256),
    "small": ModelShape("llama", 2, 512, 8, 4, 64, 1024, 1000),
    "tiny-sliding": ModelShape("gemma3", 6, 64, 4, 2, 16, 128, 300, tied=True, window=48),
    "qwen3-4b": ModelShape("qwen3", 36, 2560, 32, 8, 128, 9728, 151_936, tied=True),
    "llama-3.2-3b": ModelShape("llama", 28, 3072, 24, 8, 128, 8192, 128_256, tied=True),
    "phi-4-mini": ModelShape("phi3", 32, 3072, 24, 8, 128, 8192, 200_064, tied=True),
    "granite-3.3-2b": ModelShape("granite", 40, 2048, 32, 8, 64, 8192, 49_159, tied=True),
    "olmo-2-7b": ModelShape("olmo2", 32, 4096, 32, 32, 128, 11_008, 100_352),
    "glm-4-9b": ModelShape("glm4", 40, 4096, 32, 2, 128, 13_696, 151_552),
    "gemma-3-4b": ModelShape("gemma3", 34, 2560, 8, 4, 256, 10_240, 262_208, tied=True, window=1024),
}
"""Shapes from the models' own config.json; the tiny ones are for tests."""


def model_shape(name: str) -> ModelShape:
    """The shape of that name. Raises ConfigError."""
    if name not in MODELS:
        raise ConfigError(f"There is no model shape '{name}'.", remedy=f"Known: {', '.join(MODELS)}.")
    return MODELS[name]


def sizes_of(name: str) -> Shape:
    """Return the numbers of a shape from which memory is planned."""
    shape = model_shape(name)
    embeddings = (1 if shape.tied else 2) * shape.head_parameters
    return Shape(
        shape.family, shape.linear_parameters + embeddings, embeddings, shape.num_layers, shape.num_kv_heads,
        shape.head_dim, 0, input_table_parameters=0 if shape.tied else shape.head_parameters,
    )  # fmt: skip


def build(
    name: str, device: torch.device, *, positions: int = 40_960, seed: int = 7, quantization: str = "none"
) -> LanguageModel:
    """Build a model of that shape: bf16 on a GPU, fp32 elsewhere; weights are normal with deviation 0.02, norms are 1.

    With `quantization` 'nf4' or 'int8' its matrices are made and quantised one by one, so that the device never holds
    more than one of them in 16 bits. Raises ConfigError for a shape that is unknown or too large for this machine.
    """
    shape = model_shape(name)
    _check_room(name, shape, device, quantization)
    model_class, config = _configured(shape, positions)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with directory_check.no_init():  # memory is reserved, not touched
        module: Any = model_class._from_config(config, dtype=dtype, attn_implementation="sdpa")
    module.tie_weights()
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        if quantization != "none":
            head = module.get_output_embeddings()
            parents = [part for part in module.modules() if type(part) is not torch.nn.Linear]  # a list keeps its parts
            for parent in parents:
                for child_name, child in list(parent.named_children()):
                    if type(child) is torch.nn.Linear and child is not head:
                        _fill(child, child_name, generator)
                        setattr(parent, child_name, requantize.quantized_linear(child, quantization, device))
        for part_name, part in module.named_modules():
            if "bitsandbytes" not in type(part).__module__:
                _fill(part, part_name, generator)
    keep_embeddings_in_ram(module)
    return wrap(module, byte_prompt(), name=f"random {name}", directory=None, quantization=quantization)


def _fill(part: torch.nn.Module, name: str, generator: torch.Generator) -> None:
    """Give a module's own parameters random values on the generator's device, and move its own buffers there."""
    for parameter in part.parameters(recurse=False):
        parameter.data = torch.empty_like(parameter, device=generator.device)
        if "norm" in name:
            parameter.fill_(0.0 if "Gemma" in type(part).__name__ else 1.0)  # Gemma's norms add 1
        else:
            parameter.normal_(std=0.02, generator=generator)
    for buffer in part.buffers(recurse=False):
        buffer.data = buffer.to(generator.device)


def random_ids(model: LanguageModel, batch: int, tokens: int) -> torch.Tensor:
    """Token ids int64 [batch, tokens] on the model's device."""
    return torch.randint(0, int(model.module.config.vocab_size), (batch, tokens), device=model.device)


def random_prefix(model: LanguageModel, tokens: int) -> PrefixKV:
    """A shared prefix of that many tokens, run by the model."""
    from desk_rag.kv.cache import SlabCache

    cache = SlabCache(model, tokens)
    model.forward(random_ids(model, 1, tokens)[0], cache, 0, logits=False)
    keys = torch.stack([layer.key_slab[0] for layer in cache.layers])
    return PrefixKV(keys, torch.stack([layer.value_slab[0] for layer in cache.layers]))


def _check_room(name: str, shape: ModelShape, device: torch.device, quantization: str) -> None:
    heads = (1 if shape.tied else 2) * shape.head_parameters
    if device.type == "cuda":
        per_weight = {"none": 2.0, "int8": 1.01, "nf4": 0.53}[quantization]
        wanted, free = per_weight * shape.linear_parameters + 2 * heads, free_gpu_bytes(device)
    else:
        wanted, free = 4 * (shape.linear_parameters + heads), psutil.virtual_memory().available // 2
    if wanted > free:
        raise ConfigError(
            f"A model of the shape '{name}' takes {wanted / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free for it.",
            remedy=f"--shape or --jobs with a smaller one: {', '.join(MODELS)}.",
        )


_CLASSES = {
    "qwen2": (Qwen2ForCausalLM, Qwen2Config),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config),
    "llama": (LlamaForCausalLM, LlamaConfig),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig),
    "glm4": (Glm4ForCausalLM, Glm4Config),
    "granite": (GraniteForCausalLM, GraniteConfig),
    "olmo2": (Olmo2ForCausalLM, Olmo2Config),
    "phi3": (Phi3ForCausalLM, Phi3Config),
}
_MULTIPLIERS = {
    "embedding_multiplier": 12.0, "attention_multiplier": 1 / 64, "residual_multiplier": 0.22, "logits_scaling": 8.0
}  # fmt: skip
_TURNED = {"phi3": 0.75, "glm4": 0.5}
"""Share of a head that turns, by family."""


def _configured(shape: ModelShape, positions: int) -> tuple[Any, Any]:
    model_class, config_class = _CLASSES[shape.family]
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 1_000_000.0}
    if shape.family in _TURNED:
        rope["partial_rotary_factor"] = _TURNED[shape.family]
    more: dict[str, Any] = dict(_MULTIPLIERS) if shape.family == "granite" else {}
    if shape.window:
        kinds = ["sliding_attention"] * 5 + ["full_attention"]
        more = {
            "sliding_window": shape.window,
            "query_pre_attn_scalar": shape.head_dim,
            "layer_types": [kinds[layer % 6] for layer in range(shape.num_layers)],
        }
        rope = {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0}}
    config = config_class(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=positions,
        rope_parameters=rope,
        tie_word_embeddings=shape.tied,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=2,
        **more,
    )
    return model_class, config
