"""Forward pass of most decoders (`families`) over a slab cache, with few kernel launches and CUDA graphs.

The model's own modules do the matrix products. Left out is what transformers repeats in every layer of every pass, and
the copies of grouped keys that its attention makes. A question through 28 layers is more than a thousand launches in
transformers; on a fast GPU issuing them can take longer than running them.

On a GPU a pass of N tokens is replayed from CUDA graphs of a few layers each, recorded per bucket of N at first use.
The graphs read a question's start from memory, and chunks of later layers may still arrive between them. An attention
that needs its length on the host is launched between piecewise graphs. On a CPU, and for long passes, the same
functions run without graphs.

Several questions are one pass: their tokens are rows of the same matrix products, and each attends to its own row of
the slabs.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from desk_rag.kv.cache import SlabLayer
from desk_rag.kv.forward.attention import Attention, attend, attend_rows
from desk_rag.kv.forward.cuda_graphs import AttentionGraphs, GraphRecorder, Part, PiecewiseGraphs, bucket_of
from desk_rag.kv.forward.families import Multipliers, supports, windows
from desk_rag.kv.forward.inputs import Inputs, Questions
from desk_rag.kv.forward.projections import FusedLayer, Packed, RmsNorm, add_norm
from desk_rag.kv.kernels.flash_decoding import flash_decoding_for, is_worthwhile
from desk_rag.kv.kernels.fused_inputs import Pairing, TokenSlots
from desk_rag.kv.kernels.fused_ops import FusedOps, fused_ops_for
from desk_rag.kv.nf4.choice import Nf4Products
from desk_rag.kv.rope import RotaryTables
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.memory.device import is_out_of_memory

_log = logging.getLogger(__name__)
LAYERS_PER_GRAPH = 4
"""Layers per graph with attention: few launches, but no long wait for chunks of later layers."""


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
        """`layers` have slabs [rows, H, capacity, D], one row for each question that a pass may run.

        `ops` are the operations between matrix products, `nf4` the products with weights in 4 bits, by default the
        fastest proven on the model's device. With `layers_per_graph` of 0 attention runs between piecewise graphs.
        Packs the model's projections (see `Packed`), which temporarily takes the memory of one layer's.
        """
        assert supports(model), "this model needs its own forward pass"
        self._model = model
        self._ops = fused_ops_for(model.device, model.spec.dtype) if ops is None else ops
        self._nf4 = Nf4Products(model.spec.dtype) if nf4 is None else nf4
        modules: Any = model.decoder_layers
        self._by = Multipliers.of(model)
        self._layers = [FusedLayer.of(one, Packed.of(one, self._nf4), self._ops, self._by.residual) for one in modules]
        self._norm = RmsNorm.of(model.module.model.norm)
        if model.device.type == "cuda":
            torch.cuda.empty_cache()  # the memory that the packed projections were copied from
        spec = model.spec
        self.windows = windows(model)
        """Slots that a token sees in each layer, its own included; 0 for all."""
        shape = (model.device, spec.dtype, spec.num_heads, spec.num_kv_heads, spec.head_dim)
        self._splits = {window: flash_decoding_for(*shape, window) for window in sorted(set(self.windows))}
        self._table_of_layer = tables.table_of_layer
        self._pairing = Pairing(2 * tables.cos[0].shape[1], tables.interleaved, self._by.query)
        pairs = [self._pairing.table(*of_pairs, spec.head_dim) for of_pairs in zip(tables.cos, tables.sin, strict=True)]
        # Rounded to the compute dtype, as in transformers.
        self._rotations = [(cos.to(spec.dtype), sin.to(spec.dtype)) for cos, sin in pairs]
        # LLM.int8 searches for outliers on the host in every product: a failed recording may leave torch's allocator
        # in recording state.
        recordable = model.device.type == "cuda" and model.spec.weight_quantization != "int8"
        self._graphs = graphs and recordable
        self._layers_per_graph, self._recorder = layers_per_graph, GraphRecorder(model.device)
        self._bind(layers)

    def over(self, layers: Sequence[SlabLayer]) -> FusedDecoder:
        """The same prepared model over other slabs; one pass at a time runs over either."""
        other = copy.copy(self)
        other._bind(layers)
        return other

    def _bind(self, layers: Sequence[SlabLayer]) -> None:
        self._keys = [layer.key_slab for layer in layers]
        self._values = [layer.value_slab for layer in layers]
        rows, heads, capacity, _ = self._keys[0].shape
        self._rows, self._lines_per_row = rows, heads * capacity
        self._room = min(capacity, len(self._rotations[0][0]))
        self._piecewise_graphs: dict[tuple[int, int], PiecewiseGraphs] = {}
        self._attention_graphs: dict[tuple[int, int], AttentionGraphs] = {}

    @property
    def uses_graphs(self) -> bool:
        """False without a GPU, with `graphs=False`, and after a recording has failed."""
        return self._graphs

    @property
    def nf4_by_kernel(self) -> dict[str, list[int]]:
        """Numbers of rows that our own kernel multiplies by weights in 4 bits, by their shape."""
        return self._nf4.by_kernel

    def prepare(self, count: int, batch: int = 1) -> None:
        """Record the graphs for passes of `batch` questions of `count` tokens now; otherwise the first one does."""
        bucket = bucket_of(count)
        if self._graphs and bucket and bucket <= self._room:
            with torch.inference_mode():
                if self._stretches_for(batch, bucket) is None:
                    self._pieces_for(batch, bucket)

    def recorded(self, count: int) -> list[int]:
        """Numbers of questions of `count` tokens for which graphs are recorded."""
        bucket = bucket_of(count)
        return sorted({size for size, its in (*self._piecewise_graphs, *self._attention_graphs) if its == bucket})

    def run(
        self,
        token_ids: torch.Tensor,
        start: int | Questions,
        *,
        before: Callable[[int], None] | None = None,
        attention: Attention | None = None,
    ) -> torch.Tensor:
        """Run ids int64 [B, N] at slots and positions from `start` on; logits [B, vocab] of each last token.

        `before` is called with each layer's index, in order, before its attention; on return slots before the
        questions' starts must be filled for that layer in the current stream's order. `attention` is for questions of
        equal length, by default the fastest for N tokens. The ids may be on any device; the logits are valid until the
        next pass.
        """
        batch, count = token_ids.shape
        questions = start if isinstance(start, Questions) else Questions.alike(batch, start, count)
        assert max(questions.rows) < self._rows and questions.end(count) <= self._room
        with torch.inference_mode():
            bucket = bucket_of(count)
            if self._graphs and bucket and questions.end(bucket) <= self._room:
                logits = self._replayed(bucket, token_ids, questions, before, attention)
                if logits is not None:
                    return logits
            inputs = Inputs.of(token_ids, questions, self._model.device)
            places = self._places(inputs)
            hidden, result = self._piece(0, inputs, places, None, None)
            for layer in range(len(self._layers)):
                if before is not None:
                    before(layer)
                attended = self._attend(layer, result, inputs, questions, attention)
                hidden, result = self._piece(layer + 1, inputs, places, hidden, attended)
            return result

    # One piece between two attentions -----------------------------------------------------------------------------

    def _piece(
        self,
        index: int,
        inputs: Inputs,
        places: Sequence[TokenSlots],
        hidden: torch.Tensor | None,
        attended: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run what lies between the attentions of layers index - 1 and index: (hidden [1, B * N, E], query).

        `places` has one entry per rotary table; `attended` is [B, N, heads * D]. After the last layer it returns
        (hidden [1, B, E], logits [B, vocab]) of each question's last token.
        """
        decoder = self._model.module.model
        ends = index == len(self._layers)
        if index == 0:
            hidden, delta = decoder.embed_tokens(inputs.ids.view(1, -1)), None
            hidden = hidden if self._by.embeddings == 1.0 else hidden * self._by.embeddings
        else:
            assert hidden is not None and attended is not None
            attended = attended.reshape(1, -1, attended.shape[-1])
            if ends:
                hidden, attended = (rows.index_select(1, inputs.numbers[2]) for rows in (hidden, attended))
            hidden, delta = self._layers[index - 1].finish(hidden, attended)
        if not ends:
            slots = places[self._table_of_layer[index]]
            hidden, query = self._layers[index].query(hidden, delta, slots, self._keys[index], self._values[index])
            batch, count = inputs.ids.shape
            return hidden, query.view(-1, batch, count, query.shape[3]).transpose(0, 1)
        hidden, x = add_norm(self._ops, hidden, delta, self._norm, self._by.residual)
        logits = self._model.module.lm_head(x)[0]
        return hidden, logits if self._by.logits == 1.0 else logits * self._by.logits

    def _attend(
        self,
        layer: int,
        query: torch.Tensor,
        inputs: Inputs,
        questions: Questions,
        attention: Attention | None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of one layer, [B, N, heads * D], written to `out` if given."""
        keys, values, window = self._keys[layer], self._values[layer], self.windows[layer]
        assert attention is None or not window, "other attentions see everything"
        split = self._splits[window] if attention is None and is_worthwhile(query.shape[2]) else None
        if questions.are_alike:
            end = questions.starts[0] + questions.counts[0]
            keys, values = (slab[: query.shape[0], :, :end] for slab in (keys, values))
            if split is not None:
                return split(query, keys, values, out)
            attended = attend(query, keys, values, window) if attention is None else attention(query, keys, values)
        elif split is not None:
            keys, values = (slab.narrow(2, 0, self._room) for slab in (keys, values))
            return split(query, keys, values, out, inputs.numbers[:2])
        else:
            assert attention is None, "for questions of equal length"
            attended = attend_rows(questions, query, keys, values, window)
        return attended if out is None else out.copy_(attended)

    def _places(self, inputs: Inputs) -> list[TokenSlots]:
        count = torch.arange(inputs.ids.shape[1], device=inputs.ids.device)
        positions = (inputs.numbers[0][:, None] + count).view(-1)
        lines = torch.add(inputs.numbers[0], inputs.numbers[1], alpha=self._lines_per_row)[:, None] + count
        return [
            TokenSlots(lines.view(-1), cos.index_select(0, positions), sin.index_select(0, positions), self._pairing)
            for cos, sin in self._rotations
        ]

    # Graphs -------------------------------------------------------------------------------------------------------

    def _replayed(
        self,
        bucket: int,
        token_ids: torch.Tensor,
        questions: Questions,
        before: Callable[[int], None] | None,
        attention: Attention | None,
    ) -> torch.Tensor | None:
        """Run the pass by its bucket's graphs; None where this machine cannot record them."""
        batch = token_ids.shape[0]
        if attention is None:
            stretches = self._stretches_for(batch, bucket)
            if stretches is not None:
                return self._replay_stretches(stretches, token_ids, questions, before)
        pieces = self._pieces_for(batch, bucket)
        return None if pieces is None else self._replay(pieces, token_ids, questions, before, attention)

    def _replay(
        self,
        pieces: PiecewiseGraphs,
        token_ids: torch.Tensor,
        questions: Questions,
        before: Callable[[int], None] | None,
        attention: Attention | None,
    ) -> torch.Tensor:
        count = token_ids.shape[1]
        pieces.inputs.set(token_ids, questions)
        attended = pieces.attended[:, :count]
        pieces.graphs[0].replay()
        for layer, query in enumerate(pieces.queries):
            if before is not None:
                before(layer)
            self._attend(layer, query.narrow(2, 0, count), pieces.inputs, questions, attention, attended)
            pieces.graphs[layer + 1].replay()
        return pieces.logits

    def _replay_stretches(
        self,
        stretches: AttentionGraphs,
        token_ids: torch.Tensor,
        questions: Questions,
        before: Callable[[int], None] | None,
    ) -> torch.Tensor:
        stretches.inputs.set(token_ids, questions)
        done = 0
        for end, graph in zip(stretches.ends, stretches.graphs, strict=True):
            if before is not None:
                for layer in range(done, end):
                    before(layer)
            graph.replay()
            done = end
        return stretches.logits

    def _stretches_for(self, batch: int, bucket: int) -> AttentionGraphs | None:
        """The graphs with attention; None without an attention kernel for them or if disabled."""
        if None in self._splits.values() or not self._layers_per_graph or not is_worthwhile(bucket):
            return None
        if (batch, bucket) not in self._attention_graphs and self._graphs:
            try:
                self._attention_graphs[batch, bucket] = self._record_stretches(batch, bucket)
            except RuntimeError as error:
                if not _for_now(error):
                    _log.warning("CUDA graphs with attention cannot be recorded here; passes will be slower: %s", error)
                    self._layers_per_graph = 0
        return self._attention_graphs.get((batch, bucket))

    def _pieces_for(self, batch: int, bucket: int) -> PiecewiseGraphs | None:
        """The piecewise graphs; None, for all buckets from then on, if recording fails."""
        if (batch, bucket) not in self._piecewise_graphs and self._graphs:
            try:
                self._piecewise_graphs[batch, bucket] = self._record_pieces(batch, bucket)
            except RuntimeError as error:  # an old driver, or a module that synchronizes while it is recorded
                if not _for_now(error):
                    _log.warning("CUDA graphs cannot be recorded on this machine; passes will be slower: %s", error)
                    self._graphs = False
        return self._piecewise_graphs.get((batch, bucket))

    def _record_pieces(self, batch: int, bucket: int) -> PiecewiseGraphs:
        inputs, attended = self._memory(batch, bucket)
        graphs, (queries, logits) = self._recorder.record(functools.partial(self._pieces, inputs, attended))
        return PiecewiseGraphs(inputs, attended, graphs, tuple(queries), logits)

    def _record_stretches(self, batch: int, bucket: int) -> AttentionGraphs:
        inputs, attended = self._memory(batch, bucket)
        ends = self._ends(bucket)
        graphs, logits = self._recorder.record(functools.partial(self._stretches, inputs, attended, ends))
        return AttentionGraphs(inputs, attended, ends, graphs, logits)

    def _memory(self, batch: int, bucket: int) -> tuple[Inputs, torch.Tensor]:
        for rows in (bucket, 1):  # behind the last attention only one token of each question goes on
            self._nf4.prepare(batch * rows)
        device, spec = self._model.device, self._model.spec
        attended = (batch, bucket, spec.num_heads * spec.head_dim)
        return (
            Inputs.at_end(batch, bucket, self._room, device),
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
        places: list[TokenSlots] | None = None
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
        done = 0
        state: list[torch.Tensor] = []
        places: list[TokenSlots] = []

        def stretch(begin: int, end: int) -> None:
            if not places:
                places.extend(self._places(inputs))
                state[:] = self._piece(0, inputs, places, None, None)
            for layer in range(begin, end):
                keys, values = (slabs[layer].narrow(2, 0, self._room) for slabs in (self._keys, self._values))
                split = self._splits[self.windows[layer]]
                assert split is not None
                split(state[1], keys, values, attended, inputs.numbers[:2])
                state[:] = self._piece(layer + 1, inputs, places, state[0], attended)

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
