"""Load the embedded reader and embedder, and run the reader's quality gate, once for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from desk_rag.answering import opening, serving_model
from desk_rag.config import ModelSettings
from desk_rag.kv.calibration.gate import GateReport, run_gate
from desk_rag.kv.prefill import PrefixKV
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.loading import load_model
from desk_rag.retrieval import embedding
from desk_rag.retrieval.embedding import Embedder, load_embedder


@contextmanager
def loaded_once() -> Iterator[None]:
    """While open, engines share what is the same for each of them; other models are loaded as ever."""
    models: dict[str, LanguageModel] = {}
    embedders: dict[str, Embedder] = {}
    reports: dict[int, GateReport] = {}
    """By the model's id; `models` keeps the models alive."""

    def model_of(settings: ModelSettings) -> LanguageModel:
        if settings.name != "embedded" or settings.adapter:
            return load_model(settings)
        key = settings.model_dump_json()
        if key not in models:
            models[key] = load_model(settings)
        return models[key]

    def embedder_of(settings: ModelSettings) -> Embedder:
        key = settings.model_dump_json()
        if key not in embedders:
            embedders[key] = load_embedder(settings)
        return embedders[key]

    def report_of(model: LanguageModel, prefix: PrefixKV) -> GateReport:
        if not any(model is shared for shared in models.values()):
            return run_gate(model, prefix)
        if id(model) not in reports:
            reports[id(model)] = run_gate(model, prefix)
        return reports[id(model)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving_model, "load_model", model_of)
        patch.setattr(serving_model, "run_gate", report_of)
        patch.setattr(opening, "load_embedder", embedder_of)
        patch.setattr(embedding, "load_embedder", embedder_of)
        yield
