"""BERT by the compiled kernels, a text at a time and without filling up.

In bfloat16 on a CPU with AMX. On others, what is multiplied are whole numbers of 13 bits, with a scale per row: half
the work of fp32, and a third of bfloat16's errors.
"""

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
_MOST, _MOST_INPUTS = 4095, 1536
"""As in products_wide.h and matrix.h."""


class _HalfMatrix(ctypes.Structure):
    """`HalfMatrix` in bert_kernels.c."""

    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("outputs", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
    )


_NORMS = tuple(
    (name, ctypes.c_void_p) for name in ("attention_weight", "attention_bias", "output_weight", "output_bias")
)
_MATRICES = ("inward", "outward", "widen", "narrow")


class _HalfLayer(ctypes.Structure):
    """`BertLayer` in bert_kernels.c."""

    _fields_ = (*((name, _HalfMatrix) for name in _MATRICES), *_NORMS)


class _WideLayer(ctypes.Structure):
    """`BertLayer` in bert_wide.c."""

    _fields_ = (*((name, kernels.Matrix) for name in _MATRICES), *_NORMS)


class CompiledBert(nn.Module):
    """Stands where a `Bert` stood and shares its embeddings and norms. For inference only, on one thread."""

    def __init__(self, library: ctypes.CDLL, bert: Bert) -> None:
        """Use `fastest`, which checks that the BERT is served."""
        super().__init__()
        self.config, self.embeddings, self._library = bert.config, bert.embeddings, library
        self._kept: list[Tensor] = []
        """Tensors whose addresses are in `_layers`."""
        layers = list(bert.encoder["layer"].children())
        self._in_half = hasattr(library, "pack_half")
        kind: Any = _HalfLayer if self._in_half else _WideLayer
        self._layers = (kind * len(layers))(*(kind(*self._layer(layer)) for layer in layers))

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
        width, inner = config.hidden_size, config.intermediate_size
        if self._in_half:
            work = torch.zeros((length + _PANEL) * (width + max(3 * width, inner)), dtype=torch.bfloat16)
        else:
            work = torch.empty(self._library.bert_work_size(width, inner, length), dtype=torch.uint8)
        self._library.run_bert(
            self._layers, len(self._layers), config.hidden_size, config.num_attention_heads, config.layer_norm_eps,
            address, length, work.data_ptr(),
        )  # fmt: skip

    def _layer(self, layer: Any) -> list[Any]:
        own, output = layer.attention["self"], layer.attention["output"]
        groups = (own.query, own.key, own.value), (output.dense,), (layer.intermediate["dense"],), (layer.output.dense,)
        norms = [part for norm in (output.LayerNorm, layer.output.LayerNorm) for part in (norm.weight, norm.bias)]
        return [*(self._packed(*group) for group in groups), *(self._address(norm.detach().float()) for norm in norms)]

    def _packed(self, *linears: nn.Linear) -> _HalfMatrix | kernels.Matrix:
        weight = torch.cat([one.weight.detach() for one in linears])
        bias = torch.cat([one.bias.detach() for one in linears])
        if self._in_half:
            weight, bias = weight.bfloat16(), bias.bfloat16().float()
            packed = torch.empty_like(weight)
            self._library.pack_half(weight.data_ptr(), *weight.shape, packed.data_ptr())
            return _HalfMatrix(self._address(packed), self._address(bias), *weight.shape)
        scales = torch.maximum(weight.amax(1), weight.amin(1).neg_()).div_(_MOST).clamp_min_(1e-30)
        codes = weight.div_(scales[:, None]).round_().to(torch.int16)
        packed = torch.empty_like(codes)
        self._library.pack_wide(codes.data_ptr(), *codes.shape, packed.data_ptr())
        return kernels.Matrix(self._address(packed), self._address(scales), self._address(bias), *codes.shape)

    def _address(self, tensor: Tensor) -> int:
        self._kept.append(tensor.contiguous())
        return self._kept[-1].data_ptr()


def fastest(bert: Bert, *, in_half: bool) -> CompiledBert | Bf16Bert | Bert:
    """`bert` by the compiled kernels; by torch without them or if its shape is another, in bfloat16 if `in_half`."""
    library = kernels.library()
    if library is not None and _is_served(bert):
        return CompiledBert(library, bert)
    return Bf16Bert(bert) if in_half else bert


def _is_served(bert: Bert) -> bool:
    config = bert.config
    fits = config.max_position_embeddings <= _LONGEST and config.intermediate_size <= _MOST_INPUTS
    fits = fits and config.hidden_size == _HEAD * config.num_attention_heads
    return fits and config.hidden_size % _PANEL == config.intermediate_size % _PANEL == 0
