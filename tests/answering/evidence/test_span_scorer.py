"""The pointer: the adapter that ships finds what documents say, a field against brute force, long and odd texts, the
embedder it leaves alone, files that are missing or damaged."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertConfig, BertModel

from desk_rag.answering.evidence import span_scorer
from desk_rag.answering.evidence.span_model import MOST_PIECES, QuestionChunkPair, SpanBatch, SpanModel, linear_layers
from desk_rag.answering.evidence.span_scorer import (
    _KEPT,
    Span,
    SpanScorer,
    SpanScores,
    _Window,
    halve,
    load_span_scorer,
)
from desk_rag.answering.requirements.places import Place
from desk_rag.assets import assets_dir
from desk_rag.config import ModelSettings
from desk_rag.errors import ModelNotFound
from desk_rag.model.embedded.bert import Bert
from desk_rag.model.embedded.bert_bf16 import Bf16Bert
from desk_rag.model.embedded.compiled_bert import CompiledBert
from desk_rag.retrieval.embedding import Embedder, load_embedder

SHIPPED = assets_dir() / "pointer" / "pointer.safetensors"
KEY = "Where is the key of the boiler room?"
NOTE = "The key of the boiler room lies in box 14."
FILLER = "The plums were ripe in the second week, and rain fell on most afternoons."


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return load_embedder(ModelSettings(device="cpu"))


@pytest.fixture(scope="module")
def pointer(embedder: Embedder) -> SpanScorer:
    return load_span_scorer(embedder)


@pytest.fixture(scope="module")
def quick(embedder: Embedder) -> SpanScorer:
    """A random net of one layer under the real word pieces: for where things stand, not for what they mean."""
    tokenizer = embedder.transformer()[1]
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, initializer_range=0.5,
    )  # fmt: skip
    return SpanScorer(SpanModel(BertModel(config)).eval().requires_grad_(False), tokenizer)


def read(pointer: SpanScorer, question: str, text: str) -> SpanScores:
    (field,) = pointer.read(question, [text])
    return field


def first(pointer: SpanScorer, question: str, text: str) -> str:
    """Return the words of the best span."""
    (span,) = read(pointer, question, text).best(0, len(text), 1)
    return text[span.begin : span.end]


def scores(window: _Window) -> Iterator[tuple[int, int, float]]:
    """Characters and score of every span."""
    for begin, end in (window.scores > -torch.inf).nonzero().tolist():
        yield window.offsets[begin][0], window.offsets[end][1], float(window.scores[begin, end])


def alike(one: SpanScores, other: SpanScores) -> bool:
    return len(one._windows) == len(other._windows) and all(
        mine.offsets == theirs.offsets and torch.equal(mine.scores, theirs.scores)
        for mine, theirs in zip(one._windows, other._windows, strict=True)
    )


# What the adapter that ships has learned


@pytest.mark.parametrize(
    ("file", "heading", "question", "answer"),
    [
        ("home/boiler-manual.md", "6 Yearly service", "What does the yearly service cost?", "128 crowns"),
        ("home/boiler-manual.md", "3 Water pressure", "What should the pressure be?", "between 1.2 and 1.8 bar"),
        ("club/minutes-2026-03-11.md", "", "What is the number of the police report?", "HM-2026-0388"),
        ("personal/letter-aunt-isolde.txt", "", "What had the cat Biscuit swallowed?", "a fish hook"),
        ("rainbarrel/design-notes.md", "", "Which bed is watered when the barrel holds less than 60 litres?",
         "the tomatoes"),
    ],
)  # fmt: skip
def test_what_sample_documents_say_is_found(
    pointer: SpanScorer, sample_docs: Path, file: str, heading: str, question: str, answer: str
) -> None:
    whole = (sample_docs / file).read_text(encoding="utf-8")
    (text,) = (part for part in whole.split("\n## ") if part.startswith(heading)) if heading else [whole]
    field = read(pointer, question, text)
    best = field.best(0, len(text), 3)
    assert text[best[0].begin : best[0].end] == answer
    assert best[0].score > 0 and field.log_odds(0, len(text)) > 0
    assert [span.score for span in best] == sorted((span.score for span in best), reverse=True)
    # All spans together are worth more than any, and the answer's own place holds most of that.
    assert field.log_odds(0, len(text)) >= field.log_odds(best[0].begin, best[0].end) >= best[0].score - 1e-5


def test_a_chunk_that_says_nothing_of_it_is_worth_little(pointer: SpanScorer, sample_docs: Path) -> None:
    cake = (sample_docs / "personal" / "plum-cake.md").read_text(encoding="utf-8")
    for question in (KEY, "What is the number of the police report?", "What does the yearly service cost?"):
        assert read(pointer, question, cake).log_odds(0, len(cake)) < 0
    note, filler = pointer.read(KEY, [NOTE, FILLER])
    assert note.log_odds(0, len(NOTE)) > 0 > filler.log_odds(0, len(FILLER))


def test_the_question_decides_which_words(pointer: SpanScorer) -> None:
    text = "Denny Quarles, the plumber, comes on Thursday and charges 85 crowns. Lena Dorsch tunes the piano on Friday."
    assert first(pointer, "Who tunes the piano?", text) == "Lena Dorsch"
    assert first(pointer, "What does the plumber charge?", text) == "85 crowns"
    assert "Thursday" in first(pointer, "When does the plumber come?", text)


def test_the_name_of_a_file_says_what_its_lines_are_about(pointer: SpanScorer) -> None:
    text = "The price is 310 crowns per singer. The coach leaves at 8:15."
    at = text.index("310")
    bare, named, other = (
        scores.log_odds(at, at + 3)
        for scores in pointer.read(
            "How much is the choir tour?",
            [text, Place(text, "", 0, name="choir-tour"), Place(text, "", 0, name="boiler service")],
        )
    )
    assert named > bare + 1
    assert named > other + 1


def test_a_name_gives_no_span_and_shifts_none(quick: SpanScorer) -> None:
    text = f"{NOTE} {FILLER} " * 30
    bare, named = quick.read(KEY, [text, Place(text, "", 0, name="keys of the house")])
    ends = {window.offsets[-1][1] for window in named._windows} | {window.offsets[-1][1] for window in bare._windows}
    assert max(ends) == len(text.rstrip())
    for window in named._windows:
        assert window.scores.shape == (len(window.offsets), len(window.offsets))
        assert all(text[begin:end].strip() for begin, end in window.offsets)


@pytest.mark.parametrize(("name", "body"), [("boiler room", 0), ("boiler room", 12), ("key of the house", 12)])
def test_a_chunk_with_a_title_has_no_other_name(quick: SpanScorer, name: str, body: int) -> None:
    text = f"Boiler room\n{NOTE}"
    bare, titled = quick.read(KEY, [text, Place(text, "", body, name=name)])
    assert alike(bare, titled)


def test_a_name_with_a_word_of_the_question_is_read_before_a_title_without_it(pointer: SpanScorer) -> None:
    text = "Arriving\nPark at the bowling green; it costs 3 crowns a day."
    place = Place(text, "", 9, name="quarry-walk")
    at = text.index("the bowling green")
    question = "Where can I park for the quarry walk?"
    bare, named = (one.log_odds(at, at + 17) for one in pointer.read(question, [text, place]))
    assert named > bare + 0.5
    other = "Where can I park?"
    assert alike(*pointer.read(other, [text, place]))


def test_one_field_per_text_in_order(pointer: SpanScorer) -> None:
    texts = [FILLER, NOTE, "", NOTE]
    fields = pointer.read(KEY, texts)
    assert [alike(field, read(pointer, KEY, text)) for field, text in zip(fields, texts, strict=True)] == [True] * 4
    assert alike(fields[1], fields[3]) and not alike(fields[0], fields[1])
    assert pointer.read(KEY, []) == []


def test_as_one_batch_texts_have_the_fields_that_each_has_alone(
    embedder: Embedder, pointer: SpanScorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, but on a CPU: long texts of several windows, empty ones, and one that is known already."""
    batched = load_span_scorer(embedder)
    batched._on_cpu, batched._ahead = False, None
    sizes: list[int] = []
    real = batched._net.forward
    monkeypatch.setattr(batched._net, "forward", lambda batch: (sizes.append(len(batch.ids)), real(batch))[1])
    texts = [NOTE, FILLER * 60, "", FILLER, NOTE]
    known = read(batched, KEY, FILLER)
    sizes.clear()
    fields = batched.read(KEY, texts)
    assert len(sizes) == 1 and sizes[0] > 3, "one pass, and several rows for the long one"
    assert fields[3] is known and fields[0] is fields[4] and not fields[2]._windows
    for field, text in zip(fields, texts, strict=True):
        alone = read(pointer, KEY, text)
        assert [window.offsets for window in field._windows] == [window.offsets for window in alone._windows]
        for mine, theirs in zip(field._windows, alone._windows, strict=True):
            assert torch.equal(mine.scores.isfinite(), theirs.scores.isfinite())
            torch.testing.assert_close(mine.scores, theirs.scores, rtol=0.05, atol=0.15)
    assert batched.read(KEY, [str(number) for number in range(_KEPT + 3)])[0]._windows
    assert len(batched._kept) == _KEPT


