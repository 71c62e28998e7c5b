"""An embedder of the architecture of multilingual-e5 (XLM-RoBERTa) loads, gets its prompts and indexes a folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, XLMRobertaConfig, XLMRobertaModel

from desk_rag.config import ModelSettings
from desk_rag.errors import ModelNotFound
from desk_rag.retrieval import embedder_files
from desk_rag.retrieval.embedding import Embedder, load_embedder

_QUESTION = "Wo ist der Schlüssel?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of two layers, saved as the real one is: without prompts in its files."""
    root = tmp_path_factory.mktemp("models")
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    letters = [chr(code) for code in range(33, 0x17F)] + ["▁"]
    vocabulary = [(token, 0.0) for token in special] + [
        (letter, -float(rank)) for rank, letter in enumerate(letters, 1)
    ]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=3))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", model_max_length=128, **names
    )
    torch.manual_seed(0)
    config = XLMRobertaConfig(
        vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=130, pad_token_id=1, bos_token_id=0, eos_token_id=2,
    )  # fmt: skip
    plain = root / "plain"
    XLMRobertaModel(config).save_pretrained(plain, safe_serialization=True)
    fast.save_pretrained(plain)
    transformer = Transformer(str(plain), max_seq_length=128)
    pooling = Pooling(32, pooling_mode="mean")
    saved = root / "intfloat" / "multilingual-e5-small"
    SentenceTransformer(modules=[transformer, pooling, Normalize()], device="cpu").save(str(saved))
    return saved


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Embedder:
    return load_embedder(ModelSettings(embedder=str(folder), device="cpu"))


def test_questions_and_passages_get_the_texts_that_the_model_was_trained_with(folder: Path, embedder: Embedder) -> None:
    library = SentenceTransformer(str(folder), device="cpu")
    assert not any(library.prompts.values()), "its files name none"
    expected = library.encode([f"query: {_QUESTION}", f"passage: {_QUESTION}"], normalize_embeddings=True)
    assert np.abs(embedder.embed_question(_QUESTION) - expected[0]).max() < 1e-3
    assert float(embedder.embed_chunks([_QUESTION])[0] @ expected[1]) > 0.999
    assert np.abs(expected[0] - expected[1]).max() > 1e-3


def test_prompts_that_a_model_brings_are_kept() -> None:
    own = {"query": "Represent: ", "document": ""}
    assert embedder_files.missing_prompts("intfloat/multilingual-e5-small", own) == own
    assert embedder_files.missing_prompts("sentence-transformers/all-MiniLM-L12-v2", {"query": ""}) == {"query": ""}
    assert embedder_files.missing_prompts("multilingual", {})["query"] == "query: "


def test_a_long_text_in_another_language_is_read_in_windows(embedder: Embedder) -> None:
    beginning = "Der Schlüssel liegt unter dem Topf. "
    short, long = embedder.embed_chunks([beginning, beginning + "Das Boot ist grün. " * 60])
    assert embedder.dim == 32 and abs(float(np.linalg.norm(long)) - 1) < 1e-3
    assert float(short @ long) < 0.9999, "what stands behind the first window counts"


def test_the_named_choice_is_not_fetched_unasked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(ModelNotFound, match="intfloat/multilingual-e5-small") as caught:
        load_embedder(ModelSettings(embedder="multilingual", device="cpu"))
    assert "--download" in caught.value.remedy
