"""Where in a chunk a question is answered: what a second, small model thinks of every span.

Knows texts, the embedder's transformer and the adapter in `assets/pointer`; knows no reader model, no quote and no
answer. The embedded reader learned its English from 65 million tokens, the embedder from a billion pairs of sentences,
so the two err differently, and what both like is right more often than what either likes best.
"""

from __future__ import annotations

import copy
import hashlib
import threading
import unicodedata
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from desk_rag.answering.evidence.span_batch import LONGEST_QUESTION, LONGEST_ROW, Pair, rows
from desk_rag.answering.evidence.span_model import PointerNet, apply
from desk_rag.assets import assets_dir
from desk_rag.errors import ModelNotFound, OutOfMemory

if TYPE_CHECKING:
    from desk_rag.retrieval.embedding import Embedder

FILE = "pointer.safetensors"
"""The adapter, in its folder."""
_SHARED = 48
"""Word pieces that two windows of a long chunk share: more than the longest span."""
_KEPT = 64
"""Fields that are remembered, some 16 MB of usual chunks, all of one answer: who chooses and the judge ask again."""


@dataclass(frozen=True, slots=True)
class Span:
    """Some characters of a text."""

    begin: int
    end: int
    score: float
    """Log odds against 'this chunk does not answer it', as far as one span has them."""


@dataclass(frozen=True, slots=True)
class _Window:
    offsets: tuple[tuple[int, int], ...]
    """Characters of every word piece, in the chunk."""
    scores: Tensor
    """fp32 [N, N] of spans from one piece to another."""


class Field:
    """What the pointer thinks of one chunk."""

    def __init__(self, windows: Sequence[_Window]) -> None:
        self._windows = tuple(windows)

    def worth(self, begin: int, end: int) -> float:
        """Log of the odds that the answer stands between two characters, all spans there together; -inf if none."""
        found = [float(part.logsumexp((0, 1))) for _, _, part in self._parts(begin, end)]
        return max(found, default=-torch.inf)

    def best(self, begin: int, end: int, count: int) -> list[Span]:
        """The `count` best spans between two characters, best first, none twice."""
        spans: dict[tuple[int, int], float] = {}
        for window, first, part in self._parts(begin, end):
            flat = part.flatten()
            # Pieces of one character have its place in common, and so have their spans.
            often = max(Counter(window.offsets[first : first + len(part)]).values())
            top = flat.topk(min(count * often**2, len(flat)))
            for score, place in zip(top.values.tolist(), top.indices.tolist(), strict=True):
                row, column = divmod(place, part.shape[1])
                where = window.offsets[first + row][0], window.offsets[first + column][1]
                if score > -torch.inf:
                    spans[where] = max(score, spans.get(where, -torch.inf))
        order = sorted(spans, key=lambda where: -spans[where])[:count]
        return [Span(*where, spans[where]) for where in order]

    def _parts(self, begin: int, end: int) -> Iterator[tuple[_Window, int, Tensor]]:
        """Windows that hold pieces between two characters, the first such piece, the scores of spans of such."""
        for window in self._windows:
            inside = [n for n, (first, last) in enumerate(window.offsets) if first >= begin and last <= end]
            if inside:
                first, stop = inside[0], inside[-1] + 1
                yield window, first, window.scores[first:stop, first:stop]


class Reads(Protocol):
    """What is wanted of a pointer; `Pointer` is one."""

    @property
    def fingerprint(self) -> str:
        """Of what it thinks."""
        ...

    def read(self, question: str, texts: Sequence[str]) -> list[Field]:
        """One field per text."""
        ...


class Pointer:
    """A loaded pointer. Safe to share between threads."""

    def __init__(
        self, net: PointerNet, tokenizer: Tokenizer, fingerprint: str = "",
        precision: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:  # fmt: skip
        """`precision` is entered around forward passes."""
        self._net, self._tokenizer, self._precision = net, tokenizer, precision
        self.fingerprint = fingerprint
        """12 hex digits of the adapter."""
        self._kept: OrderedDict[tuple[str, str], Field] = OrderedDict()
        self._lock = threading.Lock()
        """Over what is kept, never while something is read."""

    def read(self, question: str, texts: Sequence[str]) -> list[Field]:
        """One field per text, 0.15 to 0.2 ms per word piece on two cores; the last ones are remembered."""
        asked = self._ids(question)[:LONGEST_QUESTION]
        return [self._field(question, asked, text) for text in texts]

    def forget(self) -> None:
        """What was read is read anew (for measurements)."""
        with self._lock:
            self._kept.clear()

    def _field(self, question: str, asked: Sequence[int], text: str) -> Field:
        with self._lock:
            found = self._kept.get((question, text))
            if found is not None:
                self._kept.move_to_end((question, text))
        if found is None:
            found = Field(list(self._windows(asked, text)))
            with self._lock:
                self._kept[question, text] = found
                while len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
        return found

    def _piece(self, name: str) -> int:
        found = self._tokenizer.token_to_id(name)
        assert found is not None
        return found

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _windows(self, asked: Sequence[int], text: str) -> Iterator[_Window]:
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        room = LONGEST_ROW - Pair(asked, ()).length
        start, count = 0, len(encoded.ids)
        while start < count:
            stop = min(count, start + room)
            offsets = tuple((begin, _marked(text, end)) for begin, end in encoded.offsets[start:stop])
            yield _Window(offsets, self._scores(Pair(asked, encoded.ids[start:stop])))
            if stop == count:
                return
            start = stop - _SHARED

    @torch.inference_mode()
    def _scores(self, pair: Pair) -> Tensor:
        device = self._net.head.ends.weight.device
        row = rows([pair], self._piece("[CLS]"), self._piece("[SEP]"), pair.length).each(lambda part: part.to(device))
        with self._precision():
            scores: Tensor = self._net(row)
        return scores[0, pair.start : -1, pair.start : -1].cpu()


def _reason(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())


def _marked(text: str, end: int) -> int:
    """Behind the marks that belong to the character before `end`: the tokenizer leaves them out of its pieces."""
    while end < len(text) and unicodedata.category(text[end]).startswith("M"):
        end += 1
    return end


def load_pointer(embedder: Embedder, folder: Path | None = None) -> Pointer:
    """The pointer over the embedded embedder, whose word table it shares; its blocks take 43 MB beside the embedder's.

    `folder` holds the adapter, by default the one that ships. Raises ModelNotFound where that is missing or damaged,
    and OutOfMemory.
    """
    file = (folder or assets_dir() / "pointer") / FILE
    bert, words = embedder.transformer()
    shared = {id(tensor): tensor for tensor in bert.embeddings.parameters()}
    try:
        net = PointerNet(copy.deepcopy(bert, shared)).to(bert.device)
        fingerprint = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
        apply(net, load_file(file, device=str(bert.device)))
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            "The GPU has no room for the model that chooses quotes (43 MB).",
            remedy="Close other programs on the GPU, or set `choose_quote = false` under [answer].",
        ) from error
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise ModelNotFound(
            f"The pointer at {file} cannot be read: {_reason(error)}",
            remedy="Install desk-rag again, or set `choose_quote = false` under [answer].",
        ) from error
    tokenizer = Tokenizer.from_str(words)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    net.bert.encoder.requires_grad_(False)
    net.head.requires_grad_(False)
    return Pointer(net.eval(), tokenizer, fingerprint, embedder.autocast)