def test_the_last_fields_are_remembered(embedder: Embedder) -> None:
    pointer = load_span_scorer(embedder)
    field = read(pointer, KEY, NOTE)
    assert read(pointer, KEY, NOTE) is field
    assert read(pointer, "Who tunes the piano?", NOTE) is not field
    for number in range(_KEPT):
        read(pointer, KEY, str(number))
    again = read(pointer, KEY, NOTE)
    assert again is not field and alike(again, field)
    assert len(pointer._kept) == _KEPT


# Fields


def made(offsets: Sequence[tuple[int, int]], seed: int) -> _Window:
    """A window with random scores of spans of at most 4 pieces."""
    torch.manual_seed(seed)
    size = len(offsets)
    mask = torch.ones(size, size, dtype=torch.bool).triu().tril(3)
    return _Window(tuple(offsets), torch.randn(size, size).masked_fill(~mask, -torch.inf))


PIECES = [(0, 3), (3, 5), (6, 10), (10, 11), (12, 14), (15, 18), (18, 21), (22, 23), (24, 30), (31, 34)]


@pytest.fixture
def windows() -> list[_Window]:
    """Two that share four pieces."""
    return [made(PIECES[:7], 1), made(PIECES[3:], 2)]


def by_hand(windows: Sequence[_Window], begin: int, end: int) -> tuple[float, list[tuple[int, int, float]]]:
    """Worth, and all spans between two characters, best first."""
    worth, best = -math.inf, dict[tuple[int, int], float]()
    for window in windows:
        inner_scores = [(a, b, score) for a, b, score in scores(window) if begin <= a and b <= end]
        if inner_scores:
            worth = max(worth, math.log(sum(math.exp(score) for _, _, score in inner_scores)))
        for a, b, score in inner_scores:
            best[a, b] = max(score, best.get((a, b), -math.inf))
    return worth, sorted(((a, b, score) for (a, b), score in best.items()), key=lambda span: -span[2])


