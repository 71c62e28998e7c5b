"""The embedded reader as a plain torch module: a Qwen3 decoder, without importing transformers.

Importing that library and its Qwen3 classes takes longer than answering a question. The modules have its names and do
its operations in its order, so that weights, hooks and every pass over the layers fit both, and the results are equal
bit for bit. transformers' own classes serve every other model, and this one for training and on a GPU.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from desk_rag.errors import ModelError
from desk_rag.model import sdpa
from desk_rag.model.checkpoint import row_int8
from desk_rag.model.embedded import int8_linear
from desk_rag.model.embedded.bert import unfilled_embedding
from desk_rag.model.embedded.compiled_layers import CompiledLayers
from desk_rag.model.layers.attention_layout import AttentionLayout, KeyTap
from desk_rag.model.layers.rotary import TableName
from desk_rag.model.support import Support

_MODEL_TYPE = "qwen3"
_OF_NO_EFFECT: dict[str, object] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "is_encoder_decoder": False,
    "max_window_layers": 28,
    "model_type": _MODEL_TYPE,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
}
"""Fields of transformers' configuration that have one value in this reader; part of the identity of its chunk KV."""


@dataclass
class ReaderConfig:
    """The reader's config.json; the names are those of transformers."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    bos_token_id: int | None
    eos_token_id: int | None
    pad_token_id: int | None
    model_type: str = _MODEL_TYPE
    layer_types: list[str] = field(default_factory=list)
    _attn_implementation: str = sdpa.NAME

    @classmethod
    def read(cls, file: Path) -> ReaderConfig:
        """Read config.json. Raises ModelError for a model of another kind."""
        fields = json.loads(file.read_text(encoding="utf-8"))
        own = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        odd = [name for name, value in _OF_NO_EFFECT.items() if name in fields and fields[name] != value]
        if odd:
            raise ModelError(f"{file} is not that of the embedded reader: {odd[0]}.", remedy="Reinstall desk-rag.")
        return cls(**own, layer_types=["full_attention"] * fields["num_hidden_layers"])

    def identity(self) -> str:
        """Canonical JSON of what may change results, as `loading` writes it of transformers' configuration."""
        own = {name: value for name, value in asdict(self).items() if not name.startswith("_")}
        rope = {"rope_theta": own.pop("rope_theta"), "rope_type": "default"}
        return json.dumps({**_OF_NO_EFFECT, **own, "rope_parameters": rope}, sort_keys=True)

    @property
    def num_parameters(self) -> int:
        """Numbers in the weights; the word table is the output matrix as well."""
        heads = 2 * (self.num_attention_heads + self.num_key_value_heads) * self.head_dim
        layer = self.hidden_size * (heads + 3 * self.intermediate_size + 2) + 2 * self.head_dim
        return self.num_hidden_layers * layer + self.hidden_size * (self.vocab_size + 1)

    @property
    def support(self) -> Support:
        """As `model.support.check` finds it from transformers' configuration."""
        return Support(_MODEL_TYPE, self.max_position_embeddings, needs_eager=False)

    @property
    def layout(self) -> AttentionLayout:
        """As `attention_layout.find` finds it by trying the model; keys are tapped behind their norm."""
        tables, of_layer = (TableName("rotary_emb"),), (0,) * self.num_hidden_layers
        kv_shape = (self.num_key_value_heads, self.head_dim)
        return AttentionLayout(KeyTap.K_NORM, False, False, tables, of_layer, kv_shape)


class _RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.variance_epsilon = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


class _Rotary(nn.Module):
    """Positions [B, N] -> cos and sin [B, N, D]."""

    inv_freq: torch.Tensor

    def __init__(self, config: ReaderConfig) -> None:
        super().__init__()
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float, device="cpu") / config.head_dim
        self.register_buffer("inv_freq", 1.0 / config.rope_theta**exponents, persistent=False)

    def forward(self, _like: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions[..., None].float() * self.inv_freq
        both = torch.cat((angles, angles), dim=-1)
        return both.cos(), both.sin()


class _Attention(nn.Module):
    def __init__(self, config: ReaderConfig, layer: int) -> None:
        super().__init__()
        queries, keys = (heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads))
        self.config, self.layer_idx, self.head_dim = config, layer, config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = config.head_dim**-0.5
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        self.q_norm = _RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = _RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(
        self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], mask: torch.Tensor | None, cache: Any,
        options: dict[str, Any],
    ) -> torch.Tensor:  # fmt: skip
        by_heads = (*x.shape[:-1], -1, self.head_dim)
        query = self.q_norm(self.q_proj(x).view(by_heads)).transpose(1, 2)
        key = self.k_norm(self.k_proj(x).view(by_heads)).transpose(1, 2)
        value = self.v_proj(x).view(by_heads).transpose(1, 2)
        key, value = cache.update(_rotated(key, rotation), value, self.layer_idx)
        attend = sdpa.attention_named(self.config._attn_implementation)
        attended, _ = attend(self, _rotated(query, rotation), key, value, mask, scaling=self.scaling, **options)
        out: torch.Tensor = self.o_proj(attended.reshape(*x.shape[:-1], -1))
        return out


