"""Run the reader's layers over a slab cache with the compiled kernels: a layer, or all of them, is one call."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from desk_rag.model import sdpa
from desk_rag.model.embedded import kernels
from desk_rag.model.embedded.compiled_linear import CompiledLinear
from desk_rag.model.packed_linear import PackedPart

_HEAD = 64
"""The only width of a head."""
_MOST_INNER, _MOST_WIDTH = 1536, 1024
_LEAST_ROWS = 48
"""Fewest rows of a part, where a pass is shared out among threads."""
_KEPT = 1 << 20
"""Numbers of work space that are kept between passes."""

_RunLayers = Callable[[int, int, range, torch.Tensor | None, torch.Tensor], None]
"""(first layer, number of layers, rows, memory for their keys before RoPE, work space)."""


class _Layer(ctypes.Structure):
    """`Layer` in kernels.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("before_attention", "query_norm", "key_norm", "before_mlp")),
        *((name, kernels.Matrix) for name in ("inward", "outward", "widen", "narrow")),
    )


class _Slab(ctypes.Structure):
    """`Slab` in kernels.c."""

    _fields_ = (("keys", ctypes.c_void_p), ("values", ctypes.c_void_p), ("capacity", ctypes.c_int64))


class _Shape(ctypes.Structure):
    """`Shape` in kernels.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("width", "heads", "kv_heads", "inner")),
        ("eps", ctypes.c_float),
    )


class CompiledLayers:
    """The layers of one decoder. Safe to use from several threads, each with a cache of its own."""

    def __init__(self, library: ctypes.CDLL, decoder: Any) -> None:
        """Use `of`, which checks that the decoder is served."""
        config = decoder.config
        self._library, self._config, self._modules = library, config, list(decoder.layers)
        self._shape = _Shape(
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.intermediate_size,
            config.rms_norm_eps,
        )
        self._kept: list[torch.Tensor] = []
        """Norms; their addresses are in `_layers`."""
        self._layers = (_Layer * len(self._modules))(*map(self._layer, self._modules))
        self._inner = [part for layer in self._modules for part in layer.modules() if part is not layer]
        self._key_norms = [layer.self_attn.k_norm for layer in self._modules]
        self._work: list[torch.Tensor] = []

    @classmethod
    def of(cls, decoder: Any) -> CompiledLayers | None:
        """The layers of a decoder whose matrices are compiled; None for others."""
        library, config = kernels.library(), decoder.config
        parts = [part for layer in decoder.layers for part in _matrices(layer)]
        if library is None or not all(isinstance(part, CompiledLinear) for part in parts):
            return None
        fits = config.hidden_size <= _MOST_WIDTH and config.intermediate_size <= _MOST_INNER
        return cls(library, decoder) if fits and config.head_dim == _HEAD else None

    def serve(self, x: torch.Tensor, cache: Any, mask: torch.Tensor | None, options: dict[str, Any]) -> bool:
        """True if the pass is a plain one: a causal one over whole slabs in fp32 that nobody looks into."""
        if mask is not None or options:
            return False
        if x.shape[0] != 1 or x.requires_grad or self._config._attn_implementation != sdpa.NAME:
            return False
        if not all(getattr(layer, "only_appends", False) and _is_plain(layer.key_slab) for layer in cache.layers):
            return False
        if any(layer._forward_hooks for layer in self._modules):
            return False
        looked_into = [part for part in self._inner if part._forward_hooks or part._forward_pre_hooks]
        return not looked_into or all(part in self._key_norms and not part._forward_pre_hooks for part in looked_into)

    def run(self, x: torch.Tensor, cache: Any, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Append the tokens x [1, N, E] to the cache; the last layer's output, in the memory of x.

        Hooks in front of layers are called, as those behind key norms are, with the keys before RoPE.
        """
        cosines, sines = (part[0].contiguous() for part in rotation)
        slabs = _slabs(cache)
        rows, start = x.shape[1], cache.layers[0].length
        assert start + rows <= slabs[0].capacity, "slab too small: the engine plans its capacity"

        def run_layers(first: int, count: int, own: range, bare: torch.Tensor | None, work: torch.Tensor) -> None:
            self._library.run_layers(
                ctypes.addressof(self._layers[first]), ctypes.addressof(slabs[first]), count,
                ctypes.addressof(self._shape), x[:, own.start].data_ptr(), len(own), start + own.start,
                cosines[own.start].data_ptr(), sines[own.start].data_ptr(),
                None if bare is None else bare.data_ptr(), work.data_ptr(),
            )  # fmt: skip

        if any(layer._forward_pre_hooks for layer in self._modules):
            self._run_one_by_one(run_layers, x)
        else:
            self._run_parts(run_layers, rows)
        for slab in cache.layers:
            slab.set_length(start + rows)
        return x

    def _run_one_by_one(self, run_layers: _RunLayers, x: torch.Tensor) -> None:
        rows = x.shape[1]
        with self._work_for(rows) as work:
            for index, (module, norm) in enumerate(zip(self._modules, self._key_norms, strict=True)):
                for before in tuple(module._forward_pre_hooks.values()):
                    before(module, (x,))
                bare = self._bare(1, rows) if norm._forward_hooks else None
                run_layers(index, 1, range(rows), bare, work)
                for behind in tuple(norm._forward_hooks.values()):
                    behind(norm, (), bare)

    def _run_parts(self, run_layers: _RunLayers, rows: int) -> None:
        """Run all layers, and call the hooks behind key norms; many rows are shared out among torch's threads."""
        layers, threads = len(self._modules), torch.get_num_threads()
        parts = _parts(rows, threads)
        is_tapped = any(norm._forward_hooks for norm in self._key_norms)
        bare = [self._bare(layers, len(part)) if is_tapped else None for part in parts]
        if len(parts) == 1:
            with self._work_for(rows) as work:
                run_layers(0, layers, parts[0], bare[0], work)
        else:
            self._share_out(run_layers, parts, bare, threads)
        for index, norm in enumerate(self._key_norms):
            for behind in tuple(norm._forward_hooks.values()):
                behind(norm, (), torch.cat([part[index : index + 1] for part in bare if part is not None], 1))

    def _share_out(
        self, run_layers: _RunLayers, parts: Sequence[range], bare: Sequence[torch.Tensor | None], threads: int
    ) -> None:
        """Let each thread take parts in turn; a layer of a part waits for that layer of the part in front of it."""
        layers = range(len(self._modules))
        is_read = [[threading.Event() for _ in layers] for _ in parts]
        works = [torch.empty(self._library.work_size(ctypes.addressof(self._shape), len(part))) for part in parts]

        def read(thread: int) -> None:
            for number in range(thread, len(parts), threads):
                own = bare[number]
                for layer in layers:
                    if number:
                        is_read[number - 1][layer].wait()
                    tapped = None if own is None else own[layer]
                    run_layers(layer, 1, parts[number], tapped, works[number])
                    is_read[number][layer].set()

        with ThreadPoolExecutor(threads) as pool:
            deque(pool.map(read, range(threads)), 0)

    def _bare(self, layers: int, rows: int) -> torch.Tensor:
        """Memory for keys before RoPE."""
        return torch.empty(layers, rows, self._shape.kv_heads, _HEAD)

    @contextmanager
    def _work_for(self, rows: int) -> Iterator[torch.Tensor]:
        """Work space for a pass over so many tokens; that of short passes is kept, because new memory is slow."""
        work = self._work.pop() if self._work else torch.empty(0)
        needed = self._library.work_size(ctypes.addressof(self._shape), rows)
        yield work if work.numel() >= needed else (work := torch.empty(needed))
        if work.numel() <= _KEPT:
            self._work.append(work)

    def _layer(self, layer: Any) -> _Layer:
        attention = layer.self_attn
        norms = [layer.input_layernorm, attention.q_norm, attention.k_norm, layer.post_attention_layernorm]
        weights = [norm.weight.detach().contiguous() for norm in norms]
        self._kept += weights
        return _Layer(*(weight.data_ptr() for weight in weights), *(part.matrix for part in _matrices(layer)))


def _parts(rows: int, threads: int) -> list[range]:
    """Rows as parts that several threads read, one behind the other; one part for few rows or one thread."""
    count = min(2 * threads, rows // _LEAST_ROWS) if threads > 1 else 1
    ends = [rows * number // max(count, 1) for number in range(max(count, 1) + 1)]
    return [range(first, end) for first, end in itertools.pairwise(ends)]


def _slabs(cache: Any) -> Any:
    slabs = [(layer.key_slab, layer.value_slab) for layer in cache.layers]
    return (_Slab * len(slabs))(*(_Slab(keys.data_ptr(), values.data_ptr(), keys.shape[2]) for keys, values in slabs))


def _matrices(layer: Any) -> list[Any]:
    """Matrices of a layer, those of one input as one."""
    attention, mlp = layer.self_attn, layer.mlp
    parts = [attention.q_proj, attention.o_proj, mlp.gate_proj, mlp.down_proj]
    return [part.beside.whole if isinstance(part, PackedPart) else part for part in parts]


def _is_plain(slab: torch.Tensor) -> bool:
    return slab.dtype is torch.float32 and slab.device.type == "cpu" and slab.shape[0] == 1 and slab.is_contiguous()