def test_worth_and_best_are_those_of_brute_force(windows: list[_Window]) -> None:
    field = SpanScores(windows)
    for begin in range(-1, 36):
        for end in range(begin, 36):
            worth, spans = by_hand(windows, begin, end)
            assert field.log_odds(begin, end) == pytest.approx(worth, abs=1e-5)
            for count in (1, 3, 100):
                assert field.best(begin, end, count) == [Span(*span) for span in spans[:count]]


def test_a_piece_that_a_range_cuts_is_not_in_it(windows: list[_Window]) -> None:
    field = SpanScores(windows[:1])
    assert {span.begin for span in field.best(1, 10, 9)} == {3, 6}  # (0, 3) is cut
    assert {span.end for span in field.best(0, 9, 9)} == {3, 5}  # (6, 10) is cut
    assert field.log_odds(7, 9) == -math.inf and field.best(7, 9, 3) == []


@pytest.mark.parametrize(("begin", "end"), [(0, 0), (6, 6), (5, 6), (10, 6), (34, 90), (200, 300), (-5, 0)])
def test_where_no_piece_is_nothing_is_worth_anything(windows: list[_Window], begin: int, end: int) -> None:
    field = SpanScores(windows)
    assert field.log_odds(begin, end) == -math.inf
    assert field.best(begin, end, 4) == []


