"""Score every span of a chunk as the answer to a question, with an adapter of the embedder.

The reader that ships learned English from 65 million tokens, the embedder from a billion pairs of sentences. They make
different mistakes, so a choice that both score highly is right more often than the favourite of either.
"""

from __future__ import annotations

import copy
import hashlib
import os
import threading
import unicodedata
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from desk_rag.answering.evidence.span_model import (
    LONGEST_QUESTION,
    LONGEST_ROW,
    QuestionChunkPair,
    SpanModel,
    apply_adapter,
    build_batch,
    linear_layers,
)
from desk_rag.answering.requirements.places import Place, bare
from desk_rag.answering.requirements.stems import content_stems, has_stem
from desk_rag.assets import assets_dir
from desk_rag.errors import ModelNotFound, OutOfMemory
from desk_rag.model.embedded import threads
from desk_rag.model.embedded.compiled_bert import fastest

if TYPE_CHECKING:
    from transformers import BertModel

    from desk_rag.model.embedded.bert import Bert
    from desk_rag.retrieval.embedding import Embedder

FILE = "pointer.safetensors"
"""File name of the adapter."""
_OVERLAP = 48
"""Word pieces shared by consecutive windows of a long chunk: more than the longest span."""
_TILE = 16
"""Rows are filled up to a multiple of this on a CPU, whose attention takes up to twice as long over other lengths."""
_KEPT = 64
"""Chunks whose scores are remembered, about 16 MB: selection and verification of one answer use the same ones."""
_BATCH = 32
"""Rows of one forward pass on a GPU."""
_LONGEST_NAME = 24
"""Word pieces of a file's name that are read before its text."""


@dataclass(frozen=True, slots=True)
class Span:
    """A range of characters in a chunk."""

    begin: int
    end: int
    score: float
    """Log-odds that this span alone is the answer, against "the chunk does not answer the question"."""


class _Named(NamedTuple):
    """A chunk's text and the name that it does not say itself."""

    text: str
    name: str


@dataclass(frozen=True, slots=True)
class _Window:
    offsets: tuple[tuple[int, int], ...]
    """Character range in the chunk of every word piece."""
    scores: Tensor
    """fp32 [N, N]: spans from one piece to another, both included."""


class SpanScores:
    """Span scores of one chunk for one question."""

    def __init__(self, windows: Sequence[_Window]) -> None:
        self._windows = tuple(windows)
        self._log_odds: dict[tuple[int, int], float] = {}

    def log_odds(self, begin: int, end: int) -> float:
        """Log-odds that the answer lies in characters [begin, end), summed over spans.

        -inf if there are none.
        """
        log_odds = self._log_odds.get((begin, end))
        if log_odds is None:
            by_window = [float(part.logsumexp((0, 1))) for _, _, part in self._parts(begin, end)]
            log_odds = self._log_odds[begin, end] = max(by_window, default=-torch.inf)
        return log_odds

    def best(self, begin: int, end: int, count: int) -> list[Span]:
        """The `count` best spans within characters [begin, end), best first, none twice."""
        score_by_range: dict[tuple[int, int], float] = {}
        for window, first, part in self._parts(begin, end):
            flat = part.flatten()
            # Several pieces of one character share its offsets, so several spans may stand for the same range.
            most_pieces = max(Counter(window.offsets[first : first + len(part)]).values())
            top = flat.topk(min(count * most_pieces**2, len(flat)))
            for score, index in zip(top.values.tolist(), top.indices.tolist(), strict=True):
                row, column = divmod(index, part.shape[1])
                char_range = window.offsets[first + row][0], window.offsets[first + column][1]
                if score > -torch.inf:
                    score_by_range[char_range] = max(score, score_by_range.get(char_range, -torch.inf))
        best_ranges = sorted(score_by_range, key=lambda char_range: -score_by_range[char_range])[:count]
        return [Span(*char_range, score_by_range[char_range]) for char_range in best_ranges]

    def of_range(self, begin: int, end: int) -> float:
        """Log-odds of the one span whose pieces cover characters [begin, end); -inf if it is too long."""
        worth = -torch.inf
        for window in self._windows:
            covering = [n for n, (first, last) in enumerate(window.offsets) if first < end and last > begin]
            if covering:
                worth = max(worth, float(window.scores[covering[0], covering[-1]]))
        return worth

    def _parts(self, begin: int, end: int) -> Iterator[tuple[_Window, int, Tensor]]:
        """Per window with pieces in [begin, end).

        The window, its first such piece, the scores of their spans.
        """
        for window in self._windows:
            inside = [n for n, (first, last) in enumerate(window.offsets) if first >= begin and last <= end]
            if inside:
                first, stop = inside[0], inside[-1] + 1
                yield window, first, window.scores[first:stop, first:stop]


