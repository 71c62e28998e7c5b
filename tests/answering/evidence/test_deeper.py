"""The deeper pointer: what it reads and when, the mean of both, the compiled pass against torch, damaged files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from shutil import copytree

import pytest
import torch
from safetensors.torch import load_file, save_file

from desk_rag.answering.evidence.deeper import (
    MeanScores,
    Pointers,
    head_of,
    load_deeper,
    load_pointers,
    weights_of,
)
from desk_rag.answering.evidence.span_model import QuestionChunkPair, SpanModel, build_batch
from desk_rag.answering.evidence.span_scorer import SpanScorer, load_span_scorer
from desk_rag.answering.requirements.places import Place
from desk_rag.assets import assets_dir
from desk_rag.config import ModelSettings
from desk_rag.errors import ModelNotFound
from desk_rag.model.embedded.bert import BertShape, bert_of
from desk_rag.retrieval.embedding import Embedder, load_embedder

SHIPPED = assets_dir() / "pointer" / "deeper"
QUESTION = "Where is the key of the boiler room?"
NOTE = "Rain fell on most afternoons.  The key of the boiler room is kept\nin box 14, beside the  Müller  café’s meter."


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return load_embedder(ModelSettings(device="cpu"))


@pytest.fixture(scope="module")
def first(embedder: Embedder) -> SpanScorer:
    return load_span_scorer(embedder)


@pytest.fixture(scope="module")
def deeper(embedder: Embedder) -> SpanScorer:
    return load_deeper(embedder, SHIPPED)


def test_what_a_note_says_is_found_and_what_it_does_not_say_is_not(deeper: SpanScorer) -> None:
    (said,) = deeper.read(QUESTION, [NOTE])
    (best,) = said.best(0, len(NOTE), 1)
    assert NOTE[best.begin : best.end] == "box 14" and best.score > 2
    (unsaid,) = deeper.read("Who founded the orchestra?", [NOTE])
    assert unsaid.log_odds(0, len(NOTE)) < 0


def test_pieces_begin_at_letters_so_that_no_sentence_loses_its_first_word(deeper: SpanScorer) -> None:
    (scores,) = deeper.read(QUESTION, [NOTE])
    pieces = scores._windows[0].offsets
    assert not any(NOTE[begin].isspace() for begin, end in pieces if begin < end)
    assert "".join(NOTE[begin:end] for begin, end in pieces) == "".join(NOTE.split())
    assert all(one[1] <= other[0] for one, other in pairwise(pieces))
    sentence = NOTE.index("The key")
    assert scores.log_odds(sentence, len(NOTE)) > scores.log_odds(sentence + 4, len(NOTE)) - 1


def test_the_pass_that_ships_gives_what_torch_gives_in_fp32(deeper: SpanScorer) -> None:
    tensors = load_file(SHIPPED / "model.safetensors")
    net = SpanModel(bert_of(BertShape.read(SHIPPED / "config.json"), weights_of(tensors))).eval()
    net.head.load_state_dict(head_of(tensors))
    tokenizer = deeper._tokenizer
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in (QUESTION, NOTE)]
    pair = QuestionChunkPair(*ids)
    batch = build_batch([pair], tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]"), pair.length)
    with torch.no_grad():
        expected = net(batch)[0][pair.start : pair.length - 1, pair.start : pair.length - 1]
    (scores,) = deeper.read(QUESTION, [NOTE])
    assert bool(expected.isfinite().any())
    torch.testing.assert_close(scores._windows[0].scores, expected, atol=0.5, rtol=0.02)


def test_log_odds_and_spans_are_means_of_both(first: SpanScorer, deeper: SpanScorer) -> None:
    (one,), (other,) = first.read(QUESTION, [NOTE]), deeper.read(QUESTION, [NOTE])
    both = MeanScores(one, other)
    place = 30, len(NOTE)
    assert both.log_odds(*place) == pytest.approx((one.log_odds(*place) + other.log_odds(*place)) / 2)
    spans = both.best(0, len(NOTE), 3)
    assert len(spans) == 3 and spans[0].score >= spans[1].score >= spans[2].score
    top = spans[0]
    assert NOTE[top.begin : top.end] == "box 14"
    assert top.score == pytest.approx((one.of_range(top.begin, top.end) + other.of_range(top.begin, top.end)) / 2)
    (alone,) = one.best(top.begin, top.end, 1)
    assert one.of_range(top.begin, top.end) == alone.score


def test_a_range_that_one_of_them_cannot_take_for_an_answer_still_has_a_number(
    first: SpanScorer, deeper: SpanScorer
) -> None:
    words = " ".join(f"w{number}" for number in range(60))
    both = MeanScores(*(pointer.read(QUESTION, [words])[0] for pointer in (first, deeper)))
    assert all(span.score > -100 for span in both.best(0, len(words), 12))


def test_only_what_is_read_closely_is_read_twice_and_it_is_loaded_then(embedder: Embedder) -> None:
    pointers = load_pointers(embedder)
    place = Place(NOTE, "", 0)
    (alone,) = pointers.read(QUESTION, [place])
    assert pointers._deeper is None
    plain, both = pointers.read(QUESTION, [place, replace(place, closely=True)])
    assert pointers._deeper is not None
    (second,) = pointers._deeper.read(QUESTION, [place])
    whole = 0, len(NOTE)
    assert plain.log_odds(*whole) == alone.log_odds(*whole)
    assert both.log_odds(*whole) == pytest.approx((alone.log_odds(*whole) + second.log_odds(*whole)) / 2)
    pointers.forget()
    assert not pointers._deeper._kept
    pointers.close()


def missing(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def without_words(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


def without_sizes(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "bert", "hidden_act": "gelu"}')


def without_steps(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = "encoder.layer.0.attention.self.key.weight_steps"
    save_file({key: tensor for key, tensor in tensors.items() if key != name}, folder / "model.safetensors")


def without_a_layer(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    few = {key: tensor for key, tensor in tensors.items() if "layer.1." not in key}
    save_file(few, folder / "model.safetensors")


@pytest.mark.parametrize("damage", [missing, without_words, without_sizes, without_steps, without_a_layer])
def test_a_folder_that_holds_none_is_named_with_a_remedy(
    embedder: Embedder, first: SpanScorer, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    folder = copytree(SHIPPED, tmp_path / "deeper")
    damage(folder)
    with pytest.raises(ModelNotFound) as raised:
        Pointers(first, embedder, folder).read(QUESTION, [Place(NOTE, "", 0, closely=True)])
    assert str(folder / "model.safetensors") in raised.value.message and "\n" not in raised.value.message
    assert "choose_quote = false" in raised.value.remedy