class _MLP(nn.Module):
    def __init__(self, config: ReaderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return out


class _Layer(nn.Module):
    def __init__(self, config: ReaderConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = _Attention(config, layer)
        self.mlp = _MLP(config)
        self.input_layernorm = _RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = _RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], mask: torch.Tensor | None, cache: Any,
        options: dict[str, Any],
    ) -> torch.Tensor:  # fmt: skip
        x = x + self.self_attn(self.input_layernorm(x), rotation, mask, cache, options)
        out: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class _Decoder(nn.Module):
    def __init__(self, config: ReaderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = unfilled_embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_Layer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = _RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = _Rotary(config)
        self.compiled: CompiledLayers | None = None
        """Runs the layers wherever it serves a pass."""

    def forward(
        self,
        input_ids: torch.Tensor,
        *,
        past_key_values: Any,
        position_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        use_cache: bool = True,
        **options: Any,
    ) -> SimpleNamespace:
        """Return an object with `last_hidden_state`; `options` are passed to the attention function."""
        assert use_cache, "a pass without a cache is not needed here"
        x = self.embed_tokens(input_ids)
        if self.compiled is not None and self.compiled.serve(x, past_key_values, attention_mask, options):
            x = self.compiled.run(x, past_key_values, self.rotary_emb(x, position_ids))
            return SimpleNamespace(last_hidden_state=self.norm(x))
        if attention_mask is None:
            keys, _ = past_key_values.get_mask_sizes(x.shape[1], 0)
            attention_mask = sdpa.causal_mask(x.shape[1], keys, x.dtype, x.device)
        rotation = self.rotary_emb(x, position_ids)
        for layer in self.layers:
            x = layer(x, rotation, attention_mask, past_key_values, options)
        return SimpleNamespace(last_hidden_state=self.norm(x))


class ReaderModule(nn.Module):
    """The reader with its output matrix, called as transformers' Qwen3ForCausalLM is; for inference only."""

    base_model_prefix = "model"

    def __init__(self, config: ReaderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = _Decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, input_ids: torch.Tensor, *, logits_to_keep: int = 0, **options: Any) -> SimpleNamespace:
        """Logits of the last `logits_to_keep` tokens; 0 for all."""
        hidden = self.model(input_ids, **options).last_hidden_state
        return SimpleNamespace(logits=self.lm_head(hidden[:, -logits_to_keep:]))

    def get_input_embeddings(self) -> Any:
        """The word table, as transformers' modules return it."""
        return self.model.embed_tokens

    def set_attn_implementation(self, name: str) -> None:
        """Attend by the function of this name, as transformers' modules do."""
        self.config._attn_implementation = name


def load_reader(directory: Path, weights: Path) -> ReaderModule:
    """Load the reader from its files onto the CPU; its matrices stay int8 where the CPU multiplies such.

    Raises ModelError, or what torch raises for wrong tensors.
    """
    with torch.device("meta"):
        module = ReaderModule(ReaderConfig.read(directory / "config.json"))
    module.model.rotary_emb = _Rotary(module.config)
    tensors = row_int8.read_codes(weights)
    for suffix in ("", row_int8.SCALE):
        tensors[f"lm_head.weight{suffix}"] = tensors[f"model.embed_tokens.weight{suffix}"]
    if int8_linear.keeps_int8():
        int8_linear.place_int8(module, tensors, row_int8.SCALE)
    wanted = module.state_dict().keys()
    own = {name: tensor for name, tensor in tensors.items() if name.removesuffix(row_int8.SCALE) in wanted}
    module.load_state_dict(row_int8.dequantized(own), assign=True)
    if type(module.lm_head) is nn.Linear:
        module.lm_head.weight = module.model.embed_tokens.weight
    module.model.compiled = CompiledLayers.of(module.model)
    return module


def _rotated(x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Queries or keys [B, heads, N, D] at their positions; cos and sin [B, N, D]."""
    cos, sin = (part.unsqueeze(1) for part in rotation)
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin
