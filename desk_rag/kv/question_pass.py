"""A forward pass over a slab cache with as few launches as it takes: the question's prefill, a decode step, a prompt.

Knows the layers of plain pre-norm decoders and CUDA graphs; knows no file, no chunk and no text. The model's own
modules do the matrix work with the model's own weights; what is left out is everything transformers decides anew in
every layer of every pass, and the copies that its attention makes of grouped keys. A question through 28 layers is
more than a thousand launches there, and on a fast GPU issuing them can take longer than running them.

On a GPU everything between two attentions becomes one CUDA graph per number of tokens (rounded up to a bucket,
captured at its first use). The attentions are launched one by one between the graphs, since their length differs from
question to question; so a layer's chunks may still arrive while the layer before is computed. Elsewhere, and for long
passes, where launches do not matter, the same functions run one after the other.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention

from desk_rag.kv.cache import SlabLayer
from desk_rag.kv.rope import RotaryTables
from desk_rag.kv.stitch import has_sliding_layers
from desk_rag.model import LanguageModel

_log = logging.getLogger(__name__)
_BUCKETS = (1, 16, 32, 48, 64, 96, 128, 192, 256)
"""Numbers of tokens that graphs are captured for; a longer pass is bound by its arithmetic, not by its launches."""
_PLAIN = frozenset({"llama", "mistral", "qwen2", "qwen3"})


class Attention(Protocol):
    """Causal attention of the last N of S tokens; see `attend` for shapes."""

    def __call__(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor: ...


def supports(model: LanguageModel) -> bool:
    """True if the layers are what this pass computes: RMS norms before, no sliding windows, no soft caps."""
    return model.spec.support.model_type in _PLAIN and not has_sliding_layers(model)


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """query [B, heads, N, D] over keys and values [B, H, S, D], of which the last N are its own -> [B, N, heads * D].

    On a GPU FlashAttention aligns the causal mask to the end and divides long keys among the multiprocessors; torch's
    public function would align it to the start, so the operator is called by its name.
    """
    batch, heads, count, dim = query.shape
    if query.dtype in (torch.bfloat16, torch.float16) and _has_flash(query.device, dim):
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        out: torch.Tensor = flash(query, keys, values, 0.0, True, return_debug_mask=False, scale=dim**-0.5)[0]
        return out.transpose(1, 2).reshape(batch, count, heads * dim)
    groups = heads // keys.shape[1]
    length = keys.shape[2]
    own = torch.arange(length - count, length, device=query.device).repeat(groups)
    mask = torch.arange(length, device=query.device)[None] <= own[:, None]
    packed = query.reshape(batch, keys.shape[1], groups * count, dim)
    out = scaled_dot_product_attention(packed, keys, values, attn_mask=mask)
    return out.reshape(batch, heads, count, dim).transpose(1, 2).reshape(batch, count, heads * dim)


def _has_flash(device: torch.device, dim: int) -> bool:
    """True where torch's FlashAttention runs: not before Ampere, and not for every head."""
    if device.type != "cuda" or dim % 8 or dim > 256:
        return False
    return _generation(torch.cuda.current_device() if device.index is None else device.index) >= 8


@functools.cache
def _generation(index: int) -> int:
    """First number of a GPU's compute capability."""
    return torch.cuda.get_device_capability(index)[0]


def attend_whole(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """As `attend` for whole prompts (N = S), by whichever of its backends torch prefers."""
    assert query.shape[2] == keys.shape[2], "only for passes that begin at position 0"
    out = scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).flatten(2)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a pass of N tokens reads; on a GPU the same memory at every replay."""

    ids: torch.Tensor
    """int64 [B, N]."""
    slots: torch.Tensor
    """int64 [N]: where the tokens' keys and values go."""
    cos: torch.Tensor
    """[N, D] in the compute dtype, both halves."""
    sin: torch.Tensor
    """[N, D], the first half negated."""
    last: torch.Tensor
    """int64 [1]: the row whose logits are wanted."""


