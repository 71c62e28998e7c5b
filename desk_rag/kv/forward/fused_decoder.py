"""Forward pass of plain pre-norm decoders over a slab cache, with few kernel launches and CUDA graphs.

The model's own modules do the matrix products. Left out is what transformers repeats in every layer of every pass, and
the copies of grouped keys that its attention makes. A question through 28 layers is more than a thousand launches in
transformers; on a fast GPU issuing them can take longer than running them.

On a GPU a pass of N tokens is replayed from CUDA graphs of a few layers each, recorded per bucket of N at first use.
The graphs read a question's start from memory, and chunks of later layers may still arrive between them. An attention
that needs its length on the host is launched between piecewise graphs. On a CPU, and for long passes, the same
functions run without graphs.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from desk_rag.kv.cache import SlabLayer
from desk_rag.kv.forward.cuda_graphs import AttentionGraphs, Inputs, Part, PiecewiseGraphs, record
from desk_rag.kv.forward.projections import FusedLayer, Packed, add_norm, qk_norms
from desk_rag.kv.kernels.flash_decoding import flash_decoding_for, is_worthwhile
from desk_rag.kv.kernels.fused_inputs import TokenSlots
from desk_rag.kv.kernels.fused_ops import FusedOps, fused_ops_for
from desk_rag.kv.kernels.upload import upload
from desk_rag.kv.nf4.choice import Nf4Products
from desk_rag.kv.rope import RotaryTables
from desk_rag.kv.stitch import has_sliding_layers
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.memory.device import is_out_of_memory

_log = logging.getLogger(__name__)
_BUCKETS = (1, 16, 32, 48, 64, 96, 128, 192, 256)
"""Token counts that graphs are recorded for; longer passes are bound by arithmetic, not by launches."""
LAYERS_PER_GRAPH = 4
"""Layers per graph with attention: few launches, but no long wait for chunks of later layers."""
_PLAIN = frozenset({"llama", "mistral", "qwen2", "qwen3"})
_flash = torch.ops.aten._scaled_dot_product_flash_attention.default


class Attention(Protocol):
    """Causal attention of the last N of S tokens; see `attend` for shapes."""

    def __call__(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor: ...


def supports(model: LanguageModel) -> bool:
    """True if the model's layers are what this pass computes: RMS pre-norms, full attention, no soft caps."""
    return model.spec.support.model_type in _PLAIN and not has_sliding_layers(model)


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Causal attention of query [B, heads, N, D] over keys, values [B, H, S, D], its own last -> [B, N, heads * D].

    On a GPU the FlashAttention operator is called directly: it aligns the causal mask to the end and splits long keys
    among multiprocessors, while torch's public function aligns the mask to the start.
    """
    batch, heads, count, dim = query.shape
    if query.dtype in (torch.bfloat16, torch.float16) and _has_flash(query.device, dim):
        out: torch.Tensor = _flash(query, keys, values, 0.0, True, return_debug_mask=False, scale=dim**-0.5)[0]
        return out.transpose(1, 2).reshape(batch, count, heads * dim)
    groups = heads // keys.shape[1]
    length = keys.shape[2]
    own = torch.arange(length - count, length, device=query.device).repeat(groups)
    mask = torch.arange(length, device=query.device)[None] <= own[:, None]
    packed = query.reshape(batch, keys.shape[1], groups * count, dim)
    out = scaled_dot_product_attention(packed, keys, values, attn_mask=mask)
    return out.reshape(batch, heads, count, dim).transpose(1, 2).reshape(batch, count, heads * dim)


@functools.cache
def _has_flash(device: torch.device, dim: int) -> bool:
    """True where torch's FlashAttention runs: from Ampere on, for head sizes it supports."""
    if device.type != "cuda" or dim % 8 or dim > 256:
        return False
    return torch.cuda.get_device_capability(device)[0] >= 8