def test_best_gives_no_span_twice_and_none_that_is_none(windows: list[_Window]) -> None:
    best_spans = SpanScores(windows).best(0, 34, 1000)
    places = [(span.begin, span.end) for span in best_spans]
    assert len(set(places)) == len(places) == 4 * 7 - 6 + 4 * 7 - 6 - 10  # 10 spans are in both windows
    assert all(span.score > -math.inf and span.begin < span.end for span in best_spans)
    assert SpanScores(windows).best(0, 34, 0) == [] and SpanScores([]).best(0, 34, 3) == []
    assert SpanScores([]).log_odds(0, 34) == -math.inf


def test_a_character_of_several_pieces_is_one_place(pointer: SpanScorer) -> None:
    text = "\ud55c\uad6d\uc5b4 \uc5f4\uc1e0"  # Hangul syllables are taken apart into two or three pieces each
    field = read(pointer, KEY, text)
    offsets = field._windows[0].offsets
    assert len(set(offsets)) < len(offsets)
    places = [(span.begin, span.end) for span in field.best(0, len(text), 50)]
    assert places and len(set(places)) == len(places)
    assert all(begin < end for begin, end in places)


# Long texts


def test_a_field_holds_the_scores_of_the_network(pointer: SpanScorer) -> None:
    tokenizer = pointer._tokenizer
    head = [101, *tokenizer.encode(KEY, add_special_tokens=False).ids, 102]
    encoded = tokenizer.encode(NOTE, add_special_tokens=False)
    line = torch.tensor([[*head, *encoded.ids, 102]])
    kinds = torch.tensor([[0] * len(head) + [1] * (len(encoded.ids) + 1)])
    with torch.inference_mode(), pointer._precision():
        expected = pointer._net(SpanBatch(line, kinds, torch.ones_like(line).bool(), kinds.bool()))[0]
    (window,) = read(pointer, KEY, NOTE)._windows
    assert list(window.offsets) == encoded.offsets
    # Rows are filled up to full tiles, after which bfloat16 sums in another order.
    torch.testing.assert_close(window.scores, expected[len(head) : -1, len(head) : -1], atol=0.1, rtol=0.02)
    assert torch.equal(window.scores.isinf(), expected[len(head) : -1, len(head) : -1].isinf())
    assert window.scores.dtype == torch.float32 and window.scores.device.type == "cpu"


