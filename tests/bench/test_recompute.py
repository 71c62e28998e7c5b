"""The benchmark of selective recompute measures every way it says it does, on a model of nobody's shape."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from desk_rag.bench import recompute
from desk_rag.bench.models import shapes
from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel
from tests.models import FAMILIES, build_model


def test_every_way_is_measured_and_ends_in_one_json_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "found.jsonl"
    options = "--shape tiny --device cpu --auxiliary none --tokens 300 --chunk 120 --ratios 0.1,0.3 --rounds 3"
    assert recompute.main([*options.split(), "--seconds", "0", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    report = json.loads(out.read_text())
    assert json.loads(shown.splitlines()[-1]) == report
    context = report["contexts"][0]
    assert context["chunks"] == 3 and 200 < context["tokens"] <= 360
    ways = {way["way"]: way for way in context["ways"]}
    kinds = ("random", "first-k", "delta-kv", "query", "edge-query")
    assert set(ways) == {f"{name} {ratio}" for name in kinds for ratio in ("0.1", "0.3")}
    for name in kinds:
        assert 0.04 < ways[f"{name} 0.1"]["effective"] <= 0.11 < ways[f"{name} 0.3"]["effective"] <= 0.31
        assert ways[f"{name} 0.1"]["n"] == 3
        for way in (ways[f"{name} 0.1"], ways[f"{name} 0.3"]):
            assert min(way["select_ms"], way["pass_ms"]) > 0
            assert 0 < way["ratio_fastest"] <= way["ratio"]
    assert context["stitch_ms"] > 0
    fulls = context["fulls_ms"]
    assert set(fulls) == {"full prefill, transformers", "full prefill, fused"}
    assert fulls[context["fastest"]] == min(fulls.values())
    assert "edge-query 0.3" in shown and "full prefill" in shown


def test_the_auxiliary_model_reads_the_same_texts() -> None:
    model = build_model(next(family for family in FAMILIES if family.name == "qwen3"))
    auxiliary = AuxiliaryModel(build_model(next(family for family in FAMILIES if family.name == "llama"), seed=2))
    bench = recompute.Bench(model, 250, 110, auxiliary)
    context = bench.context()
    assert [len(ids) for ids in context.chunk_ids] == [len(model.prompt.chunk_ids(text)) for text in context.texts]
    assert all(len(ids) <= 130 for ids in context.chunk_ids)
    works = bench.works(["aux"], [0.2])
    assert set(works) == {*bench.prefills, "stitch", "stitched", "select aux 0.2", "pass aux 0.2", "aux 0.2"}
    for work in works.values():
        work.before()
        work.run()


def test_a_model_without_a_lean_pass_is_measured_against_its_own() -> None:
    bench = recompute.Bench(build_model(next(family for family in FAMILIES if family.name == "gemma3")), 150, 80, None)
    assert list(bench.prefills) == ["full prefill, transformers"]
    bench.prefills["full prefill, transformers"]()


def test_random_shapes_are_refused_by_name() -> None:
    from desk_rag.errors import ConfigError

    with pytest.raises(ConfigError, match="huge"):
        recompute.main(["--shape", "huge"])
    assert "tiny" in shapes.MODELS