@dataclass(frozen=True, slots=True)
class _Captured:
    """The graphs of one bucket: piece i is what lies between the attentions of layers i - 1 and i."""

    inputs: _Inputs
    attended: torch.Tensor
    """[B, N, heads * D]: what every piece but the first reads."""
    pieces: tuple[torch.cuda.CUDAGraph, ...]
    queries: tuple[torch.Tensor, ...]
    logits: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Packed:
    """Projections of one input that lie side by side in memory, and so are one matrix product instead of three or two.

    At the width of a question a product of few columns leaves most of a GPU idle.
    """

    qkv: torch.Tensor
    """[(heads + 2 H) * D, E]."""
    qkv_bias: torch.Tensor | None
    gate_up: torch.Tensor
    """[2 I, E]."""

    @classmethod
    def of(cls, layer: Any) -> _Packed | None:
        """Move the layer's projections side by side, once; its modules keep their weights as views and work as before.

        None where they are not plain matrices (quantised weights) or have biases on some only.
        """
        attention, mlp = layer.self_attn, layer.mlp
        inward = [attention.q_proj, attention.k_proj, attention.v_proj]
        widening = [mlp.gate_proj, mlp.up_proj]
        if any(type(module) is not torch.nn.Linear for module in (*inward, *widening)):
            return None
        biased = [module.bias is not None for module in inward]
        if any(biased) != all(biased) or any(module.bias is not None for module in widening):
            return None
        with torch.inference_mode(mode=False), torch.no_grad():
            bias = torch.cat([module.bias for module in inward]) if all(biased) else None
            return cls(_side_by_side(inward), bias, _side_by_side(widening))


