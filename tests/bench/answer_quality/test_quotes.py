"""The harness chooses quotes and answers as the product does, row by row, and measures both ways in one run."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from desk_rag.answering import generation
from desk_rag.answering.evidence.selection import EvidenceDecoding, EvidenceSelector, SelectionConfig
from desk_rag.answering.evidence.span_scorer import load_span_scorer
from desk_rag.bench import quality
from desk_rag.bench.answer_quality.data.sample import Sample
from desk_rag.bench.answer_quality.modes import FULL, Mode, Way
from desk_rag.bench.answer_quality.prefill import quantized_chunks
from desk_rag.bench.answer_quality.run import Setting, ask, to_item
from desk_rag.config import ModelSettings
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward.runner import ModelPass
from desk_rag.kv.prefill import prefill_prefix
from desk_rag.kv.quant import QuantScheme
from desk_rag.kv.rope import build_tables
from desk_rag.model.language_model import LanguageModel
from desk_rag.retrieval.embedding import load_embedder

LEASE = (
    "Lease\n\nThe tenants may take in a lodger if they tell the landlord the lodger's name beforehand. The tenants pay "
    "a deposit of 1,740 crowns, which is two months' rent. The tenants have the chimney swept once a year."
)
SHORT = "Beans are kept dry in the blue jar. The ferry leaves Harwick at 7.40."
OTHER = "The boiler was serviced in May."
SAMPLES = [
    Sample("What deposit do the tenants pay?", (("1,740 crowns",),), (OTHER, SHORT, LEASE), "t", (2,)),
    Sample("When does the ferry leave?", (("7.40",),), (SHORT,), "t", (0,)),
    Sample("Who repaired the piano?", (), (OTHER, SHORT), "t", ()),
]


@pytest.fixture(scope="module")
def setting(reader: LanguageModel) -> Setting:
    chooser = EvidenceSelector(reader.prompt, load_span_scorer(load_embedder(ModelSettings(device="cpu"))))
    return Setting(reader, prefill_prefix(reader), build_tables(reader, 900), 60, chooser=chooser)


def as_the_product(setting: Setting, sample: Sample) -> list[int]:
    """Full prefill of one question alone; the answer's ids without the stop id."""
    prompt, chooser, cache = setting.model.prompt, setting.chooser, SlabCache(setting.model, 900)
    assert chooser is not None
    ids = [*prompt.prefix_ids, *(token for text in sample.contexts for token in prompt.chunk_ids(text))]
    ids += prompt.question_ids(sample.question)

    run = ModelPass(setting.model, cache)
    tokens = generation.decode(
        prompt, run, run.forward(ids, 0), len(ids), max_new_tokens=60, stop=lambda: False,
        strategy=EvidenceDecoding(chooser, sample.question, sample.contexts),
    )  # fmt: skip
    text = "".join(token.text for token in tokens)
    return list(text.encode())


def test_rows_side_by_side_say_what_the_product_says(setting: Setting) -> None:
    model = setting.model
    items = [to_item(sample, setting) for sample in SAMPLES]
    chunks = [ids for item in items for ids in item.chunks]
    coded = quantized_chunks(model, setting.prefix, chunks, QuantScheme.uniform(model.spec.num_layers))
    known = {(0, ids): kv for ids, kv in coded.items()}
    full = ask(setting, FULL, items, known, None)
    stitched = ask(setting, Mode(Way.REORDERED), items, known, full)
    for sample, said, other in zip(SAMPLES, full, stitched, strict=True):
        kept = [token for token in said.token_ids if token not in model.prompt.stop_ids]
        assert list(model.prompt.decode(kept).encode()) == as_the_product(setting, sample)
        assert other.token_ids == said.token_ids and other.chosen == said.chosen
        assert other.top1 in (None, 1.0) and other.kl is not None and other.kl < 0.1
    chosen = [model.prompt.decode(said.token_ids[: said.chosen]) for said in full]
    assert chosen == [
        '"The tenants pay a deposit of 1,740 crowns, which is two months\' rent."\n1,740 crowns',
        '"The ferry leaves Harwick at 7.40."\n7.40',
        "",
    ]
    assert [said.token_ids[-1] in model.prompt.stop_ids for said in full] == [True] * 3
    greedy = ask(replace(setting, chooser=None), FULL, items, known, None)
    assert [said.chosen for said in greedy] == [0, 0, 0]


def test_an_objection_is_heard_as_in_the_product(setting: Setting) -> None:
    """With a span scorer that always objects, the sample without an answer is answered all the same."""
    model, chooser = setting.model, setting.chooser
    assert chooser is not None
    always = EvidenceSelector(model.prompt, chooser._span_scorer, SelectionConfig(override_refusal_at=-math.inf))
    eager, items = replace(setting, chooser=always), [to_item(SAMPLES[2], setting)]
    (said,) = ask(eager, FULL, items, {}, None)
    (before,) = ask(setting, FULL, items, {}, None)
    assert model.prompt.decode(before.token_ids).startswith("I could not find")
    assert model.prompt.decode(said.token_ids).startswith('"') and said.chosen > 1
    kept = [token for token in said.token_ids if token not in model.prompt.stop_ids]
    assert list(model.prompt.decode(kept).encode()) == as_the_product(eager, SAMPLES[2])


def test_both_ways_in_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "asked.jsonl"
    data.write_text("".join(json.dumps(sample.to_json()) + "\n" for sample in SAMPLES[:2]))
    arguments = ["--data", str(data), "--modes", "full", "--device", "cpu", "--max-new-tokens", "40"]
    for quotes, ways in (("both", ["chosen", "greedy"]), ("greedy", ["greedy"])):
        assert quality.main([*arguments, "--quotes", quotes, "--folder", str(tmp_path / "kept")]) == 0
        printed = capsys.readouterr().out.splitlines()
        report = json.loads(printed[-1])
        assert report["quotes"] == ",".join(ways)
        named = [line for line in printed if line.startswith("Quotes: ")]
        assert named == ([f"Quotes: {way}" for way in ways] if len(ways) > 1 else [])
        names = [report["configuration"], *([report["greedy"]["configuration"]] if quotes == "both" else [])]
        assert len(set(names)) == len(ways)
    assert len(list((tmp_path / "kept").iterdir())) == 2  # greedy answers were there already
