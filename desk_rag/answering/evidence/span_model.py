"""A network that reads a question beside one chunk and gives every short span of the chunk a score.

Knows the embedder's transformer, low-rank changes of its matrices and tensors; knows no text and no file.

The embedder's layers are what is known of language already; a change of low rank (LoRA, arXiv 2106.09685) and a small
head make of them a reader of spans. All spans of all chunks of one question are compared with each other and with 'none
of these', which is worth 0 (shared normalisation, Clark and Gardner, arXiv 1710.10723, section 3.3), so scores of
different chunks are alike, and what is below 0 everywhere is likely answered nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from transformers import BertModel

from desk_rag.answering.evidence.int4 import pack, rounded, unpack
from desk_rag.answering.evidence.span_batch import Rows

MOST_PIECES = 32
"""Word pieces of the longest span."""
_WIDTH = 32
_HEAD = "head."
_STEPS = "_steps"


class SpanHead(nn.Module):
    """Scores of spans from states of tokens: begin + end + how well the two go together."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ends = nn.Linear(width, 2)
        self.first = nn.Linear(width, _WIDTH, bias=False)
        self.last = nn.Linear(width, _WIDTH, bias=False)

    def forward(self, states: Tensor, inside: Tensor) -> Tensor:
        """fp32 [B, T, T] for spans from one token to another, both included; -inf where one is no span of MOST_PIECES
        at most within `inside` (bool [B, T]). `states` is [B, T, width].
        """
        with torch.autocast(states.device.type, enabled=False):
            states = states.float()
            begin, end = self.ends(states).unbind(-1)
            together = self.first(states) @ self.last(states).mT / math.sqrt(_WIDTH)
        length = torch.ones(together.shape[1:], dtype=torch.bool, device=states.device)
        short = length.triu() & length.tril(MOST_PIECES - 1)
        scores: Tensor = begin[:, :, None] + end[:, None, :] + together
        return scores.masked_fill(~(inside[:, :, None] & inside[:, None, :] & short), -torch.inf)


class PointerNet(nn.Module):
    """The embedder's transformer and a head. Rows in, scores of spans out."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.bert = bert
        self.head = SpanHead(bert.config.hidden_size)

    def forward(self, rows: Rows) -> Tensor:
        """As `SpanHead.forward`."""
        states = self.bert(
            input_ids=rows.ids, token_type_ids=rows.kinds, attention_mask=rows.known.long()
        ).last_hidden_state
        scores: Tensor = self.head(states, rows.inside)
        return scores


def matrices(bert: BertModel) -> dict[str, nn.Linear]:
    """The linear layers of the transformer's blocks, by name."""
    found = bert.encoder.named_modules(prefix="encoder")
    return {name: module for name, module in found if isinstance(module, nn.Linear)}


class LowRank(nn.Module):
    """A matrix becomes itself plus up @ down, both in few bits."""

    def __init__(self, matrix: Tensor, rank: int) -> None:
        super().__init__()
        rows, columns = matrix.shape
        self.down = nn.Parameter(torch.empty(rank, columns, device=matrix.device))
        self.up = nn.Parameter(torch.zeros(rows, rank, device=matrix.device))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, matrix: Tensor) -> Tensor:
        """[rows, columns]."""
        return matrix + rounded(self.up.mT).mT @ rounded(self.down)


def thaw(net: PointerNet, rank: int) -> list[nn.Parameter]:
    """Let the head and changes of `rank` learn, nothing else; returns what learns."""
    net.bert.requires_grad_(False)
    for linear in matrices(net.bert).values():
        parametrize.register_parametrization(linear, "weight", LowRank(linear.weight, rank))
    return [parameter for parameter in net.parameters() if parameter.requires_grad]


def changes(net: PointerNet) -> dict[str, Tensor]:
    """What was learned, on the CPU: codes NAME.up, uint8 [rank, rows / 2], and NAME.down, uint8 [rank, columns / 2], of
    each matrix, with fp16 [rank] NAME.up_steps and NAME.down_steps; fp16 head.* for the head."""
    found = {_HEAD + name: tensor.half() for name, tensor in net.head.state_dict().items()}
    for name, linear in matrices(net.bert).items():
        (low,) = (module for module in linear.modules() if isinstance(module, LowRank))
        for part, vectors in (("up", low.up.mT), ("down", low.down)):
            found[f"{name}.{part}"], found[f"{name}.{part}{_STEPS}"] = pack(vectors)
    return {name: tensor.detach().cpu().contiguous() for name, tensor in found.items()}


@torch.no_grad()
def apply(net: PointerNet, learned: Mapping[str, Tensor]) -> None:
    """Add what `changes` gave to the network's own matrices, for good.

    Raises KeyError for what is not there, RuntimeError for what does not fit.
    """
    for name, linear in matrices(net.bert).items():
        up, down = (unpack(learned[f"{name}.{part}"], learned[f"{name}.{part}{_STEPS}"]) for part in ("up", "down"))
        if (up.shape[1], down.shape[1]) != linear.weight.shape:
            raise RuntimeError(f"{name} is no change of a matrix of {tuple(linear.weight.shape)}")
        linear.weight += up.mT @ down
    head = {name.removeprefix(_HEAD): tensor.float() for name, tensor in learned.items() if name.startswith(_HEAD)}
    net.head.load_state_dict(head)
