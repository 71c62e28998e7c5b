"""Refining: what learns, what stands still, what a short answer's tokens count, what the averaged weights are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from desk_rag.errors import ConfigError
from desk_rag.training.reader.architecture import Decoder, rotary_tables
from desk_rag.training.reader.data.rows import Row, RowBuilder, attention_mask, save_rows
from desk_rag.training.reader.refining import Refinement, mean_of, parse_variant, refine, thaw, token_weights
from desk_rag.training.reader.training import Group, Rows, learned_of, row_states
from tests.training.reader.conftest import decoder

CHUNKS = ("The Aldous landed 40 barrels of tar.", "The Brenna landed 7 barrels.")
QUOTE = "The Brenna landed 7 barrels."
TINY = Refinement(layers=1, rows=24, batch=4, micro=2, drop=0.0, below=0.0, muon=0.1, adam=0.01, home=0.0)


def built(tokenizer: Tokenizer, told: str) -> Row:
    row = RowBuilder(tokenizer, 256).build(CHUNKS, [("How many did the Brenna land?", told)])
    assert row is not None
    return row


@pytest.fixture
def folder(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    save_rows(str(tmp_path / "some.000"), [built(tokenizer, f'"{QUOTE}"\n7')] * 8)
    return tmp_path


def losses(model: Decoder, rows: Rows) -> tuple[float, float]:
    """Mean losses of the quote's and of the short answer's tokens."""
    taken = rows.take(1)
    cos, sin = rotary_tables(model.shape, "cpu")
    mask = attention_mask(taken["segments"], torch.tensor([False]), torch.float32)
    with torch.no_grad():
        states, targets, known = learned_of(row_states(model, taken, cos, sin, mask), taken)
        each = -model.logits(states).log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    short = taken["short"] > 0
    return float(each[known & ~short].mean()), float(each[known & short].mean())


def test_only_the_top_learns(folder: Path, alone: Group) -> None:
    model = decoder(1, layers=3)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    changed = refine(model, Rows(folder, "some", alone), alone, TINY)
    top = {name for name in before if name.startswith(("layers.2.", "norm."))}
    assert changed.keys() == top and len(top) > 8
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == (name not in top), name
    assert set(thaw(model, 3)) == before.keys() - {"embed_tokens.weight"} and not model.training


def test_what_is_learned_is_the_row(folder: Path, alone: Group) -> None:
    model = decoder(1)
    rows = Rows(folder, "some", alone)
    before = losses(model, rows)
    refine(model, rows, alone, replace(TINY, layers=2, rows=160))
    after = losses(model, rows)
    assert after[0] < before[0] - 0.4 and after[1] < before[1] - 0.4


def test_the_answer_weighs_what_is_asked_for(folder: Path, alone: Group) -> None:
    """With all weight on the short answer its loss falls further, and the quote's less far."""
    results = []
    for answer in (0.0, 50.0):
        model = decoder(1)
        rows = Rows(folder, "some", alone)
        refine(model, rows, alone, replace(TINY, answer=answer, layers=2, rows=120))
        results.append(losses(model, rows))
    assert results[1][1] < results[0][1] - 0.3 and results[0][0] < results[1][0] - 0.05


@pytest.mark.parametrize(
    ("told", "short"),
    [
        (f'"{QUOTE}"\n7', "7<|im_end|>"),
        ('"One." \n"Two."\n40 barrels', "40 barrels<|im_end|>"),
        ("40", "40<|im_end|>"),
        (f'"{QUOTE}"', ""),
        ("I could not find that in the documents.", ""),
    ],
)
def test_short_answers_are_told_from_quotes(tokenizer: Tokenizer, told: str, short: str) -> None:
    row = built(tokenizer, told)
    ids = row.ids[row.learned[row.short]]
    assert tokenizer.decode(ids.tolist(), skip_special_tokens=False) == short
    taken = {"short": torch.from_numpy(row.short.astype(np.int64))[None]}
    known = torch.from_numpy(row.learned >= 0)[None]
    weights = token_weights(taken, known, 3.0)
    assert float(weights.sum()) == int(known.sum()) + 2 * len(ids) and not weights[~known].any()


def test_weights_are_averaged_over_the_last_part(folder: Path, alone: Group) -> None:
    """Over one step they are the last ones; over all steps they are nearer to where they began."""
    last, all_of_it = decoder(1), decoder(1)
    start = decoder(1).get_parameter("layers.1.mlp.up_proj.weight").detach()
    ends = refine(last, Rows(folder, "some", alone), alone, replace(TINY, mean=0.0))
    means = refine(all_of_it, Rows(folder, "some", alone), alone, replace(TINY, mean=1.0))
    name = "layers.1.mlp.up_proj.weight"
    assert torch.equal(ends[name], last.get_parameter(name))
    assert float((means[name] - start).norm()) < 0.9 * float((ends[name] - start).norm())
    assert torch.allclose(mean_of([ends, means])[name], (ends[name] + means[name]) / 2)


def test_home_pulls(folder: Path, alone: Group) -> None:
    far = []
    name = "layers.1.mlp.up_proj.weight"
    start = decoder(1).get_parameter(name).detach()
    for home in (0.0, 40.0):
        changed = refine(decoder(1), Rows(folder, "some", alone), alone, replace(TINY, home=home))
        far.append(float((changed[name] - start).norm()))
    assert far[1] < 0.7 * far[0]


def test_time_ends_a_run(folder: Path, alone: Group) -> None:
    model = decoder(1)
    seen: list[int] = []
    model.norm.register_forward_hook(lambda *_: seen.append(1))
    refine(model, Rows(folder, "some", alone), alone, replace(TINY, rows=4_000_000, seconds=1e-6))
    assert len(seen) == 4 * TINY.batch // TINY.micro


def test_variants_are_read_and_mistakes_named() -> None:
    usual = Refinement(rows=7)
    assert parse_variant("calm", usual) == ("calm", usual)
    name, how = parse_variant("b-2:muon=0.5,layers=5,seconds=9", usual)
    assert name == "b-2" and how == replace(usual, muon=0.5, layers=5, seconds=9.0)
    for wrong in ("a:speed=3", "a:layers=many", "a:muon", "../a"):
        with pytest.raises(ConfigError):
            parse_variant(wrong, usual)
