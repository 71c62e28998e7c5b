"""A small world of warm chunks to ask about, with engines that load by one way or the other."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from desk_rag.answering import generation
from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import Answer, AnswerMode, Finished, FirstToken
from desk_rag.answering.kv_connector import CacheTarget, KVConnector
from desk_rag.answering.serving_model import prepare, prepare_model
from desk_rag.config import AnswerSettings, ModelSettings, Settings
from desk_rag.device_lock import DeviceLock
from desk_rag.ingest import background_prefill, pipeline
from desk_rag.kv.loading.loader import Loader, LoaderSettings
from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel
from desk_rag.kv.recompute.policy import RecomputeChoice
from desk_rag.kv.serving import ServingModel
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.prompt import PromptFormat
from desk_rag.retrieval import embedding
from desk_rag.retrieval.embedding import Embedder
from desk_rag.retrieval.token_vectors import ChunkEncodings, QuestionEncoding
from desk_rag.store.kv import header
from desk_rag.store.store import Store

SMALL = LoaderSettings(threads=2, waves=3, staging_bytes=1 << 24, resident_bytes=1 << 25)
BICYCLE, RENT = "What is the frame number of the blue bicycle?", "When does the rent rise?"
FILES = {
    "letter.md": "# Letter from the landlord\n\nThe rent for the flat in Mill Lane rises from 780 euros to 815 euros "
    "on 1 September 2026. It is due on the third working day of every month.\n",
    "bicycle.txt": "Notes on the bicycle\n\nThe frame number of the blue bicycle is WTU-4471-B. It was bought at "
    "Ortmann's on 3 May 2021 for 649 euros. The chain was changed in spring 2024.\n",
    "trip.txt": "Trip to Porto\n\nThe train leaves at 6.52 from platform 11. Anna has the tickets.\n",
}


Loading = Callable[[Store, CacheTarget], KVConnector]


@dataclass(frozen=True, slots=True)
class World:
    """Made once: model and embedder, and a data directory whose chunks are all warm."""

    prepared: ServingModel
    embedder: Embedder
    data: Path


class WordVectors:
    """Stands in for the embedder where its weights are not at hand: words, each in a place of its own."""

    name, fingerprint, dim, is_embedded, gives_tokens = "words", "0" * 32, 256, False, False

    def embed_chunks(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = np.full((len(texts), self.dim), 1e-3, dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in text.lower().split():
                row[zlib.crc32(word.strip(".,?!#").encode()) % self.dim] += 1
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def encode_chunks(self, texts: Sequence[str]) -> ChunkEncodings:
        return ChunkEncodings(self.embed_chunks(texts))

    def encode_question(self, text: str) -> QuestionEncoding:
        return QuestionEncoding(self.embed_chunks([text])[0])

    def embed_question(self, text: str) -> NDArray[np.float32]:
        return self.encode_question(text).vector


def make_world(root: Path, device: Literal["cpu", "cuda"], model: LanguageModel | None = None) -> World:
    """Index FILES and make every chunk warm, for the embedded reader or for `model`.

    On a GPU and for another model without the real embedder, which is not what is tested there.
    """
    for name, text in FILES.items():
        (root / "docs" / name).parent.mkdir(exist_ok=True)
        (root / "docs" / name).write_text(text)
    settings = Settings(data_dir=root / "data", model=ModelSettings(device=device))
    real = device == "cpu" and model is None
    embedder = embedding.load_embedder(settings.model) if real else cast("Embedder", WordVectors())
    prepared = prepare(settings) if model is None else prepare_model(model, settings.data_dir)
    world = World(prepared, embedder, settings.data_dir)
    # Small chunks of a small model would be one layer group each; several let loading and computing overlap.
    with pytest.MonkeyPatch.context() as patch, an_engine(world, settings.data_dir, streamed) as engine:
        patch.setattr(header, "SMALLEST_GROUP", 1 << 15)
        prompt, store = engine.model.prompt, engine.store
        steps: Sequence[Iterator[object]] = (
            pipeline.sync_folder(store, root / "docs", prompt, prompt.chunk_size, settings.index, lambda: False),
            pipeline.embed_pending(store, engine.embedder, lambda: False),
            background_prefill.warm_pending(store, engine.serving, engine.turn, lambda: False),
        )
        for step in steps:
            for _ in step:
                pass
    return world


def streamed(store: Store, site: CacheTarget) -> KVConnector:
    return KVConnector(store, site, Loader(site.model.device, SMALL))


@contextmanager
def an_engine(
    world: World,
    data: Path,
    loading: Loading | None = None,
    *,
    writer: bool = True,
    lean: bool | None = None,
    auxiliary: AuxiliaryModel | None = None,
    **answer: object,
) -> Iterator[AnswerEngine]:
    """`answer` are settings of that section."""
    asked = AnswerSettings.model_validate({"max_new_tokens": 24, **answer})
    settings = Settings(data_dir=data, answer=asked)
    store = Store.open(data, settings.store, writer=writer)
    turn = DeviceLock(data / "run")
    try:
        engine = AnswerEngine(
            world.prepared, world.embedder, store, turn, settings, loading, lean=lean, auxiliary=auxiliary
        )
    except BaseException:
        store.close()
        raise
    try:
        yield engine
    finally:
        engine.close()


def ask(
    engine: AnswerEngine,
    question: str,
    mode: AnswerMode = AnswerMode.CACHED,
    recompute: RecomputeChoice | None = None,
) -> Answer:
    last = list(engine.ask(question, mode=mode, recompute=recompute))[-1]
    assert isinstance(last, Finished)
    return last.answer


def loader_of(engine: AnswerEngine) -> Loader:
    assert isinstance(engine._connector, KVConnector)
    return engine._connector.loader


def filled(engine: AnswerEngine, question: str) -> tuple[int, list[torch.Tensor]]:
    """Tokens in the context and the slabs at the first token."""
    events = engine.ask(question)
    first = next(event for event in events if isinstance(event, FirstToken))
    length = first.timings.context_tokens
    assert engine._slab is not None
    slabs = [slab for layer in engine._slab.cache.layers for slab in (layer.key_slab, layer.value_slab)]
    copies = [slab[:, :, :length].clone() for slab in slabs]
    events.close()  # type: ignore[attr-defined]
    return length, copies


@contextmanager
def first_logits() -> Iterator[list[torch.Tensor]]:
    """While open, the logits of every answer's first token."""
    seen: list[torch.Tensor] = []
    real = generation.refusal_probability

    def keep(prompt: PromptFormat, logits: torch.Tensor) -> float:
        seen.append(logits.float().clone())
        return real(prompt, logits)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation, "refusal_probability", keep)
        yield seen
