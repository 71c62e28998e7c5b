"""Embed chunks and questions as unit vectors; embedders other than the one that ships through sentence-transformers.

An embedder reads a limited number of word pieces (256 for all-MiniLM-L6-v2) and silently cuts the rest. So longer texts
are cut between words into windows of about equal length; the chunk's vector is the mean of the windows' unit
vectors, weighted by word pieces and scaled to unit length. This rule (`WINDOW_RULE`) is part of the fingerprint, since
another rule gives other vectors.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import math
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from desk_rag.assets import assets_dir
from desk_rag.config import ModelSettings
from desk_rag.errors import ConfigError, ModelError, ModelNotFound
from desk_rag.retrieval import embedder_files

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer

    from desk_rag.model.embedded.bert import Bert
    from desk_rag.retrieval.embedded_module import EmbeddedModule

EMBEDDED = "embedded"
EMBEDDED_NAME = "all-MiniLM-L6-v2"
EMBEDDED_SHA256 = "b4e586f8530ed6681129ca0bfbeb4ff1bb4be47ba6799857d2ceead685f7f848"
"""Checksum of assets/embedder/model.safetensors; verification and the span scorer are for these weights only."""

EMBEDDED_FINGERPRINT = "b828933acf62242ca55d0711c73d2211"
"""`_fingerprint` of these weights as sentence-transformers loads them; the vectors are the same."""

_WEIGHTS = "model.safetensors"
WINDOW_RULE = "balanced windows between words, mean weighted by word pieces/1"
_CANARY = "Na\u00efve caf\u00e9s: 3.10 \u20ac \u2014 re-sign INV-2024/017 by 5pm, Stra\u00dfe \u6771\u4eac\u2026"
"""Text whose word pieces show how a tokenizer treats case, accents, digits, dashes and other scripts."""
BATCH_SIZE = 16
"""Windows in one forward pass. Larger batches are no faster on a CPU and take more memory."""


@dataclass(frozen=True, slots=True)
class _Window:
    """A part of text number `owner` that fits the embedder."""

    owner: int
    text: str
    weight: float
    """Number of word pieces if the text has several windows, else 1."""


class EmbedderLike(Protocol):
    """Interface of an `Embedder`, as retrieval and verification use it."""

    @property
    def is_embedded(self) -> bool: ...
    @property
    def fingerprint(self) -> str: ...
    def embed_chunks(self, texts: Sequence[str]) -> NDArray[np.float32]: ...
    def embed_question(self, text: str) -> NDArray[np.float32]: ...


class QuestionCache:
    """Embedder for one answer: embeds the question once, for retrieval and verification."""

    def __init__(self, embedder: EmbedderLike) -> None:
        self.is_embedded, self.fingerprint = embedder.is_embedded, embedder.fingerprint
        self.embed_chunks, self.embed_question = embedder.embed_chunks, cache(embedder.embed_question)


class Embedder:
    """A loaded embedder. Safe to share between threads; only tokenizing is serialized."""

    def __init__(self, name: str, module: SentenceTransformer, *, is_embedded: bool, fingerprint: str = "") -> None:
        """`is_embedded` states that the weights have the checksum `EMBEDDED_SHA256`.

        A name does not prove that. `fingerprint` is computed unless it is given.
        """
        self.name = name
        self.is_embedded = is_embedded
        """True for the embedder that verification is calibrated for and the span scorer was trained on."""
        self.fingerprint = fingerprint or _fingerprint(module)
        """32 hex digits over weights, tokenizer, prompts and window rule; vectors compare only if it is equal."""
        self._module = module
        self._question_module = _packed_for_short_texts(module)
        # A fast tokenizer shares its padding state; two threads in it at once raise 'Already borrowed'.
        self._tokenizing = threading.Lock()
        self._device: torch.device = module.device
        self.computes_in_half = _half_precision_pays(self._device)
        """True if `autocast` computes in bfloat16."""
        self._question_prompt = _prompt(module, "query")
        self._chunk_prompt = _prompt(module, "document", "passage", "corpus")
        # Measured, because the dimension that the model's files declare need not be the one its modules return.
        self.dim = int(self._forward([""], None, module).shape[1])

    def embed_chunks(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed document text: float32 [len(texts), dim], unit length.

        In bfloat16 if the device supports it.
        """
        return self._embed(texts, self._chunk_prompt, self.autocast(), self._module)

    def embed_question(self, text: str) -> NDArray[np.float32]:
        """Embed a question: float32 [dim], unit length."""
        vectors = self._embed([text], self._question_prompt, nullcontext(), self._question_module)
        vector: NDArray[np.float32] = vectors[0]
        return vector

    def transformer(self) -> tuple[Bert, str]:
        """The embedded embedder's transformer, not to be changed, and its tokenizer as JSON."""
        with self._tokenizing:
            tokenizer_json = self._module.tokenizer.backend_tokenizer.to_str()
        return cast("EmbeddedModule", cast(object, self._module)).bert, tokenizer_json

    def autocast(self) -> AbstractContextManager[None]:
        """Context for forward passes that may use bfloat16 if the device supports it."""
        import torch

        return torch.autocast(self._device.type, dtype=torch.bfloat16) if self.computes_in_half else nullcontext()

    def _embed(
        self,
        texts: Sequence[str],
        prompt: str | None,
        precision: AbstractContextManager[None],
        module: SentenceTransformer,
    ) -> NDArray[np.float32]:
        import numpy as np

        windows = [window for owner, text in enumerate(texts) for window in self._windows(owner, text, prompt)]
        windows.sort(key=lambda window: len(window.text))  # similar lengths together, so that there is little padding
        sums = np.zeros((len(texts), self.dim), dtype=np.float32)
        with precision:
            for first in range(0, len(windows), BATCH_SIZE):
                batch = windows[first : first + BATCH_SIZE]
                vectors = self._forward([w.text for w in batch], prompt, module)
                for window, vector in zip(batch, vectors, strict=True):
                    sums[window.owner] += window.weight * vector
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        unit: NDArray[np.float32] = sums / np.maximum(lengths, np.float32(1e-12))
        return unit

    def _forward(self, texts: list[str], prompt: str | None, module: SentenceTransformer) -> NDArray[np.float32]:
        """Embed one batch as `SentenceTransformer.encode` does: [len(texts), dim]."""
        import numpy as np
        import torch

        with self._tokenizing:
            features = self._module.preprocess(texts, prompt=prompt)
        with torch.inference_mode():
            for key, value in features.items():
                features[key] = value.to(self._device) if isinstance(value, torch.Tensor) else value
            vectors = torch.nn.functional.normalize(module(features)["sentence_embedding"].float(), dim=1)
        return np.asarray(vectors.cpu().numpy(), dtype=np.float32)

    def _windows(self, owner: int, text: str, prompt: str | None) -> Iterator[_Window]:
        limit = self._module.max_seq_length
        # One word piece has at least one character, so short texts need no count.
        if not limit or math.isinf(limit) or len(text) + len(prompt or "") <= limit - 2:
            yield _Window(owner, text, 1.0)
            return
        ends, room = self._word_piece_ends(text, prompt, int(limit))
        if len(ends) <= room:
            yield _Window(owner, text, 1.0)
            return
        yield from _cut(owner, text, ends, room)

    def _word_piece_ends(self, text: str, prompt: str | None, limit: int) -> tuple[list[int], int]:
        """Return the end character of each word piece, and how many fit beside the prompt."""
        tokenizer = self._module.tokenizer
        with self._tokenizing:
            offsets = tokenizer(
                text, add_special_tokens=False, truncation=False, return_offsets_mapping=True, verbose=False
            )["offset_mapping"]
            extra = len(tokenizer(prompt or "", add_special_tokens=True)["input_ids"])
        return [int(end) for _, end in offsets], max(16, limit - extra)


