"""The embedder's BERT as a plain torch module, without importing transformers.

Names and operations are those of transformers' BertModel without a pooling layer, so that weights fit both and the
results are equal bit for bit. It is for inference: there is no dropout. The pointer is trained on transformers' class.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from desk_rag.model.checkpoint import row_int8
from desk_rag.model.embedded.int8_linear import coded_rows, place_int8


@dataclass(frozen=True)
class BertShape:
    """Sizes from config.json, by the names that transformers gives them."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float

    @classmethod
    def read(cls, file: Path) -> BertShape:
        """Read config.json. Raises OSError, ValueError or KeyError."""
        fields = json.loads(file.read_text(encoding="utf-8"))
        if fields["model_type"] != "bert" or fields["hidden_act"] != "gelu":
            raise ValueError(f"{file} is not that of a BERT with GELU")
        return cls(**{name: fields[name] for name in cls.__dataclass_fields__})


def unfilled_embedding(rows: int, width: int) -> nn.Embedding:
    """An embedding without random numbers, for which torch would import its compiler on the meta device."""
    embedding: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(rows, width))  # type: ignore[no-untyped-call]
    return embedding


class _Embeddings(nn.Module):
    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.word_embeddings, self.position_embeddings, self.token_type_embeddings = (
            unfilled_embedding(rows, shape.hidden_size)
            for rows in (shape.vocab_size, shape.max_position_embeddings, shape.type_vocab_size)
        )
        self.LayerNorm = nn.LayerNorm(shape.hidden_size, eps=shape.layer_norm_eps)

    def forward(self, ids: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        positions = self.position_embeddings.weight[None, : ids.shape[1]]
        out: torch.Tensor = self.LayerNorm(self.word_embeddings(ids) + self.token_type_embeddings(kinds) + positions)
        return out


class _SelfAttention(nn.Module):
    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.heads = shape.num_attention_heads
        self.query = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.key = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.value = nn.Linear(shape.hidden_size, shape.hidden_size)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        by_heads = (*x.shape[:-1], self.heads, -1)
        query, key, value = (part(x).view(by_heads).transpose(1, 2) for part in (self.query, self.key, self.value))
        attended = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return attended.transpose(1, 2).reshape(x.shape)


class _AddNorm(nn.Module):
    """LayerNorm(dense(x) + residual)."""

    def __init__(self, width: int, shape: BertShape) -> None:
        super().__init__()
        self.dense = nn.Linear(width, shape.hidden_size)
        self.LayerNorm = nn.LayerNorm(shape.hidden_size, eps=shape.layer_norm_eps)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.LayerNorm(self.dense(x) + residual)
        return out


class _Layer(nn.Module):
    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        output = _AddNorm(shape.hidden_size, shape)
        self.attention = nn.ModuleDict({"self": _SelfAttention(shape), "output": output})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(shape.hidden_size, shape.intermediate_size)})
        self.output = _AddNorm(shape.intermediate_size, shape)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        x = self.attention["output"](self.attention["self"](x, mask), x)
        out: torch.Tensor = self.output(gelu(self.intermediate["dense"](x)), x)
        return out


class Bert(nn.Module):
    """The transformer of an embedder, called as transformers' BertModel is."""

    def __init__(self, config: BertShape) -> None:
        super().__init__()
        self.config = config
        self.embeddings = _Embeddings(config)
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))})

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        device: torch.device = self.embeddings.word_embeddings.weight.device
        return device

    def forward(
        self, input_ids: torch.Tensor, token_type_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> SimpleNamespace:
        """Return an object with `last_hidden_state` [B, N, E]; the mask [B, N] is 0 where a row is filled up."""
        x = self.embeddings(input_ids, token_type_ids)
        mask = None
        if attention_mask is not None and not bool(attention_mask.all()):
            mask = attention_mask[:, None, None, :].bool().expand(-1, -1, input_ids.shape[1], -1)
        for layer in self.encoder["layer"].children():
            x = layer(x, mask)
        return SimpleNamespace(last_hidden_state=x)


def load_bert(folder: Path) -> Bert:
    """Load a BERT from config.json and model.safetensors, in fp32 on the CPU.

    Raises OSError, ValueError, KeyError, RuntimeError or SafetensorError.
    """
    return bert_of(BertShape.read(folder / "config.json"), row_int8.read(folder / "model.safetensors"))


def bert_of(config: BertShape, weights: Mapping[str, torch.Tensor]) -> Bert:
    """A BERT of these weights. Raises RuntimeError if they are not those of one."""
    with torch.device("meta"):
        bert = Bert(config)
    bert.load_state_dict(weights, assign=True)
    return bert


def int8_twin(bert: Bert, folder: Path | None) -> Bert:
    """A BERT whose matrices are int8, and which shares everything else with `bert`; for CPUs that multiply int8.

    The codes are those in `folder`, from which `bert` was loaded; without one its matrices are coded.
    """
    with torch.device("meta"):
        twin = Bert(bert.config)
    tensors = _coded(bert) if folder is None else row_int8.read_codes(folder / "model.safetensors")
    place_int8(twin, tensors, row_int8.SCALE)
    own = twin.state_dict().keys()
    twin.load_state_dict({name: tensor for name, tensor in bert.state_dict().items() if name in own}, assign=True)
    return twin.eval().requires_grad_(False)


def _coded(bert: Bert) -> dict[str, torch.Tensor]:
    tensors = dict(bert.state_dict())
    for name, module in bert.named_modules():
        if isinstance(module, nn.Linear):
            weight = f"{name}.weight"
            tensors[weight], tensors[weight + row_int8.SCALE] = coded_rows(module.weight)
    return tensors
