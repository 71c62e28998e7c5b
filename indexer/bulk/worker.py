"""A worker of bulk prefill: one model on one device of a Ray cluster, which turns chunk texts into chunk KV."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from desk_rag.config import ModelSettings
from desk_rag.errors import UnsupportedModel
from desk_rag.kv.calibration.gate import drifted, probe_kv
from desk_rag.kv.prefill import chunks_at_once, prefill_chunks, prefill_prefix
from desk_rag.kv.prefix_variants.variants import PrefixVariant, build_prefix_variants
from desk_rag.kv.quant import QuantScheme, quantize, to_host
from desk_rag.kv.types import ChunkKV, Namespace, QuantizedKV
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.loading import load_model


@dataclass(frozen=True, slots=True)
class ModelSetup:
    """Everything that decides the chunk KV of a model, from the process that stores the results."""

    settings: ModelSettings
    scheme: QuantScheme
    drift_epoch: int
    probe: ChunkKV
    """Chunk KV that it computes for the drift probe."""
    namespaces: tuple[Namespace, ...]
    """Namespaces of its prefix variants."""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Chunk KV of one chunk, on the CPU."""

    token_ids: tuple[int, ...]
    kv: QuantizedKV
    seconds: float


class Worker:
    """Loads each wanted model once, and prefills chunks with it."""

    def __init__(self) -> None:
        self._loaded: dict[Namespace, tuple[LanguageModel, PrefixVariant, QuantScheme]] = {}

    def load(self, setups: Sequence[ModelSetup]) -> None:
        """Load models. Raises ModelError; UnsupportedModel for one that computes other chunk KV here."""
        for setup in setups:
            self._load(setup)

    def prefill(self, namespace: Namespace, texts: Sequence[str]) -> list[Prefilled]:
        """Return the chunk KV of these texts in a namespace."""
        model, variant, scheme = self._loaded[namespace]
        chunks = [tuple(model.prompt.chunk_ids(text)) for text in texts]
        done: list[Prefilled] = []
        while len(done) < len(chunks):
            rest = chunks[len(done) :]
            on_gpu = model.device.type != "cpu"
            part = rest[: chunks_at_once(model, variant.prefix, [len(ids) for ids in rest]) if on_gpu else 1]
            began = time.monotonic()
            coded = [to_host(quantize(kv, scheme)) for kv in prefill_chunks(model, variant.prefix, part)]
            seconds = (time.monotonic() - began) / len(part)
            done += [Prefilled(ids, kv, seconds) for ids, kv in zip(part, coded, strict=True)]
        return done

    def _load(self, setup: ModelSetup) -> None:
        model = load_model(setup.settings)
        prefix = prefill_prefix(model)
        variants = build_prefix_variants(
            model, prefix, setup.settings.rungs, setup.scheme, drift_epoch=setup.drift_epoch
        )
        if variants.namespaces != setup.namespaces or drifted(setup.probe, probe_kv(model, prefix)):
            raise UnsupportedModel(
                f"A Ray worker computes other chunk KV with '{model.spec.name}' than this machine.",
                remedy="Install the same version of desk-rag with the same weights on every machine of the cluster.",
            )
        self._loaded |= {one.namespace: (model, one, setup.scheme) for one in variants.variants}
