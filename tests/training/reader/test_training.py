"""The training loops on the CPU: what is taken, what is learned, and that a loss falls."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from desk_rag.training.reader.architecture import rotary_tables
from desk_rag.training.reader.data.rows import QUESTION, RowBuilder, attention_mask, save_rows
from desk_rag.training.reader.training import (
    Group,
    Rates,
    Rows,
    TokenStream,
    learned_of,
    load,
    row_states,
    save,
    shards,
    text_tokens,
    train_language_model,
    train_rows,
)
from tests.training.reader.conftest import VOCAB, decoder

WINDOW = 32


def counting(path: Path, tokens: int) -> Path:
    """A stream in which every token is the one before it plus one, over and over."""
    (np.arange(tokens) % 60).astype(np.uint16).tofile(path)
    return path


def test_rates_rise_stay_and_fall() -> None:
    rates = Rates(muon=1.0, adam=1.0, fall=0.25, warm_up=10)
    assert [rates.scale(0.0, 0), rates.scale(0.1, 4), rates.scale(0.5, 99)] == [0.1, 0.5, 1.0]
    assert rates.scale(0.875, 99) == pytest.approx(0.5) and rates.scale(1.0, 99) == 0.0


def test_windows_are_parted_between_processes_and_held_out_ones_are_not_learned(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    np.arange(600 * WINDOW + 1).astype(np.uint16).tofile(path)
    cpu = torch.device("cpu")
    first, second = (TokenStream(path, WINDOW, Group(rank, 2, cpu)) for rank in (0, 1))
    assert len(first.held_out) == 256
    seen: list[int] = []
    for _ in range((600 - 256) // 8):
        for stream in (first, second):
            taken = stream.take(4)
            assert taken.shape == (4, WINDOW + 1) and torch.equal(taken[:, 1:], taken[:, :-1] + 1)
            seen += (taken[:, 0] // WINDOW).tolist()
    assert len(set(seen)) == len(seen) == 344 and not set(seen) & set(first.held_out)
    first.take(4)
    assert (first.epoch, second.epoch) == (1, 0)


def test_a_language_model_learns_in_thirty_steps(tmp_path: Path, alone: Group) -> None:
    stream = TokenStream(counting(tmp_path / "tokens.bin", 300 * WINDOW + 1), WINDOW, alone)
    rates = Rates(muon=0.05, adam=0.02, fall=0.5, warm_up=3)
    untrained = train_language_model(
        decoder(), stream, alone, Rates(0.0, 0.0, 0.5), tokens=1, batch=8, micro=4, drop=0.0
    )
    model = decoder()
    loss = train_language_model(model, stream, alone, rates, tokens=30 * 8 * WINDOW, batch=8, micro=4, drop=0.0)
    assert untrained == pytest.approx(np.log(VOCAB), abs=0.5)
    assert loss < untrained / 2 and not model.training


def test_rows_are_learned(tokenizer: Tokenizer, tmp_path: Path, alone: Group) -> None:
    built = RowBuilder(tokenizer, 160).build(["The Aldous landed tar."], [("What was landed?", "tar")])
    assert built is not None
    save_rows(str(tmp_path / "some.000"), [built] * 4)
    amount = {"batch": 4, "micro": 2, "drop": 0.0, "full_share": 0.5}
    rates = Rates(muon=0.02, adam=0.01, fall=0.5, warm_up=2)
    model = decoder(1)
    train_rows(model, Rows(tmp_path, "some", alone), alone, rates, count=100, **amount)  # type: ignore[arg-type]
    rows = Rows(tmp_path, "some", alone).take(1)
    cos, sin = rotary_tables(model.shape, "cpu")
    mask = attention_mask(rows["segments"], torch.tensor([False]), torch.float32)
    with torch.no_grad():
        states, targets, known = learned_of(row_states(model, rows, cos, sin, mask), rows)
        predicted = model.logits(states).argmax(-1)[known]
    assert predicted.tolist() == targets[known].tolist()
    assert targets[known].tolist() == built.ids[built.learned[built.learned >= 0]].tolist()


def test_learned_states_stand_before_their_tokens(tokenizer: Tokenizer) -> None:
    built = RowBuilder(tokenizer, 160).build(["The Aldous landed tar."], [("What was landed?", "tar")])
    assert built is not None
    taken = {
        field: torch.from_numpy(getattr(built, field).astype(np.int64))[None]
        for field in ("ids", "segments", "positions", "learned")
    }
    model = decoder(3)
    cos, sin = rotary_tables(model.shape, "cpu")
    mask = attention_mask(taken["segments"], torch.tensor([False]), torch.float32)
    with torch.no_grad():
        states, _, known = learned_of(row_states(model, taken, cos, sin, mask), taken)
        positions = taken["positions"]
        hidden = model.hidden(taken["ids"], cos[positions][:, None], sin[positions][:, None], mask)
    wanted = [int(i) - 1 for i in built.learned if i >= 0]
    assert int(known.sum()) == len(wanted) and torch.equal(states[0, : len(wanted)], hidden[0, wanted])


def test_texts_can_be_learned_beside_the_answers(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """With a weight for them, chunks become likelier too; without it they do not."""
    built = RowBuilder(tokenizer, 160).build(["The Aldous landed tar and rope in the rain."], [("Landed?", "tar")])
    assert built is not None
    save_rows(str(tmp_path / "some.000"), [built] * 4)
    alone = Group(0, 1, torch.device("cpu"))
    chunk = torch.from_numpy(np.flatnonzero(built.segments == 1))
    after = []
    for weight in (0.0, 1.0):
        model = decoder(3)
        amount = {"batch": 2, "micro": 2, "drop": 0.0, "full_share": 0.0, "text_weight": weight}
        rates = Rates(muon=0.02, adam=3e-3, fall=0.5, warm_up=5)
        train_rows(model, Rows(tmp_path, "some", alone), alone, rates, count=60, **amount)  # type: ignore[arg-type]
        cos, sin = rotary_tables(model.shape, "cpu")
        with torch.no_grad():
            rows = Rows(tmp_path, "some", alone).take(1)
            hidden = row_states(
                model, rows, cos, sin, attention_mask(rows["segments"], torch.tensor([False]), torch.float32)
            )
            likely = model.logits(hidden[0, chunk[:-1]]).log_softmax(-1)
        after.append(float(likely.gather(-1, rows["ids"][0, chunk[1:], None]).mean()))
    assert after[1] > after[0] + 1.0


def test_texts_are_chunks_and_questions_without_what_stands_between(tokenizer: Tokenizer) -> None:
    built = RowBuilder(tokenizer, 220).build(["Tar and rope.", "Rain."], [("Landed?", "tar"), ("Wet?", "Rain.")])
    assert built is not None
    segments = torch.from_numpy(built.segments.astype(np.int64))
    counted = text_tokens(segments[None])[0]
    kinds = {int(kind) for kind in segments[1:][counted]}
    assert kinds == {1, 2, QUESTION, QUESTION + 1}, "no prefix, no copy of it, no padding"
    for kind in kinds:
        assert int(counted[(segments == kind)[1:]].sum()) == int((segments == kind).sum()) - 1, "all but the first"


def test_weights_are_saved_and_shares_part_everything(tmp_path: Path) -> None:
    model, other = decoder(4), decoder(5)
    save(model, tmp_path / "weights.safetensors")
    load(other, tmp_path / "weights.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    parts = [list(shards(7, Group(rank, 3, torch.device("cpu")))) for rank in range(3)]
    assert sorted(sum(parts, [])) == list(range(7)) and max(map(len, parts)) == 3
