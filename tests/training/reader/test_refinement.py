"""The stage as a whole: new files are read, frozen bytes stay, published questions are left alone."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from desk_rag.bench.answer_quality.data.distractors import Drawing
from desk_rag.bench.answer_quality.data.own import own_samples
from desk_rag.errors import ConfigError, ModelError
from desk_rag.training.reader import __main__ as command_module
from desk_rag.training.reader import probing
from desk_rag.training.reader.architecture import config_json, shape_of
from desk_rag.training.reader.export import coded, decoded, refined, replace
from desk_rag.training.reader.preparation import Work, prepare_refining
from desk_rag.training.reader.probing import Outcome
from desk_rag.training.reader.training import Group, Rows
from tests.training.reader import invented
from tests.training.reader.conftest import decoder


@pytest.fixture(scope="module")
def start(tokenizer_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small reader as it would be shipped."""
    folder = tmp_path_factory.mktemp("start")
    model = decoder(7, layers=3)
    save_file(coded(model.state_dict()), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_json(model.shape, 2)), encoding="utf-8")
    shutil.copy(tokenizer_path, folder / "tokenizer.json")
    assert shape_of(config_json(model.shape, 2)) == model.shape
    return folder


@pytest.fixture(scope="module")
def outcome(start: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The work folder of one run over old and newly written files, and what it printed."""
    folder = tmp_path_factory.mktemp("refined")
    data, work = folder / "data", folder / "work"
    invented.write(data, documents=4, sentences=60, written=12)
    newer = {"passage": "The Zephyrine landed 31 barrels. Nothing else.", "title": "Newer.txt", "source": "desk"}
    other = newer | {"question": "How many barrels did the Zephyrine land?", "answer": "31"}
    (data / "qa_train-desk4.jsonl").write_text(json.dumps(other) + "\n", encoding="utf-8")
    variants = ["--try", "a:batch=2,micro=1,muon=0.05", "--try", "b:batch=2,micro=1,layers=2,seed=2"]
    arguments = ["--refine", "--start", str(start), "--workers", "1", "--rows", "6", "--asked", "2", *variants]
    printed: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        _few_published(patched)
        patched.setattr(sys, "argv", ["reader", str(data), str(work), *arguments])
        patched.setattr("builtins.print", lambda *words, **_: printed.append(" ".join(map(str, words))))
        assert command_module.main() == 0
    return work, "\n".join(printed)


def test_new_files_are_read(outcome: tuple[Path, str], tokenizer: Tokenizer, alone: Group) -> None:
    work, _ = outcome
    books = (work / "books.jsonl").read_text(encoding="utf-8")
    assert "Zephyrine" in books and len(json.loads((work / "near.json").read_text(encoding="utf-8"))) == 13
    rows = Rows(work, "refining", alone)
    assert rows.count == 6
    taken = rows.take(6)
    short = taken["ids"].gather(1, taken["learned"].clamp(min=0))[taken["short"] > 0]
    assert len(short) > 10 and '"' not in tokenizer.decode(short.tolist())


@pytest.mark.parametrize(("name", "top"), [("a", ("layers.",)), ("b", ("layers.1.", "layers.2."))])
def test_what_stands_still_is_the_same_to_the_byte(
    outcome: tuple[Path, str], start: Path, name: str, top: tuple[str, ...]
) -> None:
    """Four layers of three are all of them; the embedding stays in any case."""
    work, _ = outcome
    before, after = start / "model.safetensors", work / "refined" / name / "model.safetensors"
    changed = load_file(work / "refined" / f"{name}.safetensors")
    bare = {key.removeprefix("model.").removesuffix(".scale") for key in changed}
    assert all(key.startswith((*top, "norm.")) for key in bare) and "embed_tokens.weight" not in bare
    old, new = before.read_bytes(), after.read_bytes()
    header = 8 + int.from_bytes(old[:8], "little")
    assert len(old) == len(new) and old[:header] == new[:header]
    different = 0
    for key, entry in json.loads(old[8:header]).items():
        first, last = (header + offset for offset in entry["data_offsets"])
        assert key in changed or old[first:last] == new[first:last], key
        different += old[first:last] != new[first:last]
    assert different > len(changed) // 2
    assert all(torch.equal(tensor, load_file(after)[key]) for key, tensor in changed.items())
    assert (after.parent / "tokenizer.json").read_bytes() == (start / "tokenizer.json").read_bytes()


def test_scores_are_told_and_the_best_is_named(outcome: tuple[Path, str]) -> None:
    work, printed = outcome
    best = (work / "refined" / "best").read_text(encoding="utf-8").strip()
    assert (work / "refined" / best / "model.safetensors").exists() and printed.endswith(f"best: {best}")
    kept = (work / "refined" / "scores.txt").read_text(encoding="utf-8")
    for name in ("start", "a", "b", "halfway"):
        for probe in ("books", "books told", "desk", "desk told full", "together", "refuse"):
            assert any(line.startswith(f"{name:8s} {probe:14s} ") for line in kept.splitlines())
    assert all(line in printed for line in kept.splitlines())


def test_a_variant_that_would_end_too_late_is_not_begun(outcome: tuple[Path, str], start: Path, tmp_path: Path) -> None:
    work, _ = outcome
    again = shutil.copytree(work, tmp_path / "work")
    shutil.rmtree(again / "refined")
    usual = "batch=2,micro=1,rows=2,seconds=60"
    arguments = ["--refine", "--start", str(start), "--asked", "1", "--deadline", "30", "--rows", "6"]
    with pytest.MonkeyPatch.context() as patched:
        variants = ["--try", f"a:{usual}", "--try", f"b:{usual}"]
        patched.setattr(sys, "argv", ["reader", str(work.parent / "data"), str(again), *arguments, *variants])
        assert command_module.main() == 0
    assert (again / "refined" / "a").is_dir() and not (again / "refined" / "b").exists()


def test_what_cannot_be_refined_is_said_before_anything_is_made(
    outcome: tuple[Path, str], start: Path, tmp_path: Path
) -> None:
    work, _ = outcome
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="qa_train"):
        prepare_refining(Work(tmp_path / "empty", tmp_path / "made", 1), start, 6)
    assert not (tmp_path / "made").exists()
    other = shutil.copytree(start, tmp_path / "other")
    (other / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match="another tokenizer"):
        prepare_refining(Work(work.parent / "data", work, 1), other, 6)


def test_only_tensors_of_the_same_form_are_replaced(start: Path, tmp_path: Path) -> None:
    file = start / "model.safetensors"
    with pytest.raises(ModelError, match=r"norm\.weight"):
        replace(file, {"model.norm.weight": torch.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="other"):
        replace(file, {"other": torch.zeros(3)}, tmp_path / "model.safetensors")
    assert not (tmp_path / "model.safetensors").exists()
    changes = tmp_path / "changes.safetensors"
    save_file({"model.norm.weight": torch.full((32,), 2.0)}, changes)
    refined(start, changes, tmp_path / "made")
    weights = decoded(load_file(tmp_path / "made" / "model.safetensors"))
    assert weights.keys() == decoder(layers=3).state_dict().keys() and set(weights["norm.weight"].tolist()) == {2.0}


def test_published_questions_are_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer
) -> None:
    """They are those that the benchmark draws, here with limits as small as the data."""
    invented.write(tmp_path, documents=1, sentences=6, written=24)
    _few_published(monkeypatch)
    lines = (tmp_path / "qa_dev.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    desk = tmp_path / "desk_dev.jsonl"
    desk.write_text("".join(line for line in lines if '"source": "desk"' in line), encoding="utf-8")
    drawn = [
        sample
        for file, limit in ((tmp_path / "qa_dev.jsonl", 9), (desk, 5))
        for sample in own_samples(file, Drawing(limit=limit), len)
    ]
    wanted = {(sample.contexts[sample.gold[0]].split("\n", 1)[1], sample.question) for sample in drawn if sample.gold}
    assert probing.published(tmp_path) == wanted and 9 <= len(wanted) <= 14
    probes = probing.probes(tmp_path, tokenizer, 100)
    questions = {item.question for probe in probes if probe.name in ("books", "desk") for item in probe.items}
    assert len(questions) == 48 - len(wanted) and not questions & {question for _, question in wanted}


def test_told_questions_begin_with_the_right_sentence(
    data: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _few_published(monkeypatch)
    probes = {probe.name: probe for probe in probing.probes(data, tokenizer, 100)}
    assert {"refuse", "together"} <= probes.keys() and "hold" not in probes
    for item in (item for name in probes if name.endswith("told") for item in probes[name].items):
        assert item.begun.startswith('"') and item.begun.endswith('"\n') and item.answer in item.begun
        assert item.begun[1:-2] in (item.gold or "") and item.gold in item.chunks
    full = probes["desk told full"]
    assert full.full and full.items == probes["desk told"].items


def test_gains_are_paired() -> None:
    start = {"desk": _told(0.0, 0.0), "desk told": _told(0.5, 0.5), "refuse": _told(0.0, 0.0)}
    now = {"desk": _told(1.0, 0.0), "desk told": _told(0.5, 1.0), "refuse": _told(1.0, 1.0)}
    assert probing.gains(now, start) == (25.0, 50.0)
    mean, error = probing.difference([1.0, 3.0], [0.0, 0.0])
    assert mean == 2.0 and error == pytest.approx(1.0)
    assert probing.lines("a", now, start)[1].startswith("a        desk told        2 F1 75.0 (+25.0 +-25.0)")


def _few_published(patched: pytest.MonkeyPatch) -> None:
    """As if the published tables were over few questions: the invented data has no more."""
    patched.setattr(probing, "_PUBLISHED", 9)
    patched.setattr(probing, "_PUBLISHED_DESK", 5)


def _told(*values: float) -> Outcome:
    return Outcome(tuple((value,) * 5 for value in values))
