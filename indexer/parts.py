"""Load what background work needs, each part on first use, so that text can be searched before torch is imported.

A process that already answers questions hands over its own parts (`parts_of`), so that there is one model in memory
and one device lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from desk_rag.config import Settings
from desk_rag.device_lock import DeviceLock
from desk_rag.documents.chunking import ChunkSize
from desk_rag.indexer.models import Models
from desk_rag.indexer.names import EVERYTHING, MissingWork, missing_work
from desk_rag.model import weights
from desk_rag.model.prompt import load_prompt

if TYPE_CHECKING:
    from desk_rag.answering.engine import AnswerEngine
    from desk_rag.documents.token_counter import PortableCounter
    from desk_rag.kv.prefill import PrefixKV
    from desk_rag.kv.prefix_variants.variants import PrefixVariant
    from desk_rag.kv.quant import QuantScheme
    from desk_rag.kv.types import Namespace
    from desk_rag.model.language_model import LanguageModel
    from desk_rag.retrieval.embedding import Embedder
    from desk_rag.store.store import Store


@dataclass(frozen=True, slots=True)
class WarmParts:
    """What background prefill needs."""

    model: LanguageModel
    prefix: PrefixKV
    namespace: Namespace
    scheme: QuantScheme
    later: tuple[PrefixVariant, ...] = ()
    """Prefix variants above the plain one, which `prefix` and `namespace` describe."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the worker needs. It calls the loader of a stage whenever that begins; what is loaded is kept for others."""

    store: Store
    counter: PortableCounter
    size: ChunkSize
    turn: DeviceLock
    load_embedder: Callable[[], Embedder]
    load_warm: Callable[[], WarmParts]
    missing: Callable[[], MissingWork] = lambda: EVERYTHING
    """What there is to do, as far as it is known without loading anything."""


def lazy_parts(store: Store, settings: Settings, models: Models | None = None) -> Parts:
    """Return parts that load what `settings` name, through `models` if others in this process use them, too.

    Raises ModelNotFound if the model's tokenizer is missing.
    """
    prompt = load_prompt(weights.resolve(settings.model.name, allow_download=settings.model.allow_download))
    shared = models or Models(store, settings)
    return Parts(
        store=store,
        counter=prompt,
        size=prompt.chunk_size,
        turn=shared.turn,
        load_embedder=shared.embedder,
        load_warm=lambda: _warm(shared),
        missing=lambda: EVERYTHING if shared.is_loaded else missing_work(store, settings),
    )


def parts_of(engine: AnswerEngine) -> Parts:
    """Return the parts of an engine that is already loaded."""
    prompt = engine.model.prompt
    return Parts(
        store=engine.store,
        counter=prompt,
        size=prompt.chunk_size,
        turn=engine.turn,
        load_embedder=lambda: engine.embedder,
        load_warm=lambda: _warm_of(engine),
    )


def _warm_of(engine: AnswerEngine) -> WarmParts:
    return WarmParts(engine.model, engine.prefix, engine.namespace, engine.scheme, engine.ladder.variants[1:])


def _warm(models: Models) -> WarmParts:
    prepared = models.prepared()
    return WarmParts(prepared.model, prepared.prefix, prepared.namespace, prepared.gate.scheme, prepared.later)
