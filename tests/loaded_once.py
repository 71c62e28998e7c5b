"""Load the embedded reader and embedder, and run the reader's quality gate, once for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch

from desk_rag.answering import opening, serving_model
from desk_rag.config import ModelSettings
from desk_rag.kv.calibration.gate import GateReport, run_gate
from desk_rag.kv.calibration.texts import GROUPS, CalibrationGroup
from desk_rag.kv.prefill import PrefixKV
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.loading import load_model
from desk_rag.retrieval import embedding
from desk_rag.retrieval.embedding import Embedder, load_embedder

_models: dict[str, LanguageModel] = {}
_embedders: dict[str, Embedder] = {}
_reports: dict[int, GateReport] = {}
"""By the model's id; `_models` keeps the models alive."""


def shared_model(settings: ModelSettings) -> LanguageModel:
    """The embedded reader as `load_model` loads it with these settings; other models are loaded anew."""
    if settings.name != "embedded" or settings.adapter:
        return load_model(settings)
    key = _key(settings)
    if key not in _models:
        _models[key] = load_model(settings)
    return _models[key]


@contextmanager
def loaded_once() -> Iterator[None]:
    """While open, engines share what is the same for each of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving_model, "load_model", shared_model)
        patch.setattr(serving_model, "run_gate", _report_of)
        patch.setattr(opening, "load_embedder", _shared_embedder)
        patch.setattr(embedding, "load_embedder", _shared_embedder)
        yield


def _shared_embedder(settings: ModelSettings) -> Embedder:
    key = _key(settings)
    if key not in _embedders:
        _embedders[key] = load_embedder(settings)
    return _embedders[key]


def _report_of(model: LanguageModel, prefix: PrefixKV, groups: Sequence[CalibrationGroup] = GROUPS) -> GateReport:
    if groups is not GROUPS or not any(model is shared for shared in _models.values()):
        return run_gate(model, prefix, groups)
    if id(model) not in _reports:
        _reports[id(model)] = run_gate(model, prefix)
    return _reports[id(model)]


def _key(settings: ModelSettings) -> str:
    device = "cpu" if settings.device == "auto" and not torch.cuda.is_available() else settings.device
    return settings.model_copy(update={"device": device}).model_dump_json()