def test_a_text_of_five_thousand_words_is_read_whole_in_windows_that_overlap(quick: SpanScorer) -> None:
    rng = Random(1)
    words = ["Corven", "heating", "na\u00efve", "2,5", "box", "und", "\u00e9t\u00e9", "INV-2024/017", "re-sign", "a"]
    text = " ".join(rng.choice(words) for _ in range(5000))
    windows = read(quick, KEY, text)._windows
    pieces = list(quick._tokenizer.encode(text, add_special_tokens=False).offsets)
    assert len(pieces) > 5000 and len(windows) > 10
    starts = [pieces.index(window.offsets[0]) for window in windows]
    stops = [start + len(window.offsets) for start, window in zip(starts, windows, strict=True)]
    for start, stop, window in zip(starts, stops, windows, strict=True):
        assert list(window.offsets) == pieces[start:stop]
        assert window.scores.shape == (stop - start, stop - start) and stop - start <= 448
    assert starts[0] == 0 and stops[-1] == len(pieces)
    # So many pieces in common that every span stands whole in one window or another.
    assert all(stop - start >= MOST_PIECES for start, stop in zip(starts[1:], stops, strict=False))


def test_windows_hold_what_the_network_says_of_that_part_alone(quick: SpanScorer) -> None:
    text = " ".join(f"{FILLER} {number}" for number in range(40))
    windows = read(quick, KEY, text)._windows
    assert len(windows) == 2
    for window in windows:
        begin, end = window.offsets[0][0], window.offsets[-1][1]
        alone = read(quick, KEY, text[begin:end])._windows[0]
        assert [(a + begin, b + begin) for a, b in alone.offsets] == list(window.offsets)
        torch.testing.assert_close(alone.scores, window.scores)


@pytest.mark.parametrize("before", [-30, -12, -6, -1, 0, 3])
def test_an_answer_near_the_end_of_a_window_is_found(pointer: SpanScorer, before: int) -> None:
    filler = f"{FILLER} " * 32
    pieces = pointer._tokenizer.encode(filler, add_special_tokens=False).offsets
    near = pieces[len(read(pointer, KEY, filler)._windows[0].offsets) + before][0]
    at = filler.rindex(" ", 0, near) + 1
    text = f"{filler[:at]}{NOTE} {filler[at:]}"
    field = read(pointer, KEY, text)
    assert len(field._windows) > 1
    (span,) = field.best(0, len(text), 1)
    assert "box 14" in text[span.begin : span.end] and at < span.begin < span.end <= at + len(NOTE)
    assert span.score > 0 > field.log_odds(0, at)
    assert field.log_odds(at, at + len(NOTE)) > 0 > field.log_odds(at + len(NOTE), len(text))


# Odd texts and questions


@pytest.mark.parametrize("text", ["", "   \n\t ", "\x00\x01\x07", "\u200b\u200d", "\ufeff"])
def test_a_text_without_word_pieces_has_no_spans(pointer: SpanScorer, text: str) -> None:
    field = read(pointer, KEY, text)
    assert field.log_odds(0, len(text)) == -math.inf
    assert field.best(0, len(text), 5) == []


@pytest.mark.parametrize(
    "text",
    [
        "\U0001f600\U0001f600 \U0001f1e9\U0001f1ea \U0001f469\u200d\U0001f467",
        "\u6771\u4eac\u306f\u65e5\u672c\u306e\u9996\u90fd\u3067\u3059\u3002",
        "\ud55c\uad6d\uc5b4",
        "\u0928\u092e\u0938\u094d\u0924\u0947",
        "\x00 Bob \x01 key \x7f",
        "e\u0301te\u0301 \ufb01le \u00bd \u0130stanbul",
        "[SEP] [CLS] [PAD] [MASK] [UNK]",
        "a" * 3000,
    ],
)
def test_odd_texts_have_spans_that_lie_in_them_and_no_answer(pointer: SpanScorer, text: str) -> None:
    field = read(pointer, KEY, text)
    spans = field.best(0, len(text), 8)
    assert spans and all(0 <= span.begin < span.end <= len(text) for span in spans)
    assert all(math.isfinite(span.score) for span in spans)
    assert -math.inf < field.log_odds(0, len(text)) < 0