class QuestionPass:
    """Runs one model over one cache, bound to its slabs (graphs know addresses). No more thread-safe than the model."""

    def __init__(
        self, model: LanguageModel, layers: Sequence[SlabLayer], tables: RotaryTables, *, graphs: bool = True
    ) -> None:
        """`layers` have slabs [B, H, capacity, D]; B questions of equal length are then run side by side.

        Moves the model's projections (see `_Packed`), which takes no more memory than one layer's for a moment.
        """
        assert supports(model), "this model needs its own forward pass"
        assert len(tables.cos) == 1 and 2 * tables.cos[0].shape[1] == model.spec.head_dim, "partial or double rotary"
        self._model = model
        self._layers = model.decoder_layers
        self._packed = [_Packed.of(layer) for layer in self._layers]
        if model.device.type == "cuda":
            torch.cuda.empty_cache()  # the places that the projections moved from
        self._keys = [layer.key_slab for layer in layers]
        self._values = [layer.value_slab for layer in layers]
        self._batch, _, self._capacity, _ = self._keys[0].shape
        cos, sin = tables.cos[0], tables.sin[0]
        # Rounded to the compute dtype as transformers rounds them for the model's own tokens.
        self._cos = torch.cat((cos, cos), -1).to(model.spec.dtype)
        self._sin = torch.cat((-sin, sin), -1).to(model.spec.dtype)
        # LLM.int8 looks for outliers on the host in every product, so a capture of it can only fail, and a failed one
        # may leave torch's allocator as if it still went on.
        recordable = model.device.type == "cuda" and model.spec.weight_quantization != "int8"
        self._graphs = graphs and recordable
        self._captured: dict[int, _Captured] = {}

    @property
    def uses_graphs(self) -> bool:
        """False without a GPU, when told so, and after a capture has failed."""
        return self._graphs

    def prepare(self, count: int) -> None:
        """Capture now what a pass of `count` tokens will replay; without it the first such pass takes longer."""
        bucket = next((size for size in _BUCKETS if size >= count), 0)
        if self._graphs and bucket and bucket <= self._capacity and bucket not in self._captured:
            with torch.inference_mode():
                self._captured_for(bucket)

    def run(
        self,
        token_ids: torch.Tensor,
        start: int,
        *,
        before: Callable[[int], None] | None = None,
        attention: Attention = attend,
    ) -> torch.Tensor:
        """Run ids int64 [B, N] at slots and positions start..start+N-1; logits [B, vocab] of the last token.

        `before` is called with each layer's number in front of its attention and must leave slots 0..start-1 of that
        layer filled in the current stream's order. The logits are valid until the next pass.
        """
        batch, count = token_ids.shape
        assert batch == self._batch and start + count <= self._capacity
        with torch.inference_mode():
            bucket = next((size for size in _BUCKETS if size >= count), 0)
            if self._graphs and bucket and start + bucket <= min(self._capacity, len(self._cos)):
                captured = self._captured_for(bucket)
                if captured is not None:
                    return self._replay(captured, token_ids, start, before, attention)
            inputs = self._inputs(token_ids, start)
            hidden, query = self._piece(0, inputs, None, None)
            for layer in range(len(self._layers)):
                assert query is not None
                if before is not None:
                    before(layer)
                attended = self._attend(layer, query, start + count, attention)
                hidden, query = self._piece(layer + 1, inputs, hidden, attended)
            return self._head(hidden, inputs)

    # One piece between two attentions -----------------------------------------------------------------------------

    def _piece(
        self, index: int, inputs: _Inputs, hidden: torch.Tensor | None, attended: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What follows layer index - 1's attention and precedes layer index's: (hidden [B, N, E], query)."""
        if index == 0:
            hidden = self._model.module.model.embed_tokens(inputs.ids)
        else:
            assert hidden is not None and attended is not None
            done: Any = self._layers[index - 1]
            hidden = hidden + done.self_attn.o_proj(attended)
            hidden = hidden + self._widened(index - 1, _normed(hidden, done.post_attention_layernorm))
        assert hidden is not None
        return hidden, self._project(index, inputs, hidden) if index < len(self._layers) else None

    def _project(self, index: int, inputs: _Inputs, hidden: torch.Tensor) -> torch.Tensor:
        """Write the tokens' keys and values into the slabs; returns the rotated query [B, heads, N, D]."""
        layer: Any = self._layers[index]
        attention, packed, spec = layer.self_attn, self._packed[index], self._model.spec
        x = _normed(hidden, layer.input_layernorm)
        if packed is not None:
            projected = linear(x, packed.qkv, packed.qkv_bias)
        else:
            projected = torch.cat([part(x) for part in (attention.q_proj, attention.k_proj, attention.v_proj)], -1)
        parts = projected.view(*x.shape[:2], -1, spec.head_dim)
        rotating = parts[:, :, : spec.num_heads + spec.num_kv_heads]
        value = parts[:, :, spec.num_heads + spec.num_kv_heads :]
        if hasattr(attention, "q_norm"):
            query, key = rotating[:, :, : spec.num_heads], rotating[:, :, spec.num_heads :]
            rotating = torch.cat((_normed(query, attention.q_norm), _normed(key, attention.k_norm)), 2)
        turned = _turned(rotating, inputs)
        self._keys[index].index_copy_(2, inputs.slots, turned[:, :, spec.num_heads :].transpose(1, 2))
        self._values[index].index_copy_(2, inputs.slots, value.transpose(1, 2))
        return turned[:, :, : spec.num_heads].transpose(1, 2)

    def _widened(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """The layer's MLP."""
        layer: Any = self._layers[index]
        packed = self._packed[index]
        if packed is None:
            out: torch.Tensor = layer.mlp(x)
        else:
            gate, up = linear(x, packed.gate_up).chunk(2, -1)
            out = layer.mlp.down_proj(layer.mlp.act_fn(gate) * up)
        return out

    def _head(self, hidden: torch.Tensor, inputs: _Inputs) -> torch.Tensor:
        row = _normed(hidden.index_select(1, inputs.last), self._model.module.model.norm)
        logits: torch.Tensor = self._model.module.lm_head(row)[:, 0]
        return logits

    def _attend(self, layer: int, query: torch.Tensor, length: int, attention: Attention) -> torch.Tensor:
        return attention(query, self._keys[layer][:, :, :length], self._values[layer][:, :, :length])

    def _inputs(self, token_ids: torch.Tensor, start: int) -> _Inputs:
        here = slice(start, start + token_ids.shape[1])
        slots = torch.arange(here.start, here.stop, device=token_ids.device)
        last = torch.full((1,), token_ids.shape[1] - 1, device=token_ids.device)
        return _Inputs(token_ids, slots, self._cos[here], self._sin[here], last)

    # Graphs -------------------------------------------------------------------------------------------------------

    def _replay(
        self,
        captured: _Captured,
        token_ids: torch.Tensor,
        start: int,
        before: Callable[[int], None] | None,
        attention: Attention,
    ) -> torch.Tensor:
        count, bucket = token_ids.shape[1], captured.inputs.ids.shape[1]
        inputs = captured.inputs
        inputs.ids[:, :count].copy_(token_ids)
        torch.arange(start, start + bucket, out=inputs.slots)
        inputs.cos.copy_(self._cos[start : start + bucket])
        inputs.sin.copy_(self._sin[start : start + bucket])
        inputs.last.fill_(count - 1)
        captured.pieces[0].replay()
        for layer, query in enumerate(captured.queries):
            if before is not None:
                before(layer)
            # Rows past the question are padding: computed, never attended to, their slots written again later.
            captured.attended[:, :count].copy_(self._attend(layer, query[:, :, :count], start + count, attention))
            captured.pieces[layer + 1].replay()
        return captured.logits

    def _captured_for(self, bucket: int) -> _Captured | None:
        """The bucket's graphs; None, from now on for every bucket, where this machine cannot record them."""
        if bucket not in self._captured and self._graphs:
            try:
                self._captured[bucket] = self._capture(bucket)
            except RuntimeError as error:  # an old driver, a module that waits for the device while it is recorded
                _log.warning("CUDA graphs cannot be used here, passes will take longer: %s", error)
                self._graphs = False
        return self._captured.get(bucket)

    def _capture(self, bucket: int) -> _Captured:
        """Record the pieces for `bucket` tokens. Only the last `bucket` slots are written meanwhile."""
        device, spec = self._model.device, self._model.spec
        ids = torch.zeros((self._batch, bucket), dtype=torch.int64, device=device)
        kept = self._inputs(ids, self._capacity - bucket)
        inputs = _Inputs(ids, kept.slots, kept.cos.clone(), kept.sin.clone(), kept.last)
        width = spec.num_heads * spec.head_dim
        attended = torch.zeros((self._batch, bucket, width), dtype=spec.dtype, device=device)
        side: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            # Once without recording, as capturing asks: libraries allocate at their first use.
            self._pieces(inputs, attended, lambda piece: piece())
            torch.cuda.synchronize(device)
            pool = torch.cuda.graph_pool_handle()
            graphs: list[torch.cuda.CUDAGraph] = []

            def record(piece: Callable[[], None]) -> None:
                graph = torch.cuda.CUDAGraph()
                # Reader threads copy to the GPU all the while: only what this thread does may end the capture. The
                # usual context manager would empty torch's memory cache and collect garbage before every piece.
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    piece()
                finally:
                    graph.capture_end()
                graphs.append(graph)

            queries, logits = self._pieces(inputs, attended, record)
        torch.cuda.current_stream(device).wait_stream(side)
        return _Captured(inputs, attended, tuple(graphs), tuple(queries), logits)

    def _pieces(
        self, inputs: _Inputs, attended: torch.Tensor, each: Callable[[Callable[[], None]], None]
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Hand every piece of a pass to `each`, in order; returns the queries and the logits they leave behind."""
        hidden: torch.Tensor | None = None
        queries: list[torch.Tensor] = []
        logits: list[torch.Tensor] = []

        def piece(index: int) -> None:
            nonlocal hidden
            hidden, query = self._piece(index, inputs, hidden, attended)
            if query is None:
                logits.append(self._head(hidden, inputs))
            else:
                queries.append(query)

        for index in range(len(self._layers) + 1):
            each(functools.partial(piece, index))
        return queries, logits[0]


def _side_by_side(modules: Sequence[torch.nn.Linear]) -> torch.Tensor:
    """One matrix of the modules' weights, of which these become views; what is packed already stays where it is."""
    weights = [module.weight.data for module in modules]
    first, size = weights[0], weights[0].element_size()
    ends = [weight.data_ptr() + weight.numel() * size for weight in weights]
    rows = sum(weight.shape[0] for weight in weights)
    shared = all(weight.untyped_storage().data_ptr() == first.untyped_storage().data_ptr() for weight in weights)
    if shared and all(weight.data_ptr() == end for weight, end in zip(weights[1:], ends[:-1], strict=True)):
        return first.as_strided((rows, first.shape[1]), (first.shape[1], 1))
    packed = torch.cat(weights)
    end = 0
    for module in modules:
        start, end = end, end + module.weight.shape[0]
        module.weight.data = packed[start:end]
    return packed


def _normed(x: torch.Tensor, norm: Any) -> torch.Tensor:
    """RMSNorm in one launch, with the module's own weight and epsilon."""
    return rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _turned(x: torch.Tensor, inputs: _Inputs) -> torch.Tensor:
    """x [B, N, heads, D] rotated to the tokens' positions; halves are exchanged by rolling, signs are in the table."""
    swapped = x.roll(x.shape[-1] // 2, -1)
    return torch.addcmul(x * inputs.cos[:, None], swapped, inputs.sin[:, None])
