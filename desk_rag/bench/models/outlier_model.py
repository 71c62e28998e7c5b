"""A random model of Qwen2's shape whose key biases are as large as those found in Qwen2.5-7B.

Published norms of the `k_proj` bias are about 605 in the first layer, 921 in the last and 22
in between. Nearly all of it is planted in the slowest rotary pairs of a few channels: there a bias turns so little
that it adds almost the same to every score, which is how a trained model can live with it.
"""

from __future__ import annotations

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from desk_rag.bench.models.tiny_models import VOCABULARY, byte_prompt
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.loading import wrap

FIRST, MIDDLE, LAST = 605.0, 22.0, 921.0
"""Norms of the key bias by layer."""
_SPREAD = 4
"""Slowest rotary pairs of every head that carry the bias."""


def planted_qwen2(num_layers: int = 4, head_dim: int = 64, seed: int = 11) -> LanguageModel:
    """Four layers, 8 query heads over 2 key heads; queries small in the planted channels, so that attention works."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=8 * head_dim, intermediate_size=1024, num_hidden_layers=num_layers,
        num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, pad_token_id=0, bos_token_id=None, eos_token_id=2,
    )  # fmt: skip
    module = Qwen2ForCausalLM(config)
    planted = [half * (head_dim // 2) + head_dim // 2 - 1 - index for index in range(_SPREAD) for half in (0, 1)]
    with torch.no_grad():
        module.model.embed_tokens.weight.mul_(6.0)
        module.lm_head.weight.mul_(6.0)
        for index, layer in enumerate(module.model.layers):
            attention = layer.self_attn
            attention.q_proj.weight.mul_(3.0)
            attention.k_proj.weight.mul_(3.0)
            attention.v_proj.weight.mul_(3.0)
            attention.o_proj.weight.mul_(3.0)
            norm = FIRST if index == 0 else LAST if index == num_layers - 1 else MIDDLE
            bias = torch.randn(2, head_dim) * 0.02
            bias[:, planted] += torch.randn(2, len(planted))
            attention.k_proj.bias.copy_((bias * (norm / bias.norm())).flatten())
    return wrap(module, byte_prompt(), name="planted-qwen2", directory=None)
