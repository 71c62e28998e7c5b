"""Two pointers: the one that reads everything, and a deeper one that reads what a second look chooses between.

They were trained from different bases and make different mistakes, so the mean of their log-odds is right more often
than either. The deeper one takes twice as long over a chunk, and is loaded when it is first needed.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from desk_rag.answering.evidence.span_model import HEAD, STEPS, SpanModel
from desk_rag.answering.evidence.span_scorer import Span, SpanScorer, SpanScores, load_span_scorer, ready, unreadable
from desk_rag.answering.requirements.places import Place
from desk_rag.assets import assets_dir
from desk_rag.model.checkpoint.int4 import unpack_matrix
from desk_rag.model.embedded.bert import BertShape, bert_of

if TYPE_CHECKING:
    from desk_rag.retrieval.embedding import Embedder

_WEIGHTS = "model.safetensors"
_LEAST = -30.0
"""Log-odds of a range that a pointer cannot take for an answer, because it is too long for it."""


class MeanScores(SpanScores):
    """Means of the log-odds that two pointers give."""

    def __init__(self, first: SpanScores, second: SpanScores) -> None:
        super().__init__(())
        self._both = first, second

    def log_odds(self, begin: int, end: int) -> float:
        """See `SpanScores.log_odds`."""
        return math.fsum(scores.log_odds(begin, end) for scores in self._both) / 2

    def best(self, begin: int, end: int, count: int) -> list[Span]:
        """See `SpanScores.best`; of the spans that either likes best."""
        ranges = {(span.begin, span.end) for scores in self._both for span in scores.best(begin, end, count)}
        spans = [
            Span(*each, math.fsum(max(scores.of_range(*each), _LEAST) for scores in self._both) / 2) for each in ranges
        ]
        return sorted(spans, key=lambda span: (-span.score, span.begin, span.end))[:count]


class Pointers:
    """The first pointer, and the mean of both for places that are read `closely`. Safe to share between threads."""

    def __init__(self, first: SpanScorer, embedder: Embedder, folder: Path) -> None:
        self._first, self._embedder, self._folder = first, embedder, folder
        self._deeper: SpanScorer | None = None
        self._loading = threading.Lock()

    @property
    def fingerprint(self) -> str:
        """Identifies the weights of the first; the second ships beside it."""
        return self._first.fingerprint

    def read(self, question: str, chunks: Sequence[str | Place]) -> list[SpanScores]:
        """Score the spans of each chunk."""
        scores = self._first.read(question, chunks)
        if closely := [number for number, chunk in enumerate(chunks) if _is_close(chunk)]:
            second = self.deeper().read(question, [chunks[number] for number in closely])
            for number, beside in zip(closely, second, strict=True):
                scores[number] = MeanScores(scores[number], beside)
        return scores

    def read_ahead(self, question: str, chunks: Sequence[str | Place]) -> None:
        """Begin to score chunks that `read` will be asked for, see `SpanScorer`."""
        self._first.read_ahead(question, chunks)

    def close(self) -> None:
        """End the threads."""
        for each in self._loaded():
            each.close()

    def forget(self) -> None:
        """Drop remembered scores (for measurements)."""
        for each in self._loaded():
            each.forget()

    def _loaded(self) -> list[SpanScorer]:
        return [self._first] if self._deeper is None else [self._first, self._deeper]

    def deeper(self) -> SpanScorer:
        """The second pointer, loaded if it is not."""
        with self._loading:
            if self._deeper is None:
                self._deeper = load_deeper(self._embedder, self._folder)
            return self._deeper


def _is_close(chunk: str | Place) -> bool:
    return isinstance(chunk, Place) and chunk.closely


def load_pointers(embedder: Embedder, *, looks_twice: bool = True) -> Pointers:
    """Load the first pointer; the second, whose file must be there, is loaded when it is needed.

    On a GPU it is loaded at once if there are second looks, before what is free there is given to other things.
    Raises as `load_span_scorer` does.
    """
    folder = assets_dir() / "pointer" / "deeper"
    with unreadable(folder / _WEIGHTS):
        (folder / _WEIGHTS).stat()
    pointers = Pointers(load_span_scorer(embedder), embedder, folder)
    if looks_twice and embedder.transformer()[0].device.type != "cpu":
        pointers.deeper()
    return pointers


def load_deeper(embedder: Embedder, folder: Path) -> SpanScorer:
    """Load a deeper pointer where the embedder is. Raises ModelNotFound and OutOfMemory."""
    file = folder / _WEIGHTS
    with unreadable(file):
        tensors = load_file(file)
        tokenizer = _tokenizer(folder / "tokenizer.json")
        net = SpanModel(bert_of(BertShape.read(folder / "config.json"), weights_of(tensors)))
        net.head.load_state_dict(head_of(tensors))
        return ready(net, tokenizer, hashlib.sha256(file.read_bytes()).hexdigest()[:12], embedder)


def _tokenizer(file: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library knows no narrower one
        raise ValueError(f"{file.name}: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def head_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The head's tensors among those of a file, in fp32."""
    return {name.removeprefix(HEAD): tensor.float() for name, tensor in tensors.items() if name.startswith(HEAD)}


def weights_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The transformer's tensors among those of a file, in fp32."""
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith(HEAD) and not name.endswith(STEPS)}
    return {
        name: unpack_matrix(tensor, tensors[name + STEPS]) if name + STEPS in tensors else tensor.float()
        for name, tensor in own.items()
    }