def test_odd_characters_do_not_shift_what_stands_behind_them(pointer: SpanScorer) -> None:
    before = "\U0001f600\x00 \u6771\u4eac \u200b e\u0301te\u0301 \u0130 \ud55c [SEP]\r\n"
    text = before + NOTE
    (span,) = read(pointer, KEY, text).best(0, len(text), 1)
    assert span.begin > len(before) and "box 14" in text[span.begin : span.end]


def test_any_question_can_be_asked(pointer: SpanScorer) -> None:
    for question in ("", " ", "\U0001f600", "\u6771\u4eac?", "\x00", "[SEP] [SEP]"):
        assert math.isfinite(read(pointer, question, NOTE).log_odds(0, len(NOTE)))


def test_of_a_very_long_question_the_beginning_is_read(pointer: SpanScorer) -> None:
    long = f"{KEY} {'I ask since the plumber comes on Thursday. ' * 800}"
    field = read(pointer, long, NOTE)
    assert math.isfinite(field.log_odds(0, len(NOTE)))
    assert alike(field, read(pointer, long + "Who tunes the piano?", NOTE))
    # It takes room from the chunk, which then has more windows, and all of it is still read.
    text = f"{FILLER} " * 22
    short, whole = read(pointer, KEY, text)._windows, read(pointer, long, text)._windows
    assert len(short) == 1 and len(whole) == 2
    assert whole[-1].offsets[-1] == short[-1].offsets[-1] and whole[0].offsets[0] == short[0].offsets[0]
    assert all(one[1] <= other[0] for one, other in pairwise(short[0].offsets))


# Loading


def test_the_embedder_is_left_as_it_was(embedder: Embedder) -> None:
    texts = [NOTE, FILLER * 30, ""]
    chunks, question = embedder.embed_chunks(texts), embedder.embed_question(KEY)
    words = embedder.transformer()[1].to_str()
    weights = {name: tensor.clone() for name, tensor in embedder.transformer()[0].state_dict().items()}
    pointer = load_span_scorer(embedder)
    pointer.read(KEY, texts)
    assert np.array_equal(embedder.embed_chunks(texts), chunks)
    assert np.array_equal(embedder.embed_question(KEY), question)
    after = embedder.transformer()[0].state_dict()
    assert set(after) == set(weights) and all(torch.equal(after[name], weights[name]) for name in weights)
    assert embedder.transformer()[1].to_str() == words