def attend_whole(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Causal attention of whole prompts (N = S), by the backend that torch prefers."""
    assert query.shape[2] == keys.shape[2], "only for passes that begin at position 0"
    out = scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).flatten(2)


class FusedDecoder:
    """Runs one model over one cache; bound to its slabs, because graphs hold addresses. Not thread-safe."""

    def __init__(
        self,
        model: LanguageModel,
        layers: Sequence[SlabLayer],
        tables: RotaryTables,
        *,
        graphs: bool = True,
        ops: FusedOps | None = None,
        nf4: Nf4Products | None = None,
        layers_per_graph: int = LAYERS_PER_GRAPH,
    ) -> None:
        """`layers` have slabs [B, H, capacity, D]; B questions of equal length are run side by side.

        `ops` are the operations between matrix products, `nf4` the products with weights in 4 bits, by default the
        fastest proven on the model's device. With
        `layers_per_graph` of 0 attention runs between piecewise graphs. Packs the model's projections (see `Packed`),
        which temporarily takes the memory of one layer's.
        """
        assert supports(model), "this model needs its own forward pass"
        assert len(tables.cos) == 1 and 2 * tables.cos[0].shape[1] == model.spec.head_dim, "partial or double rotary"
        self._model = model
        self._ops = fused_ops_for(model.device, model.spec.dtype) if ops is None else ops
        self._nf4 = Nf4Products(model.spec.dtype) if nf4 is None else nf4
        modules: Any = model.decoder_layers
        self._layers = [
            FusedLayer(one, Packed.of(one, self._nf4), qk_norms(one.self_attn), self._ops) for one in modules
        ]
        if model.device.type == "cuda":
            torch.cuda.empty_cache()  # the memory that the packed projections were copied from
        self._keys = [layer.key_slab for layer in layers]
        self._values = [layer.value_slab for layer in layers]
        cos, sin = tables.cos[0], tables.sin[0]
        self._batch, kv_heads, capacity, dim = self._keys[0].shape
        self._split = flash_decoding_for(model.device, model.spec.dtype, model.spec.num_heads, kv_heads, dim)
        self._room = min(capacity, len(cos))
        # Rounded to the compute dtype, as in transformers.
        self._cos = torch.cat((cos, cos), -1).to(model.spec.dtype)
        self._sin = torch.cat((-sin, sin), -1).to(model.spec.dtype)
        # LLM.int8 searches for outliers on the host in every product, so recording it fails, and a failed recording
        # may leave torch's allocator in recording state.
        recordable = model.device.type == "cuda" and model.spec.weight_quantization != "int8"
        self._graphs = graphs and recordable
        self._layers_per_graph = layers_per_graph
        self._piecewise_graphs: dict[int, PiecewiseGraphs] = {}
        self._attention_graphs: dict[int, AttentionGraphs] = {}

    @property
    def uses_graphs(self) -> bool:
        """False without a GPU, with `graphs=False`, and after a recording has failed."""
        return self._graphs

    @property
    def nf4_by_kernel(self) -> dict[str, list[int]]:
        """Numbers of rows that our own kernel multiplies by weights in 4 bits, by their shape."""
        return self._nf4.by_kernel

    def prepare(self, count: int) -> None:
        """Record the graphs for passes of `count` tokens now; otherwise the first such pass does."""
        bucket = next((size for size in _BUCKETS if size >= count), 0)
        if self._graphs and bucket and bucket <= self._room:
            with torch.inference_mode():
                if self._stretches_for(bucket) is None:
                    self._pieces_for(bucket)

    def run(
        self,
        token_ids: torch.Tensor,
        start: int,
        *,
        before: Callable[[int], None] | None = None,
        attention: Attention | None = None,
    ) -> torch.Tensor:
        """Run ids int64 [B, N] at slots and positions start..start+N-1; logits [B, vocab] of the last token.

        `before` is called with each layer's index, in order, before its attention; on return slots 0..start-1 of that
        layer must be filled in the current stream's order. `attention` is by default the fastest for N tokens. The ids
        may be on any device; the logits are valid until the next pass.
        """
        batch, count = token_ids.shape
        assert batch == self._batch and start + count <= self._room
        with torch.inference_mode():
            bucket = next((size for size in _BUCKETS if size >= count), 0)
            if self._graphs and bucket and start + bucket <= self._room:
                logits = self._replayed(bucket, token_ids, start, before, attention)
                if logits is not None:
                    return logits
            device = self._model.device
            inputs = Inputs(token_ids.to(device, non_blocking=True), upload(np.array([start, count - 1]), device))
            places = self._places(inputs)
            hidden, result = self._piece(0, inputs, places, None, None)
            for layer in range(len(self._layers)):
                if before is not None:
                    before(layer)
                attended = self._attend(layer, result, start + count, attention)
                hidden, result = self._piece(layer + 1, inputs, places, hidden, attended)
            return result

    # One piece between two attentions -----------------------------------------------------------------------------

    def _piece(
        self,
        index: int,
        inputs: Inputs,
        places: TokenSlots,
        hidden: torch.Tensor | None,
        attended: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run what lies between the attentions of layers index - 1 and index: (hidden [B, N, E], query).

        After the last layer it returns (hidden [B, 1, E], logits [B, vocab]) of the last token only.
        """
        decoder = self._model.module.model
        ends = index == len(self._layers)
        if index == 0:
            hidden, delta = decoder.embed_tokens(inputs.ids), None
        else:
            assert hidden is not None and attended is not None
            if ends:
                hidden, attended = (rows.index_select(1, inputs.numbers[1:]) for rows in (hidden, attended))
            hidden, delta = self._layers[index - 1].after_attention(hidden, attended)
        if not ends:
            return self._layers[index].query(hidden, delta, places, self._keys[index], self._values[index])
        hidden, x = add_norm(self._ops, hidden, delta, decoder.norm)
        return hidden, self._model.module.lm_head(x)[:, 0]

    def _attend(
        self,
        layer: int,
        query: torch.Tensor,
        length: int,
        attention: Attention | None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of one layer, [B, N, heads * D], written to `out` if given."""
        keys, values = (slabs[layer].narrow(2, 0, length) for slabs in (self._keys, self._values))
        if attention is None and self._split is not None and is_worthwhile(query.shape[2]):
            return self._split(query, keys, values, out)
        attended = (attention or attend)(query, keys, values)
        return attended if out is None else out.copy_(attended)

    def _places(self, inputs: Inputs) -> TokenSlots:
        slots = torch.arange(inputs.ids.shape[1], device=inputs.ids.device) + inputs.numbers[0]
        return TokenSlots(slots, self._cos.index_select(0, slots), self._sin.index_select(0, slots))

    # Graphs -------------------------------------------------------------------------------------------------------

    def _replayed(
        self,
        bucket: int,
        token_ids: torch.Tensor,
        start: int,
        before: Callable[[int], None] | None,
        attention: Attention | None,
    ) -> torch.Tensor | None:
        """Run the pass by its bucket's graphs; None where this machine cannot record them."""
        if attention is None:
            stretches = self._stretches_for(bucket)
            if stretches is not None:
                return self._replay_stretches(stretches, token_ids, start, before)
        pieces = self._pieces_for(bucket)
        return None if pieces is None else self._replay(pieces, token_ids, start, before, attention)

    def _replay(
        self,
        pieces: PiecewiseGraphs,
        token_ids: torch.Tensor,
        start: int,
        before: Callable[[int], None] | None,
        attention: Attention | None,
    ) -> torch.Tensor:
        count = token_ids.shape[1]
        pieces.inputs.set(token_ids, start)
        attended = pieces.attended[:, :count]
        pieces.graphs[0].replay()
        for layer, query in enumerate(pieces.queries):
            if before is not None:
                before(layer)
            self._attend(layer, query.narrow(2, 0, count), start + count, attention, attended)
            pieces.graphs[layer + 1].replay()
        return pieces.logits

    def _replay_stretches(
        self, stretches: AttentionGraphs, token_ids: torch.Tensor, start: int, before: Callable[[int], None] | None
    ) -> torch.Tensor:
        stretches.inputs.set(token_ids, start)
        done = 0
        for end, graph in zip(stretches.ends, stretches.graphs, strict=True):
            if before is not None:
                for layer in range(done, end):
                    before(layer)
            graph.replay()
            done = end
        return stretches.logits

    def _stretches_for(self, bucket: int) -> AttentionGraphs | None:
        """The bucket's graphs with attention; None without an attention kernel for them or if disabled."""
        if self._split is None or not self._layers_per_graph or not is_worthwhile(bucket):
            return None
        if bucket not in self._attention_graphs and self._graphs:
            try:
                self._attention_graphs[bucket] = self._record_stretches(bucket)
            except RuntimeError as error:
                if not _for_now(error):
                    _log.warning("CUDA graphs with attention cannot be recorded here; passes will be slower: %s", error)
                    self._layers_per_graph = 0
        return self._attention_graphs.get(bucket)

    def _pieces_for(self, bucket: int) -> PiecewiseGraphs | None:
        """The bucket's piecewise graphs; None, for all buckets from then on, if recording fails."""
        if bucket not in self._piecewise_graphs and self._graphs:
            try:
                self._piecewise_graphs[bucket] = self._record_pieces(bucket)
            except RuntimeError as error:  # an old driver, or a module that synchronizes while it is recorded
                if not _for_now(error):
                    _log.warning("CUDA graphs cannot be recorded on this machine; passes will be slower: %s", error)
                    self._graphs = False
        return self._piecewise_graphs.get(bucket)

    def _record_pieces(self, bucket: int) -> PiecewiseGraphs:
        inputs, attended = self._memory(bucket)
        graphs, (queries, logits) = record(self._model.device, functools.partial(self._pieces, inputs, attended))
        return PiecewiseGraphs(inputs, attended, graphs, tuple(queries), logits)

    def _record_stretches(self, bucket: int) -> AttentionGraphs:
        inputs, attended = self._memory(bucket)
        ends = self._ends(bucket)
        graphs, logits = record(self._model.device, functools.partial(self._stretches, inputs, attended, ends))
        return AttentionGraphs(inputs, attended, ends, graphs, logits)

    def _memory(self, bucket: int) -> tuple[Inputs, torch.Tensor]:
        for rows in (bucket, 1):  # behind the last attention only one token goes on
            self._nf4.prepare(self._batch * rows)
        device, spec = self._model.device, self._model.spec
        attended = (self._batch, bucket, spec.num_heads * spec.head_dim)
        return (
            Inputs.at_end(self._batch, bucket, self._room, device),
            torch.zeros(attended, dtype=spec.dtype, device=device),
        )

    def _ends(self, bucket: int) -> tuple[int, ...]:
        """Layers before which each graph with attention ends.

        A decode step waits for no chunks and is one graph; a question's first graph contains no attention.
        """
        count = len(self._layers)
        return (count,) if bucket == 1 else (*range(0, count, self._layers_per_graph), count)

    def _pieces(
        self, inputs: Inputs, attended: torch.Tensor, handle: Callable[[Part], None]
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Pass every piece of a forward pass to `handle`, in order; return their queries and the logits."""
        hidden: torch.Tensor | None = None
        places: TokenSlots | None = None
        results: list[torch.Tensor] = []

        def piece(index: int) -> None:
            nonlocal hidden, places
            places = self._places(inputs) if places is None else places
            hidden, result = self._piece(index, inputs, places, hidden, attended)
            results.append(result)

        for index in range(len(self._layers) + 1):
            handle(functools.partial(piece, index))
        return results[:-1], results[-1]

    def _stretches(
        self, inputs: Inputs, attended: torch.Tensor, ends: Sequence[int], handle: Callable[[Part], None]
    ) -> torch.Tensor:
        """Pass a forward pass to `handle`, from one of `ends` to the next; return the logits."""
        split, done = self._split, 0
        assert split is not None
        state: list[torch.Tensor] = []
        places: list[TokenSlots] = []

        def stretch(begin: int, end: int) -> None:
            if not places:
                places.append(self._places(inputs))
                state[:] = self._piece(0, inputs, places[0], None, None)
            for layer in range(begin, end):
                keys, values = (slabs[layer].narrow(2, 0, self._room) for slabs in (self._keys, self._values))
                split(state[1], keys, values, attended, inputs.numbers[:1])
                state[:] = self._piece(layer + 1, inputs, places[0], state[0], attended)

        for end in ends:
            handle(functools.partial(stretch, done, end))
            done = end
        return state[1]


def _for_now(error: RuntimeError) -> bool:
    """True if memory was too short, which another program may end.

    This pass runs without graphs then, and the next one tries again.
    """
    short = is_out_of_memory(error)
    if short:
        _log.info("Memory is too short to record CUDA graphs; this pass runs without: %s", str(error).split(". ")[0])
    return short
