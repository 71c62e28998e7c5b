"""Models of published shapes with random weights, made on the device they run on: latency does not depend on values.

Knows configurations; downloads nothing and measures nothing. What such a model says is noise, so nothing here may be
used to speak about quality.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psutil
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from desk_rag.bench.models.synthetic import Shape
from desk_rag.bench.models.tiny_models import byte_prompt
from desk_rag.errors import ConfigError
from desk_rag.kv.prefill import PrefixKV
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.loading import wrap


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What of a model decides the cost of running it."""

    family: str
    """qwen2 or llama."""
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int

    @property
    def chunk_shape(self) -> Shape:
        """What of it decides the cost of its chunk KV."""
        return Shape(self.num_layers, self.num_heads, self.num_kv_heads, self.head_dim)

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
    "tiny": ModelShape("qwen2", 3, 64, 4, 2, 16, 96, 300),
    "qwen2.5-1.5b": ModelShape("qwen2", 28, 1536, 12, 2, 128, 8960, 151_936),
    "qwen2.5-3b": ModelShape("qwen2", 36, 2048, 16, 2, 128, 11_008, 151_936),
    "qwen2-7b": ModelShape("qwen2", 28, 3584, 28, 4, 128, 18_944, 152_064),
    "llama-3.1-8b": ModelShape("llama", 32, 4096, 32, 8, 128, 14_336, 128_256),
    "qwen2.5-32b": ModelShape("qwen2", 64, 5120, 40, 8, 128, 27_648, 152_064),
    "llama-3.1-70b": ModelShape("llama", 80, 8192, 64, 8, 128, 28_672, 128_256),
}
"""From the models' own config.json; 'tiny' is nobody's and serves the tests."""


def model_shape(name: str) -> ModelShape:
    """The shape of that name. Raises ConfigError."""
    if name not in MODELS:
        raise ConfigError(f"There is no model shape '{name}'.", remedy=f"Known: {', '.join(MODELS)}.")
    return MODELS[name]


def build(name: str, device: torch.device, *, positions: int = 40_960, seed: int = 7) -> LanguageModel:
    """A model of that shape: bf16 on a GPU, fp32 elsewhere; weights are normal with deviation 0.02, norms are 1.

    Raises ConfigError for a shape that is unknown or too large for this machine's memory.
    """
    shape = model_shape(name)
    _check_room(name, shape, device)
    model_class, config = _configured(shape, positions)
    with torch.device("meta"):
        module: Any = model_class(config)
    module.to(torch.bfloat16 if device.type == "cuda" else torch.float32)
    module.to_empty(device=device)
    # Its frequencies were computed on the meta device, which keeps no values.
    module.model.rotary_emb = type(module.model.rotary_emb)(config).to(device)
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for parameter_name, parameter in module.named_parameters():
            if "norm" in parameter_name:
                parameter.fill_(1.0)
            else:
                parameter.normal_(std=0.02, generator=generator)
    return wrap(module, byte_prompt(), name=f"random {name}", directory=None)


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


def _check_room(name: str, shape: ModelShape, device: torch.device) -> None:
    parameters = shape.linear_parameters + 2 * shape.head_parameters
    if device.type == "cuda":
        wanted, free = 2 * parameters, torch.cuda.mem_get_info(device)[0]
    else:
        wanted, free = 4 * parameters, psutil.virtual_memory().available // 2
    if wanted > free:
        raise ConfigError(
            f"A model of the shape '{name}' takes {wanted / 1e9:.0f} GB, and {free / 1e9:.0f} GB are free for it.",
            remedy=f"--shape or --jobs with a smaller one: {', '.join(MODELS)}.",
        )


def _configured(shape: ModelShape, positions: int) -> tuple[Any, Any]:
    families = {"qwen2": (Qwen2ForCausalLM, Qwen2Config), "llama": (LlamaForCausalLM, LlamaConfig)}
    model_class, config_class = families[shape.family]
    config = config_class(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=positions,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=2,
    )
    config._attn_implementation = "sdpa"
    return model_class, config