def test_in_half_precision_the_embedder_is_left_as_it_was(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where both compute with the modules that were loaded, and share what the adapter does not change."""
    before = embedder.embed_question("When is the bin emptied?")

    def as_on_gpu(bert: Bert, *, in_half: bool) -> Bert:
        halve(bert)
        return bert

    monkeypatch.setattr(span_scorer, "fastest", as_on_gpu)
    net = load_span_scorer(embedder)._net
    halved = {linear.weight.dtype for linear in linear_layers(net.bert).values()}
    assert halved == {torch.bfloat16}
    assert {tensor.dtype for tensor in embedder.transformer()[0].parameters()} == {torch.float32}
    plain = embedder._embed(["When is the bin emptied?"], None, nullcontext(), embedder._module, tokens=False)[0][0]
    assert float(plain @ before) > 0.999


def test_the_word_table_is_shared_and_the_blocks_are_not(embedder: Embedder, pointer: SpanScorer) -> None:
    theirs = dict(embedder.transformer()[0].named_parameters())
    ours = dict(pointer._net.bert.named_parameters())
    shared = {name for name in ours if ours[name].data_ptr() == theirs[name].data_ptr()}
    assert shared == {name for name in theirs if name.startswith("embeddings.")}
    assert "embeddings.word_embeddings.weight" in shared
    learned = [name for name in ours if name.startswith("encoder.") and ours[name].dim() == 2]
    packed = isinstance(pointer._net.bert, Bf16Bert | CompiledBert)
    assert len(learned) == (0 if packed else 36), "packed matrices keep no copy in fp32"
    assert not any(torch.equal(ours[name], theirs[name]) for name in learned)
    assert not any(parameter.requires_grad for parameter in ours.values())


def test_helpers_read_what_is_to_be_read_and_nothing_twice(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are read on the threads of the pointer too, whose number does not change that of other threads."""
    before, asked = torch.get_num_threads(), list[tuple[str, int]]()
    pointer = load_span_scorer(embedder)
    scores_of, lock, both = pointer._scores, threading.Lock(), threading.Barrier(2)

    def noted(pair: QuestionChunkPair) -> Tensor:
        with lock:
            asked.append((threading.current_thread().name, torch.get_num_threads()))
            first_two = len(asked) <= 2
        if first_two and pointer._ahead is not None:
            both.wait(30)  # so that neither thread reads all
        return scores_of(pair)

    monkeypatch.setattr(pointer, "_scores", noted)
    texts = [f"{number}. {NOTE}" for number in range(6)]
    fields = pointer.read(KEY, texts)
    assert len(asked) == len(texts) and {count for _, count in asked} == {1}
    assert (len({name for name, _ in asked}) > 1) == (pointer._ahead is not None)
    assert torch.get_num_threads() == before
    pointer.close()
    alone = load_span_scorer(embedder)
    assert all(alike(field, read(alone, KEY, text)) for field, text in zip(fields, texts, strict=True))


def test_two_pointers_are_alike_and_named_by_their_adapter(
    embedder: Embedder, pointer: SpanScorer, tmp_path: Path
) -> None:
    (tmp_path / SHIPPED.name).write_bytes(SHIPPED.read_bytes())
    again = load_span_scorer(embedder, tmp_path)
    assert again.fingerprint == pointer.fingerprint
    assert len(again.fingerprint) == 12 and int(again.fingerprint, 16) >= 0
    assert alike(read(again, KEY, NOTE), read(pointer, KEY, NOTE))
    learned = load_file(SHIPPED)
    learned["head.ends.bias"] = learned["head.ends.bias"] + 1
    save_file(learned, tmp_path / SHIPPED.name)
    other = load_span_scorer(embedder, tmp_path)
    assert other.fingerprint != pointer.fingerprint
    # Each of a span's two ends is worth one more.
    expected = read(pointer, KEY, NOTE).log_odds(0, len(NOTE)) + 2
    assert read(other, KEY, NOTE).log_odds(0, len(NOTE)) == pytest.approx(expected, abs=0.02)


def cut(file: Path) -> None:
    file.write_bytes(SHIPPED.read_bytes()[:-1000])


def no_tensors(file: Path) -> None:
    file.write_bytes(b"\x7fELF what is this" * 100)


def nothing(file: Path) -> None:
    file.write_bytes(b"")


def a_folder(file: Path) -> None:
    file.mkdir()


def another_models(file: Path) -> None:
    save_file({"model.layers.0.self_attn.q_proj.weight": torch.zeros(4, 4)}, file)


def without_its_head(file: Path) -> None:
    learned = load_file(SHIPPED)
    save_file({name: tensor for name, tensor in learned.items() if not name.startswith("head.first")}, file)


def of_another_width(file: Path) -> None:
    learned = load_file(SHIPPED)
    save_file({name: tensor[..., :-2].contiguous() for name, tensor in learned.items()}, file)


def of_the_form_before(file: Path) -> None:
    learned = load_file(SHIPPED)
    wide = {name: torch.zeros(tensor.shape[0], tensor.shape[1] * 2).half() for name, tensor in learned.items()
            if tensor.dtype == torch.uint8}  # fmt: skip
    save_file({name: wide.get(name, tensor) for name, tensor in learned.items() if not name.endswith("_steps")}, file)


def changed(name: str, how: Callable[[Tensor], Tensor]) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        learned = load_file(SHIPPED)
        save_file(learned | {name: how(learned[name]).contiguous()}, file)

    return damage


KEYS = "encoder.layer.3.attention.self.key"
ODD = {
    "numbers for codes": changed(f"{KEYS}.down", lambda codes: codes.half()),
    "whole numbers for codes": changed(f"{KEYS}.down", lambda codes: codes.int()),
    "one rank's codes": changed(f"{KEYS}.up", lambda codes: codes[:1]),
    "codes of no shape": changed(f"{KEYS}.up", lambda codes: codes[0, 0]),
    "one step": changed(f"{KEYS}.up_steps", lambda steps: steps[:1]),
    "a step of no shape": changed(f"{KEYS}.up_steps", lambda steps: steps[0]),
    "a step that is no number": changed(f"{KEYS}.down_steps", lambda steps: steps * torch.nan),
}


def missing(file: Path) -> None:
    assert not file.exists()


@pytest.mark.parametrize(
    "damage",
    [missing, cut, no_tensors, nothing, a_folder, another_models, without_its_head, of_another_width,
     of_the_form_before, *(pytest.param(damage, id=name) for name, damage in ODD.items())],
)  # fmt: skip
def test_an_adapter_that_is_none_is_named_with_a_remedy(
    embedder: Embedder, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    damage(tmp_path / SHIPPED.name)
    before = embedder.embed_chunks([NOTE])
    with pytest.raises(ModelNotFound) as raised:
        load_span_scorer(embedder, tmp_path)
    assert str(tmp_path / SHIPPED.name) in raised.value.message and "\n" not in raised.value.message
    assert "choose_quote = false" in raised.value.remedy
    assert np.array_equal(embedder.embed_chunks([NOTE]), before)


def test_nothing_is_fetched(embedder: Embedder, pointer: SpanScorer, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []

    def refuse(*arguments: object, **_: object) -> None:
        tried.append(arguments)
        raise OSError("no network in tests")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(OSError, match="no network"):
        socket.create_connection(("127.0.0.1", 9))
    tried.clear()
    assert alike(read(load_span_scorer(embedder), KEY, NOTE), read(pointer, KEY, NOTE))
    assert tried == []


def test_threads_share_one_pointer(embedder: Embedder, pointer: SpanScorer) -> None:
    numbers = range(2 * _KEPT // 3)  # more than are remembered, so that they are read again and again
    asked = [(KEY, [f"{number} {NOTE}", f"{FILLER} {number}", ""]) for number in numbers]
    expected = [load_span_scorer(embedder).read(*one) for one in asked[:2]]
    expected += [pointer.read(*one) for one in asked[2:]]
    shared = load_span_scorer(embedder)
    failures: list[object] = []
    ready = threading.Barrier(4)

    def ask(number: int) -> None:
        try:
            ready.wait(30)
            for turn in numbers:
                one = (5 * number + turn) % len(numbers)
                for field, other in zip(shared.read(*asked[one]), expected[one], strict=True):
                    if not alike(field, other):
                        failures.append("another field")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_pieces_of_one_character_leave_room_for_other_spans() -> None:
    offsets = [(0, 1)] * 3 + [(1, 2)] * 3 + [(2, 3)] * 3
    some = -torch.arange(81.0).view(9, 9)
    some[:3, :3] += 200
    field = SpanScores([_Window(tuple(offsets), some.masked_fill(~torch.ones(9, 9).bool().triu(), -torch.inf))])
    assert [len(field.best(0, 3, count)) for count in (1, 2, 4, 6)] == [1, 2, 4, 6]


def test_marks_belong_to_the_character_before_them(pointer: SpanScorer) -> None:
    """The tokenizer leaves them out of its pieces: an answer must not end as 'Malmo' where the text says more."""
    text = "The chef is from Malmo\u0308. He has a dog."
    (field,) = pointer.read("Where is the chef from?", [text])
    best = field.best(0, len(text), 1)[0]
    assert text[best.begin : best.end] == "Malmo\u0308"
