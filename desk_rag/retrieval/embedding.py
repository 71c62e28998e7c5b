"""Embed chunks and questions as unit vectors; embedders other than the one that ships through sentence-transformers.

Texts that are longer than an embedder reads are cut between words into windows of about equal length (windows.py). The
chunk's vector is the mean of the windows' unit vectors, weighted by word pieces and scaled to unit length. The embedder
that ships also gives the vectors of single word pieces, for late interaction (token_vectors.py). It finds passages with
weights that were trained for that (retrieval_weights.py), and compares sentences with its own.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from desk_rag.assets import assets_dir
from desk_rag.config import ModelSettings
from desk_rag.errors import ConfigError, ModelError, ModelNotFound
from desk_rag.retrieval import embedder_files
from desk_rag.retrieval.fingerprint import fingerprint_of
from desk_rag.retrieval.token_vectors import ChunkEncodings, QuestionEncoding, pack_signs
from desk_rag.retrieval.windows import Window, windows

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer
    from tokenizers import Tokenizer

    from desk_rag.model.embedded.bert import Bert
    from desk_rag.retrieval.embedded_module import EmbeddedModule

EMBEDDED = "embedded"
EMBEDDED_NAME = "all-MiniLM-L6-v2"
EMBEDDED_SHA256 = "b4e586f8530ed6681129ca0bfbeb4ff1bb4be47ba6799857d2ceead685f7f848"
"""Checksum of assets/embedder/model.safetensors; verification and the span scorer are for these weights only."""

_RETRIEVAL_SHA256 = "40adcefd6c9bb5fc472e4340e55c505b7d35cb069f48b049fd24505f53a9b6f2"
"""The same of assets/embedder/retrieval.safetensors: what the weights for finding passages have besides."""

EMBEDDED_FINGERPRINT = "ef6eb942185e3f224f344a90aafbc39a"
"""`fingerprint_of` the weights for finding passages as sentence-transformers loads them; the vectors are the same."""

_WEIGHTS, RETRIEVAL_FILE = "model.safetensors", "retrieval.safetensors"
GPU_BATCH = 16
"""Windows in a GPU's pass. A CPU takes one: in a batch bf16 rounds otherwise, and ranks would depend on neighbours."""


class EmbedderLike(Protocol):
    """Interface of an `Embedder`, as retrieval and verification use it."""

    @property
    def is_embedded(self) -> bool: ...
    @property
    def fingerprint(self) -> str: ...
    def embed_chunks(self, texts: Sequence[str]) -> NDArray[np.float32]: ...
    def encode_question(self, text: str) -> QuestionEncoding: ...
    def embed_question(self, text: str) -> NDArray[np.float32]: ...


class QuestionCache:
    """Embedder for one answer: reads the question once for retrieval, and once for verification."""

    def __init__(self, embedder: EmbedderLike) -> None:
        self.is_embedded, self.fingerprint = embedder.is_embedded, embedder.fingerprint
        self.embed_chunks = embedder.embed_chunks
        self.encode_question, self.embed_question = cache(embedder.encode_question), cache(embedder.embed_question)