class SpanScorerLike(Protocol):
    """Interface of a `SpanScorer`, as selection and verification use it."""

    @property
    def fingerprint(self) -> str:
        """Identifies the weights."""
        ...

    def read(self, question: str, chunks: Sequence[str | Place]) -> list[SpanScores]:
        """Score the spans of each chunk.

        Of one that is given with its place, the file's name may be read as well.
        """
        ...


class SpanScorer:
    """A loaded span scorer. Safe to share between threads.

    On a CPU `read_ahead` begins with the last chunk on threads of its own and `read` with the first; each takes what
    the others have not begun. A chunk is read by one thread: several finish no sooner than as many chunks at a time.
    On a GPU, which has finished a chunk before the next is launched, all chunks are one batch.
    """

    def __init__(
        self, net: SpanModel, tokenizer: Tokenizer, fingerprint: str = "",
        precision: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:  # fmt: skip
        """`precision` is entered around forward passes."""
        self._net, self._tokenizer, self._precision = net, tokenizer, precision
        self.fingerprint = fingerprint
        """First 12 hex digits of the adapter's sha256."""
        self._kept: OrderedDict[tuple[str, str, str], Future[SpanScores]] = OrderedDict()
        self._lock = threading.Lock()
        """Guards the cache; not held during a forward pass."""
        self._on_cpu = next(net.parameters()).device.type == "cpu"
        self._ahead: ThreadPoolExecutor | None = None
        if self._on_cpu and (os.cpu_count() or 1) > 1:
            self._ahead = ThreadPoolExecutor(max(1, threads.most() - 1), "span-scorer", threads.keep_to_one)

    def read(self, question: str, chunks: Sequence[str | Place]) -> list[SpanScores]:
        """Score the spans of each chunk; recent results are remembered."""
        if len(chunks) > 1:
            self.read_ahead(question, chunks[1:])
        question_ids = self._ids(question)[:LONGEST_QUESTION]
        named = [_named(chunk, question) for chunk in chunks]
        if not self._on_cpu:
            self._read_batch(question, question_ids, named)
        with threads.one() if self._on_cpu else nullcontext():
            return [future.result() for future in [self._begun(question, question_ids, one) for one in named]]

    def _read_batch(self, question: str, question_ids: Sequence[int], chunks: Sequence[_Named]) -> None:
        """Score those of the chunks, as many as are remembered, that are not known yet."""
        with self._lock:
            unknown = [one for one in dict.fromkeys(chunks) if (question, *one) not in self._kept][:_KEPT]
        pairs_by_chunk = {one: list(self._pairs(question_ids, one)) for one in unknown}
        rows = [pair for pairs in pairs_by_chunk.values() for _, pair in pairs]
        scores = iter(
            [part for start in range(0, len(rows), _BATCH) for part in self._scores(rows[start : start + _BATCH])]
        )
        for one, pairs in pairs_by_chunk.items():
            future: Future[SpanScores] = Future()
            future.set_result(SpanScores([_Window(offsets, next(scores)) for offsets, _ in pairs]))
            with self._lock:
                self._keep(question, one, future)

    def read_ahead(self, question: str, chunks: Sequence[str | Place]) -> None:
        """Begin to score chunks that `read` will be asked for, where another core has nothing to do."""
        if self._ahead is not None:
            question_ids = self._ids(question)[:LONGEST_QUESTION]
            for chunk in reversed(chunks):
                self._ahead.submit(self._begun, question, question_ids, _named(chunk, question))

    def close(self) -> None:
        """End the threads."""
        if self._ahead is not None:
            self._ahead.shutdown(cancel_futures=True)

    def forget(self) -> None:
        """Drop remembered scores (for measurements)."""
        with self._lock:
            self._kept.clear()

    def _begun(self, question: str, question_ids: Sequence[int], chunk: _Named) -> Future[SpanScores]:
        """Scores that are remembered or that another thread is computing; else they are computed here and now."""
        key = (question, *chunk)
        with self._lock:
            future = self._kept.get(key)
            if future is not None:
                self._kept.move_to_end(key)
                return future
            future = Future()
            self._keep(question, chunk, future)
        try:
            pairs = self._pairs(question_ids, chunk)
            future.set_result(SpanScores([_Window(offsets, self._scores([pair])[0]) for offsets, pair in pairs]))
        except BaseException as error:
            future.set_exception(error)
            with self._lock:
                self._kept.pop(key, None)
            raise
        return future

    def _keep(self, question: str, chunk: _Named, future: Future[SpanScores]) -> None:
        """Remember scores, and forget the oldest; call it with the lock held."""
        self._kept[question, *chunk] = future
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)

    def _special_id(self, name: str) -> int:
        token_id = self._tokenizer.token_to_id(name)
        assert token_id is not None
        return token_id

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _pairs(
        self, question_ids: Sequence[int], chunk: _Named
    ) -> Iterator[tuple[tuple[tuple[int, int], ...], QuestionChunkPair]]:
        """Yield each window of a chunk: character ranges of its word pieces, and the row to score."""
        text, name = chunk.text, self._ids(chunk.name)[:_LONGEST_NAME]
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        room = LONGEST_ROW - QuestionChunkPair(question_ids, (), name).length
        start, count = 0, len(encoded.ids)
        while start < count:
            stop = min(count, start + room)
            offsets = tuple(_of_piece(text, *piece) for piece in encoded.offsets[start:stop])
            yield offsets, QuestionChunkPair(question_ids, encoded.ids[start:stop], name)
            if stop == count:
                return
            start = stop - _OVERLAP

    @torch.inference_mode()
    def _scores(self, pairs: Sequence[QuestionChunkPair]) -> list[Tensor]:
        """Scores of each row's spans, by one forward pass."""
        device = self._net.head.ends.weight.device
        longest = max(pair.length for pair in pairs)
        width = -(-longest // _TILE) * _TILE if self._on_cpu else longest
        batch = build_batch(pairs, self._special_id("[CLS]"), self._special_id("[SEP]"), width)
        with self._precision():
            scores: Tensor = self._net(batch.map(lambda tensor: tensor.to(device)))
        on_host = scores.cpu()
        inside = [slice(pair.start, pair.length - 1) for pair in pairs]
        return [row[own, own] for row, own in zip(on_host, inside, strict=True)]


def _named(chunk: str | Place, question: str) -> _Named:
    """The text with the file's name, if it has no title or the name alone has a word of the question."""
    place = bare(chunk)
    is_said = place.name.casefold() in place.text.partition("\n")[0].casefold()
    is_read = not is_said and (place.body == 0 or _says_more(place, question))
    return _Named(place.text, place.name if is_read else "")


def _says_more(place: Place, question: str) -> bool:
    of_name, of_text = content_stems(place.name), content_stems(place.text)
    return any(has_stem(stem, of_name) and not has_stem(stem, of_text) for stem in content_stems(question))


def _reason(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())


def _of_piece(text: str, begin: int, end: int) -> tuple[int, int]:
    """A word piece's characters: without blanks before it, with combining marks, which a tokenizer may leave out."""
    while end < len(text) and unicodedata.category(text[end]).startswith("M"):
        end += 1
    while begin < end and text[begin].isspace():
        begin += 1
    return begin, end


def load_span_scorer(embedder: Embedder, folder: Path | None = None) -> SpanScorer:
    """Load the span scorer of the embedded embedder.

    It shares the embedder's word table; the other weights take 43 MB.

    `folder` holds the adapter, by default the one that ships. Raises ModelNotFound if that is missing or damaged, and
    OutOfMemory.
    """
    file = (folder or assets_dir() / "pointer") / FILE
    bert, tokenizer = embedder.transformer()
    shared = {id(tensor): tensor for tensor in bert.parameters()}  # `apply_adapter` replaces what differs
    with unreadable(file):
        net = SpanModel(copy.deepcopy(bert, shared)).to(bert.device)
        fingerprint = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
        apply_adapter(net, load_file(file, device=str(bert.device)))
        return ready(net, tokenizer, fingerprint, embedder)


def ready(net: SpanModel, tokenizer: Tokenizer, fingerprint: str, embedder: Embedder) -> SpanScorer:
    """The scorer of a network, on the device of the embedder and computing as that does."""
    device = embedder.transformer()[0].device
    precision: Callable[[], AbstractContextManager[None]] = embedder.autocast
    net = net.to(device)
    if device.type == "cpu":
        net.bert, precision = fastest(net.bert, in_half=embedder.computes_in_half), nullcontext
    elif embedder.computes_in_half:
        halve(net.bert)
    return SpanScorer(net.eval().requires_grad_(False), tokenizer, fingerprint, precision)


def halve(bert: Bert | BertModel) -> None:
    """Round matrices and biases to bfloat16 once, as autocast would before every product.

    They become tensors of their own: those of the embedder, which are shared until then, stay in fp32.
    """
    for linear in linear_layers(bert).values():
        for name, tensor in list(linear.named_parameters()):
            setattr(linear, name, torch.nn.Parameter(tensor.to(torch.bfloat16), requires_grad=False))


@contextmanager
def unreadable(file: Path) -> Iterator[None]:
    """Raise what a user can act on where a span scorer cannot be loaded from `file`."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            "The GPU has no room for the model that selects quotes (43 MB).",
            remedy="Close other programs on the GPU, or set `choose_quote = false` under [answer].",
        ) from error
    except (OSError, SafetensorError, KeyError, RuntimeError, ValueError) as error:
        raise ModelNotFound(
            f"The model that selects quotes, {file}, cannot be read: {_reason(error)}",
            remedy="Reinstall desk-rag, or set `choose_quote = false` under [answer].",
        ) from error
