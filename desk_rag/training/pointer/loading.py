"""Load what embedder and pointer are trained on: the embedder's transformer and its word pieces."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel

from desk_rag.answering.evidence.span_model import SpanModel
from desk_rag.errors import ModelError, ModelNotFound
from desk_rag.model.checkpoint import row_int8

CONFIG, TOKENIZER, WEIGHTS = "config.json", "tokenizer.json", "model.safetensors"
_REMEDY = "Name the folder of a BERT embedder, or leave --start out for the one that is installed."


def load_start(folder: Path, seed: int) -> tuple[SpanModel, Tokenizer]:
    """The embedder in `folder` with a new head, fp32 on the CPU, and its tokenizer; see `load_bert`."""
    bert, tokenizer = load_bert(folder, seed)
    return SpanModel(bert), tokenizer


def load_bert(folder: Path, seed: int) -> tuple[BertModel, Tokenizer]:
    """Transformer (fp32, on the CPU) and tokenizer (cuts nothing, fills nothing up) of the embedder in `folder`.

    Seeds torch's generator, from which the head and all that training draws come. Raises ModelNotFound for a file that
    is missing or cannot be read, ModelError where the files are no BERT or not all of one.
    """
    torch.manual_seed(seed)
    for name in (CONFIG, TOKENIZER, WEIGHTS):
        if not (folder / name).is_file():
            raise ModelNotFound(f"There is no {name} in {folder}.", remedy=_REMEDY)
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        weights = row_int8.read(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelNotFound(f"The embedder in {folder} cannot be read: {error}", remedy=_REMEDY) from error
    if not isinstance(config, dict) or config.get("model_type") != "bert":
        raise ModelError(f"{folder / CONFIG} is not that of a BERT.", remedy=_REMEDY)
    return _bert(BertConfig.from_dict(config), weights, folder), _tokenizer(folder / TOKENIZER)


def _bert(config: BertConfig, weights: dict[str, torch.Tensor], folder: Path) -> BertModel:
    """Not by from_pretrained, which replaces what is missing by chance and reports the pooler that nobody asked for."""
    bert = BertModel(config, add_pooling_layer=False)
    try:
        missing = bert.load_state_dict(weights, strict=False).missing_keys
    except RuntimeError as error:
        raise ModelError(f"{folder / WEIGHTS} and {CONFIG} tell of different shapes.", remedy=_REMEDY) from error
    if missing:
        raise ModelError(f"{folder / WEIGHTS} has no {missing[0]}.", remedy=_REMEDY)
    return bert


def _tokenizer(file: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library knows no narrower one
        raise ModelNotFound(f"{file} cannot be read: {error}", remedy=_REMEDY) from error
    if tokenizer.token_to_id("[CLS]") is None or tokenizer.token_to_id("[SEP]") is None:
        raise ModelError(f"{file} has no [CLS] or no [SEP].", remedy=_REMEDY)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