def load_embedder(settings: ModelSettings) -> Embedder:
    """Load the embedder `settings.embedder` on the device that `settings.device` allows.

    Without `settings.allow_download` only the disk is used. Raises ModelNotFound if there are no weights (or, for the
    embedded one, not the expected ones), ModelError if they are no text embedder, and ConfigError if the settings
    demand an NVIDIA GPU and there is none.
    """
    if not settings.allow_download:
        # huggingface_hub reads this when it is first imported; after that `local_files_only` below takes effect.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    device = _device(settings)
    is_embedded = settings.embedder == EMBEDDED
    source = embedded_dir() if is_embedded else check_directory(settings)
    with nullcontext() if is_embedded else _quiet():
        try:
            module = _embedded_module(source) if is_embedded else _library_module(source, settings.embedder)
        except Exception as error:  # the libraries may raise anything for files of the wrong kind
            raise ModelError(
                f"The embedder '{settings.embedder}' could not be loaded: {_first_line(error)}",
                remedy="Use embedder = 'embedded', or download the model's files again.",
            ) from error
    name = EMBEDDED_NAME if is_embedded else settings.embedder
    try:
        fingerprint = EMBEDDED_FINGERPRINT if is_embedded else ""
        return Embedder(name, module.eval().to(device), is_embedded=is_embedded, fingerprint=fingerprint)
    except Exception as error:  # as above
        raise ModelError(
            f"The embedder '{settings.embedder}' does not turn text into vectors: {_first_line(error)}",
            remedy="Use embedder = 'embedded' or another sentence-transformers model for text.",
        ) from error


def _embedded_module(folder: Path) -> SentenceTransformer:
    """Load the embedder that ships; its module has what an `Embedder` uses of a SentenceTransformer."""
    from desk_rag.retrieval.embedded_module import EmbeddedModule

    return cast("SentenceTransformer", EmbeddedModule(folder))