class Embedder:
    """A loaded embedder. Safe to share between threads; only tokenizing is serialized."""

    def __init__(
        self,
        name: str,
        module: SentenceTransformer,
        *,
        is_embedded: bool,
        fingerprint: str = "",
        retrieval: Embedder | None = None,
    ) -> None:
        """`is_embedded` states that the weights have the checksum `EMBEDDED_SHA256`.

        A name does not prove that. `fingerprint` is computed unless it is given. `retrieval` encodes chunks and
        questions for being found, if other weights than the module's do so; the fingerprint is then its own.
        """
        self.name = name
        self.retrieval = retrieval
        self.is_embedded = is_embedded
        """True for the embedder that verification is calibrated for and the span scorer was trained on."""
        self.fingerprint: str = retrieval.fingerprint if retrieval else fingerprint or fingerprint_of(module)
        """32 hex digits over weights, tokenizer, prompts and window rule; vectors compare only if it is equal."""
        self.gives_tokens = bool(getattr(module, "gives_tokens", False))
        """True if vectors of single word pieces are made, for late interaction."""
        self._module = module
        self._question_module = _packed_for_short_texts(module)
        # A fast tokenizer shares its padding state; two threads in it at once raise 'Already borrowed'.
        self._tokenizing = threading.Lock()
        self._device: torch.device = module.device
        self.computes_in_half = _half_precision_pays(self._device)
        """True if `autocast` computes in bfloat16."""
        self._parameters = sum(tensor.numel() for tensor in module.parameters())
        self._question_prompt = _prompt(module, "query")
        self._chunk_prompt = _prompt(module, "document", "passage", "corpus")
        # Measured, because the dimension that the model's files declare need not be the one its modules return.
        self.dim: int = retrieval.dim if retrieval else self._forward([""], None, module, tokens=False)[0].shape[1]

    @cached_property
    def _chunk_module(self) -> SentenceTransformer:
        """The module for document text; packed when it is first needed, because most questions need one of two."""
        packed = getattr(self._module, "in_bf16", lambda: None)() if self.computes_in_half else None
        return self._module if packed is None else packed

    def embed_chunks(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed document text: float32 [len(texts), dim], unit length; in bfloat16 if the device supports it."""
        return self._embed(texts, self._chunk_prompt, self.autocast(), self._chunk_module, tokens=False)[0]

    def encode_chunks(self, texts: Sequence[str]) -> ChunkEncodings:
        """Embed document text to be found, with the signs of its token vectors if they are made."""
        if self.retrieval is not None:
            return self.retrieval.encode_chunks(texts)
        vectors, tokens = self._embed(
            texts, self._chunk_prompt, self.autocast(), self._chunk_module, tokens=self.gives_tokens
        )
        return ChunkEncodings(vectors, None if tokens is None else tuple(pack_signs(each) for each in tokens))

    def embed_question(self, text: str) -> NDArray[np.float32]:
        """Embed a question, to be compared with `embed_chunks`: float32 [dim], unit length."""
        vectors, _ = self._embed([text], self._question_prompt, nullcontext(), self._question_module, tokens=False)
        return cast("NDArray[np.float32]", vectors[0])

    def encode_question(self, text: str) -> QuestionEncoding:
        """Embed a question to find chunks, with its token vectors if they are made."""
        import numpy as np

        if self.retrieval is not None:
            return self.retrieval.encode_question(text)
        vectors, tokens = self._embed(
            [text], self._question_prompt, nullcontext(), self._question_module, tokens=self.gives_tokens
        )
        if tokens is None or not len(tokens[0]):
            return QuestionEncoding(vectors[0])
        lengths = np.linalg.norm(tokens[0], axis=1, keepdims=True)
        return QuestionEncoding(vectors[0], tokens[0] / np.maximum(lengths, np.float32(1e-12)))

    def transformer(self) -> tuple[Bert, Tokenizer]:
        """The embedded embedder's transformer and its tokenizer, which cuts no text; neither is to be changed."""
        module = cast("EmbeddedModule", cast(object, self._module))
        return module.bert, module.tokenizer.plain

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
        *,
        tokens: bool,
    ) -> tuple[NDArray[np.float32], list[NDArray[np.float32]] | None]:
        """Return vectors [len(texts), dim] and, with `tokens`, those of each text's word pieces."""
        import numpy as np

        in_order = [window for owner, text in enumerate(texts) for window in self._windows(owner, text, prompt)]
        # Similar lengths together, so that there is little padding.
        order = sorted(range(len(in_order)), key=lambda index: len(in_order[index].text))
        sums = np.zeros((len(texts), self.dim), dtype=np.float32)
        tokens_by_window: dict[int, NDArray[np.float32]] = {}
        with precision:
            size = 1 if self._device.type == "cpu" else GPU_BATCH
            for first in range(0, len(order), size):
                batch = order[first : first + size]
                vectors, pieces = self._forward([in_order[each].text for each in batch], prompt, module, tokens=tokens)
                for index, vector in zip(batch, vectors, strict=True):
                    sums[in_order[index].owner] += in_order[index].weight * vector
                tokens_by_window |= zip(batch, pieces, strict=True) if pieces is not None else ()
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        unit: NDArray[np.float32] = sums / np.maximum(lengths, np.float32(1e-12))
        if not tokens:
            return unit, None
        parts: list[list[NDArray[np.float32]]] = [[] for _ in texts]
        for index, window in enumerate(in_order):
            parts[window.owner].append(tokens_by_window[index])
        return unit, [np.concatenate(part) for part in parts]

    def _forward(
        self, texts: list[str], prompt: str | None, module: SentenceTransformer, *, tokens: bool
    ) -> tuple[NDArray[np.float32], list[NDArray[np.float32]] | None]:
        """Embed one batch as `SentenceTransformer.encode` does: [len(texts), dim]; with `tokens`, and word pieces."""
        import numpy as np
        import torch

        from desk_rag.model.embedded import threads

        with self._tokenizing:
            features = self._module.preprocess(texts, prompt=prompt)
        with torch.inference_mode(), threads.for_rows(features["input_ids"].numel(), self._parameters):
            for key, value in features.items():
                features[key] = value.to(self._device) if isinstance(value, torch.Tensor) else value
            outputs = module(features)
            vectors = torch.nn.functional.normalize(outputs["sentence_embedding"].float(), dim=1)
        unit = np.asarray(vectors.cpu().numpy(), dtype=np.float32)
        if not tokens:
            return unit, None
        pieces = outputs["token_embeddings"].float().cpu()
        mask = self._module.tokenizer.is_word(features["input_ids"])
        return unit, [np.asarray(row[kept].numpy(), dtype=np.float32) for row, kept in zip(pieces, mask, strict=True)]

    def _windows(self, owner: int, text: str, prompt: str | None) -> Iterator[Window]:
        return windows(self._module, owner, text, prompt, self._tokenizing)


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
        plain = module.eval().to(device)
        return Embedder(
            name, plain, is_embedded=is_embedded, retrieval=_for_retrieval(plain, source) if is_embedded else None
        )
    except Exception as error:  # as above
        raise ModelError(
            f"The embedder '{settings.embedder}' does not turn text into vectors: {_first_line(error)}",
            remedy="Use embedder = 'embedded' or another sentence-transformers model for text.",
        ) from error


def _embedded_module(folder: Path) -> SentenceTransformer:
    """Load the embedder that ships; its module has what an `Embedder` uses of a SentenceTransformer."""
    from desk_rag.retrieval.embedded_module import EmbeddedModule

    return cast("SentenceTransformer", EmbeddedModule(folder))


def _for_retrieval(module: SentenceTransformer, folder: Path) -> Embedder:
    """The embedder that ships with the weights that find passages."""
    changed = cast("EmbeddedModule", cast(object, module)).for_retrieval(folder / RETRIEVAL_FILE)
    found_by = cast("SentenceTransformer", changed)
    return Embedder(EMBEDDED_NAME, found_by, is_embedded=False, fingerprint=EMBEDDED_FINGERPRINT)


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
    check_weights(folder / RETRIEVAL_FILE, _RETRIEVAL_SHA256, "Install desk-rag again.")
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
    """Copy `module` with matrices packed for few rows, on a CPU; elsewhere return `module`.

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
