"""The part of a model for text and images that reads and writes text, as a model of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from desk_rag.errors import UnsupportedModel


class TextPart(torch.nn.Module):
    """A decoder and its output matrix, called as transformers' ...ForCausalLM are; the rest of the model is dropped."""

    base_model_prefix = "model"

    def __init__(self, decoder: Any, head: Any) -> None:
        super().__init__()
        self.model, self.lm_head = decoder, head
        self.config: Any = decoder.config

    def forward(self, input_ids: torch.Tensor, *, logits_to_keep: int = 0, **options: Any) -> Any:
        """Logits of the last `logits_to_keep` tokens; 0 for all."""
        hidden = self.model(input_ids=input_ids, **options).last_hidden_state
        logits = self.lm_head(hidden[:, -logits_to_keep:])
        cap = getattr(self.config, "final_logit_softcapping", None)
        return SimpleNamespace(logits=logits if cap is None else torch.tanh(logits / cap) * cap)

    def get_input_embeddings(self) -> Any:
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, embeddings: Any) -> None:
        self.model.set_input_embeddings(embeddings)

    def get_output_embeddings(self) -> Any:
        return self.lm_head

    def set_attn_implementation(self, name: str) -> None:
        self.model.set_attn_implementation(name)


def text_part(module: Any) -> Any:
    """`module` itself, or the part of it that reads and writes text. Raises UnsupportedModel."""
    decoder = getattr(module, "model", None)
    if hasattr(decoder, "layers"):
        return module
    inner = getattr(decoder, "language_model", None) or getattr(decoder, "text_model", None)
    head = module.get_output_embeddings()
    if hasattr(inner, "layers") and head is not None:
        return TextPart(inner, head)
    reads_more = hasattr(module.config, "vision_config") or hasattr(module.config, "audio_config")
    raise UnsupportedModel(
        f"'{module.config.model_type}' is not built as a stack of layers with attention, in the form that newer models "
        "share, so its chunk KV cannot be moved.",
        remedy="Take the text-only model of its family, where there is one."
        if reads_more else "`desk-rag help models` lists what works. The embedded reader is the default.",
    )  # fmt: skip