def _library_module(source: Path | str, name: str) -> SentenceTransformer:
    from sentence_transformers import SentenceTransformer

    module = SentenceTransformer(
        str(source),
        device="cpu",
        local_files_only=True,
        trust_remote_code=False,
        model_kwargs={"use_safetensors": True},
    )
    module.prompts = embedder_files.missing_prompts(name, module.prompts)
    return module


def check_directory(settings: ModelSettings) -> Path:
    """Return the embedder's directory after all checks that need no weights to be loaded.

    Raises ModelNotFound, UnsupportedModel or ModelError.
    """
    with _quiet():
        return embedder_files.check_embedder(settings)


def files_of(settings: ModelSettings) -> list[Path]:
    """List the embedder's files, to detect changes; empty for hub names and missing embedders."""
    folder = assets_dir() / "embedder" if settings.embedder == EMBEDDED else Path(settings.embedder).expanduser()
    return sorted(file for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else []


def embedded_dir() -> Path:
    """Return the folder of the embedder that ships, after checking the sha256 of its weights."""
    folder = assets_dir() / "embedder"
    check_weights(folder / _WEIGHTS, EMBEDDED_SHA256, "Install desk-rag again.")
    return folder


def check_weights(file: Path, sha256: str, remedy: str) -> None:
    """Raise ModelNotFound unless `file` exists and has this sha256."""
    try:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ModelNotFound(
            f"The embedder's weights cannot be read at {file}: {error.strerror}.", remedy=remedy
        ) from error
    if digest != sha256:
        raise ModelNotFound(
            f"The embedder's weights at {file} are not the expected ones (sha256 {digest}).", remedy=remedy
        )


def _device(settings: ModelSettings) -> str:
    if settings.device == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if settings.device == "cuda":
        raise ConfigError(
            "device = 'cuda' needs an NVIDIA GPU that PyTorch can use, and there is none.",
            remedy="Set device to 'auto' or 'cpu'.",
        )
    return "cpu"


def _packed_for_short_texts(module: SentenceTransformer) -> SentenceTransformer:
    """On a CPU, copy `module` with matrices packed for few rows; elsewhere return `module`.

    The copy shares everything but the matrices, which take at most half as much memory as the original's.
    """
    from desk_rag.model import packed_linear

    if (twin := getattr(module, "for_short_texts", lambda: None)()) is not None:
        return cast("SentenceTransformer", twin)
    if module.device.type != "cpu" or not packed_linear.available():
        return module
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    tokenizer = module.tokenizer
    packed = copy.deepcopy(module, {**shared, id(tokenizer): tokenizer})
    packed_linear.pack_linears(packed)
    return packed


def _half_precision_pays(device: torch.device) -> bool:
    import torch

    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    features = torch.cpu.get_capabilities()
    return bool(features.get("avx512_bf16") or features.get("amx_bf16"))


def _prompt(module: SentenceTransformer, *names: str) -> str | None:
    """Text a model expects before questions or documents ('query: ')."""
    for name in names:
        if name in module.prompts:
            return str(module.prompts[name]) or None
    default = module.prompts.get(module.default_prompt_name) if module.default_prompt_name else None
    return str(default) if default else None


def _fingerprint(module: SentenceTransformer) -> str:
    """Hash all that determines the vectors.

    Only uses values that do not depend on library versions, so that an update does not cause all documents to be
    embedded again.
    """
    import torch

    tokenizer = module.tokenizer
    parts = [
        WINDOW_RULE,
        module.max_seq_length,
        sorted(module.prompts.items()),
        [type(part).__name__ for part in module],
        [part.get_pooling_mode_str() for part in module if hasattr(part, "get_pooling_mode_str")],
        sorted(tokenizer.get_vocab().items()),
        tokenizer(_CANARY, add_special_tokens=True)["input_ids"],
    ]
    digest = hashlib.sha256(repr(parts).encode())
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()[:32]


def _cut(owner: int, text: str, ends: list[int], room: int) -> Iterator[_Window]:
    """Cut text into windows of at most `room` word pieces, at a word boundary if one is near."""
    start, first = 0, 0
    while first < len(ends):
        remaining = len(ends) - first
        last = first + math.ceil(remaining / math.ceil(remaining / room))
        for candidate in range(last, max(first, last - 16), -1):
            if candidate == len(ends) or text[ends[candidate - 1]].isspace():
                last = candidate
                break
        end = len(text) if last == len(ends) else ends[last - 1]
        yield _Window(owner, text[start:end], float(last - first))
        start, first = end, last


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the libraries' progress bars and notices while a model loads."""
    from transformers.utils import logging as transformers_logging

    # peft, if installed, imports bitsandbytes, which warns about kernels that a CPU does not have.
    names = ("transformers", "sentence_transformers", "huggingface_hub", "bitsandbytes", "peft")
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars:
            transformers_logging.enable_progress_bar()
