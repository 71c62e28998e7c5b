"""BERT in bfloat16 by the compiled kernels, a text at a time and without filling up; for CPUs with AMX."""

from __future__ import annotations

import ctypes
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from desk_rag.model.embedded import kernels
from desk_rag.model.embedded.bert import Bert
from desk_rag.model.embedded.bert_bf16 import Bf16Bert

_PANEL, _HEAD = 32, 32
_LONGEST = 512
"""As in bert_kernels.c."""


class _Matrix(ctypes.Structure):
    """`HalfMatrix` in bert_kernels.c."""

    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("outputs", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
    )


class _Layer(ctypes.Structure):
    """`BertLayer` in bert_kernels.c."""

    _fields_ = (
        *((name, _Matrix) for name in ("inward", "outward", "widen", "narrow")),
        *((name, ctypes.c_void_p) for name in ("attention_weight", "attention_bias", "output_weight", "output_bias")),
    )


class CompiledBert(nn.Module):
    """Stands where a `Bert` stood and shares its embeddings and norms. For inference only, on one thread."""

    def __init__(self, library: ctypes.CDLL, bert: Bert) -> None:
        """Use `in_bf16`, which checks that the BERT is served."""
        super().__init__()
        self.config, self.embeddings, self._library = bert.config, bert.embeddings, library
        self._kept: list[Tensor] = []
        """Tensors whose addresses are in `_layers`."""
        layers = list(bert.encoder["layer"].children())
        self._layers = (_Layer * len(layers))(*map(self._layer, layers))

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return torch.device("cpu")

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor | None = None
    ) -> SimpleNamespace:
        """As `Bert.forward`; rows are filled up at their ends only, and states there mean nothing."""
        x = self.embeddings(input_ids, token_type_ids).contiguous()
        texts, longest = input_ids.shape
        lengths = [longest] * texts if attention_mask is None else attention_mask.sum(1).tolist()
        addresses = [text.data_ptr() for text in x]
        threads = min(texts, torch.get_num_threads())
        if threads > 1:
            with ThreadPoolExecutor(threads) as pool:
                deque(pool.map(self._run, addresses, lengths), 0)
        else:
            deque(map(self._run, addresses, lengths), 0)
        return SimpleNamespace(last_hidden_state=x)

    def _run(self, address: int, length: int) -> None:
        """Run the layers over the states of one text, in place."""
        config = self.config
        widest = max(3 * config.hidden_size, config.intermediate_size)
        work = torch.zeros((length + _PANEL) * (config.hidden_size + widest), dtype=torch.bfloat16)
        self._library.run_bert(
            self._layers, len(self._layers), config.hidden_size, config.num_attention_heads, config.layer_norm_eps,
            address, length, work.data_ptr(),
        )  # fmt: skip

    def _layer(self, layer: Any) -> _Layer:
        own, output = layer.attention["self"], layer.attention["output"]
        norms = [part for norm in (output.LayerNorm, layer.output.LayerNorm) for part in (norm.weight, norm.bias)]
        return _Layer(
            self._packed(own.query, own.key, own.value), self._packed(output.dense),
            self._packed(layer.intermediate["dense"]), self._packed(layer.output.dense),
            *(self._address(norm.detach().float()) for norm in norms),
        )  # fmt: skip

    def _packed(self, *linears: nn.Linear) -> _Matrix:
        weight = torch.cat([one.weight.detach() for one in linears]).bfloat16()
        packed = torch.empty_like(weight)
        self._library.pack_half(weight.data_ptr(), *weight.shape, packed.data_ptr())
        bias = torch.cat([one.bias.detach() for one in linears]).bfloat16().float()
        return _Matrix(self._address(packed), self._address(bias), *weight.shape)

    def _address(self, tensor: Tensor) -> int:
        self._kept.append(tensor.contiguous())
        return self._kept[-1].data_ptr()


def in_bf16(bert: Bert) -> CompiledBert | Bf16Bert:
    """`bert` by the compiled kernels; by torch without them, without AMX, or if its shape is another."""
    library, config = kernels.library(), bert.config
    if library is None or not hasattr(library, "run_bert"):
        return Bf16Bert(bert)
    fits = config.max_position_embeddings <= _LONGEST and config.hidden_size == _HEAD * config.num_attention_heads
    fits = fits and config.hidden_size % _PANEL == config.intermediate_size % _PANEL == 0
    return CompiledBert(library, bert) if fits else Bf16Bert(bert)
