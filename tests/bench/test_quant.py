"""The int8 comparison scores real answers, and says so when a bar is missed."""

from __future__ import annotations

import pytest

from desk_rag.bench import quant
from desk_rag.bench.baselines.quantization_schemes import Axis, Coding
from desk_rag.bench.harness import corpus
from desk_rag.bench.models.outlier_model import planted_qwen2
from desk_rag.kv.calibration.gate import MAX_MEAN_KL
from desk_rag.kv.calibration.texts import GROUPS
from desk_rag.model.language_model import LanguageModel


@pytest.fixture(scope="module")
def contexts(reader: LanguageModel) -> list[quant.Context]:
    return quant._prefilled(reader, [corpus.Posed(group.question, group.chunks) for group in GROUPS[:2]])


def test_the_readers_int8_meets_every_bar(contexts: list[quant.Context]) -> None:
    missed: list[str] = []
    bars = quant._bars(contexts, missed, "canaries")
    tally = quant._score(contexts, Coding())
    assert tally.tokens == sum(len(context.answer) for context in contexts) >= 20
    assert 0 < tally.mean_kl <= MAX_MEAN_KL
    assert bars["mean_kl"] == tally.mean_kl
    assert tally.worst >= tally.mean_kl
    # Chunks of 80 tokens pay more for scales and header than the full ones that the bar on bytes is meant for.
    assert [problem for problem in missed if "files take" not in problem] == []


def test_an_uncoded_cache_scores_as_equal(contexts: list[quant.Context]) -> None:
    for context in contexts:
        again = context.logits(context.chunks)
        assert again.argmax(-1).equal(context.exact.argmax(-1))
        assert (again - context.exact).abs().max() < 1e-4
        assert context.exact.shape[0] == len(context.answer)


def test_a_coarse_coding_misses_the_bars_and_is_named() -> None:
    planted = planted_qwen2(num_layers=2)
    contexts = quant._prefilled(planted, corpus.posed_for_bytes(1, 3))
    coarse = quant._score(contexts, Coding(axis=Axis.TOKEN_AFTER))
    fine = quant._score(contexts, Coding())
    assert coarse.mean_kl > MAX_MEAN_KL
    assert coarse.mean_kl > 20 * fine.mean_kl
    assert quant._source(contexts[0]).biases is not None


def test_file_share_counts_header_and_padding(contexts: list[quant.Context]) -> None:
    tally = quant._score(contexts, Coding())
    fp16 = contexts[0].model.spec.fp16_bytes_per_token
    assert quant._file_share(contexts) > tally.payload / tally.chunk_tokens / fp16
