"""A network that scores every short span of a chunk as the answer to a question.

The embedder's transformer with a low-rank update of its matrices (LoRA, arXiv 2106.09685) and a small head. Scores are
trained over all spans of all chunks of one question together, with "no answer" fixed at 0 (shared normalisation, Clark
and Gardner, arXiv 1710.10723, section 3.3). So scores of different chunks can be compared, and a question whose spans
all score below 0 is probably not answered anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from desk_rag.model.checkpoint.int4 import unpack_int4

if TYPE_CHECKING:
    from transformers import BertModel

    from desk_rag.model.embedded.bert import Bert

MOST_PIECES = 32
"""Maximum word pieces of a span."""
_WIDTH = 32
HEAD = "head."
"""Start of the names of the head's tensors in an adapter."""
STEPS = "_steps"
"""End of the names of step sizes."""
LONGEST_ROW = 448
"""Maximum word pieces of question and chunk together, [CLS] and [SEP] included."""
LONGEST_QUESTION = 96
"""Maximum word pieces of the question."""


@dataclass(frozen=True, slots=True)
class QuestionChunkPair:
    """Word piece ids of a question and of one chunk."""

    question: Sequence[int]
    chunk: Sequence[int]
    name: Sequence[int] = ()
    """Read before the chunk, for what it says of it; no answer lies in it."""

    @property
    def start(self) -> int:
        """Index in the row of the chunk's first word piece."""
        return len(self.question) + 2 + len(self.name)

    @property
    def length(self) -> int:
        """Tokens of the row if nothing is cut."""
        return self.start + len(self.chunk) + 1


@dataclass(frozen=True, slots=True)
class SpanBatch:
    """Input of the network. A row is [CLS] question [SEP] name chunk [SEP], then padding with zeros."""

    ids: Tensor
    """int64 [B, T]: word pieces."""
    kinds: Tensor
    """int64 [B, T]: token types, 0 up to the first [SEP] and 1 after it."""
    known: Tensor
    """bool [B, T]: True where the row is not padding."""
    inside: Tensor
    """bool [B, T]: True for the chunk's word pieces."""

    def map(self, function: Callable[[Tensor], Tensor]) -> SpanBatch:
        """Apply `function` to every tensor."""
        return SpanBatch(function(self.ids), function(self.kinds), function(self.known), function(self.inside))


def build_batch(pairs: Sequence[QuestionChunkPair], cls: int, sep: int, width: int) -> SpanBatch:
    """Build one row of `width` tokens per pair; a chunk that does not fit loses its end.

    `cls` and `sep` are the ids of [CLS] and [SEP].
    """
    shape = (len(pairs), width)
    ids, kinds = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    known, inside = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    for number, pair in enumerate(pairs):
        row = [cls, *pair.question, sep, *pair.name, *pair.chunk][: width - 1] + [sep]
        ids[number, : len(row)] = torch.tensor(row)
        kinds[number, len(pair.question) + 2 : len(row)] = 1
        known[number, : len(row)] = True
        inside[number, pair.start : len(row) - 1] = True
    return SpanBatch(ids, kinds, known, inside)


class SpanHead(nn.Module):
    """Span scores from token states: score of the begin, of the end, and of the two together."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ends = nn.Linear(width, 2)
        self.first = nn.Linear(width, _WIDTH, bias=False)
        self.last = nn.Linear(width, _WIDTH, bias=False)

    def forward(self, states: Tensor, inside: Tensor) -> Tensor:
        """Score the spans from each token to each other one, both included: fp32 [B, T, T].

        -inf where the span is longer than MOST_PIECES or leaves `inside` (bool [B, T]). `states` is [B, T, width].
        """
        with torch.autocast(states.device.type, enabled=False):
            states = states.float()
            begin, end = self.ends(states).unbind(-1)
            together = self.first(states) @ self.last(states).mT / math.sqrt(_WIDTH)
        length = torch.ones(together.shape[1:], dtype=torch.bool, device=states.device)
        short = length.triu() & length.tril(MOST_PIECES - 1)
        scores: Tensor = begin[:, :, None] + end[:, None, :] + together
        return scores.masked_fill(~(inside[:, :, None] & inside[:, None, :] & short), -torch.inf)


class SpanModel(nn.Module):
    """The embedder's transformer and a span head."""

    def __init__(self, bert: Bert | BertModel) -> None:
        super().__init__()
        self.bert = bert
        self.head = SpanHead(bert.config.hidden_size)

    def forward(self, batch: SpanBatch) -> Tensor:
        """Span scores fp32 [B, T, T], see `SpanHead.forward`."""
        states = self.bert(
            input_ids=batch.ids, token_type_ids=batch.kinds, attention_mask=batch.known.long()
        ).last_hidden_state
        scores: Tensor = self.head(states, batch.inside)
        return scores


def linear_layers(bert: Bert | BertModel) -> dict[str, nn.Linear]:
    """The linear layers of the transformer's blocks, by name."""
    modules = bert.encoder.named_modules(prefix="encoder")
    return {name: module for name, module in modules if isinstance(module, nn.Linear)}


@torch.no_grad()
def apply_adapter(net: SpanModel, adapter: Mapping[str, Tensor]) -> None:
    """Merge exported parameters (see `training.pointer.low_rank.adapter_tensors`) into the network's weights.

    Matrices are replaced, not written to: another network may share them.
    Raises KeyError for a missing tensor, RuntimeError for one that does not fit.
    """
    for name, linear in linear_layers(net.bert).items():
        up, down = (unpack_int4(adapter[f"{name}.{part}"], adapter[f"{name}.{part}{STEPS}"]) for part in ("up", "down"))
        if (up.shape[1], down.shape[1]) != linear.weight.shape:
            raise RuntimeError(f"{name} is no change of a matrix of {tuple(linear.weight.shape)}")
        changed = (up.mT @ down).add_(linear.weight)
        linear.weight = nn.Parameter(changed, requires_grad=linear.weight.requires_grad)
    head = {name.removeprefix(HEAD): tensor.float() for name, tensor in adapter.items() if name.startswith(HEAD)}
    net.head.load_state_dict(head)
