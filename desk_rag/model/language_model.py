"""A loaded language model with its shape and identity."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from desk_rag.model import support as model_support
from desk_rag.model.embedded import threads
from desk_rag.model.layers.attention_layout import AttentionLayout
from desk_rag.model.memory import steps
from desk_rag.model.prompt import PromptFormat


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The shape and identity of a loaded model."""

    name: str
    support: model_support.Support
    layout: AttentionLayout
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_parameters: int
    weights_fingerprint: str
    tokenizer_fingerprint: str
    weight_quantization: str
    """'none', 'nf4' or 'int8'; or the method by which a checkpoint came quantised."""
    dtype: torch.dtype
    """Compute dtype; the shared prefix's KV is kept in it."""
    config_json: str
    """Canonical JSON of the configuration: RoPE parameters, windows, norms, scaling."""
    adapter: str = ""
    """Fingerprint of the adapter the weights carry (see adapters.py); empty for none."""

    @property
    def max_context(self) -> int:
        """Largest number of positions in one context."""
        return self.support.max_context

    @property
    def fp16_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values in fp16 or bf16."""
        return 4 * self.num_layers * self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """A model ready to run. Not thread-safe: callers take turns (device_lock.py)."""

    spec: ModelSpec
    module: Any
    """A transformers ...ForCausalLM in eval mode."""
    prompt: PromptFormat
    device: torch.device

    @property
    def is_embedded(self) -> bool:
        """True if this is the embedded reader, for which evidence verification is calibrated."""
        return self.spec.name == "embedded" and not self.spec.adapter

    @property
    def decoder_layers(self) -> list[torch.nn.Module]:
        return list(self.module.model.layers)

    def forward(self, token_ids: torch.Tensor, cache: Any, start: int, *, logits: bool) -> torch.Tensor | None:
        """Run ids [N] at positions start..start+N-1 over `cache`; logits [vocab] of the last one, or None.

        In steps where memory is too short for all of them at once (see `memory.steps`).
        """
        count = len(token_ids)
        if count <= steps.SMALLEST:
            return self.forward_step(token_ids, cache, start, logits=logits)

        def run(begin: int, end: int) -> torch.Tensor | None:
            wanted = logits and end == count
            lengths = [layer.get_seq_length() for layer in cache.layers]
            try:
                return self.forward_step(token_ids[begin:end], cache, start + begin, logits=wanted)
            except Exception:
                for layer, length in zip(cache.layers, lengths, strict=True):
                    appended = layer.get_seq_length() - length  # by layers before the failure
                    if appended:
                        layer.crop(-appended)
                raise

        return steps.in_steps(run, count, steps.tokens_at_once(self, start, count), self.device)

    def forward_step(self, token_ids: torch.Tensor, cache: Any, start: int, *, logits: bool) -> torch.Tensor | None:
        """As `forward`, always in one pass.

        Positions equal cache slots by construction; they are passed all the same, because RoPE reads them.
        """
        positions = torch.arange(start, start + token_ids.shape[0], device=self.device)[None]
        with torch.inference_mode(), self._threads(len(token_ids)):
            if not logits:
                self.module.model(token_ids[None], past_key_values=cache, position_ids=positions, use_cache=True)
                return None
            output = self.module(
                token_ids[None], past_key_values=cache, position_ids=positions, logits_to_keep=1, use_cache=True
            )
        result: torch.Tensor = output.logits[0, -1]
        return result

    def forward_rows(self, token_ids: torch.Tensor, cache: Any, start: int) -> None:
        """Run ids [B, N] at positions start..start+N-1 of each row over `cache`, whose slabs have B rows."""
        batch, count = token_ids.shape
        positions = torch.arange(start, start + count, device=self.device).expand(batch, -1)
        with torch.inference_mode(), self._threads(batch * count):
            self.module.model(token_ids, past_key_values=cache, position_ids=positions, use_cache=True)

    def forward_all(self, token_ids: torch.Tensor, cache: Any, start: int) -> torch.Tensor:
        """As `forward`, with the logits [N, vocab] of every token: for scoring answers, not for making them."""
        positions = torch.arange(start, start + token_ids.shape[0], device=self.device)[None]
        with torch.inference_mode(), self._threads(len(token_ids)):
            output = self.module(token_ids[None], past_key_values=cache, position_ids=positions, use_cache=True)
        result: torch.Tensor = output.logits[0]
        return result

    def _threads(self, rows: int) -> AbstractContextManager[None]:
        return threads.for_rows(rows, self.spec.num_parameters) if self.device.type == "cpu" else nullcontext()
