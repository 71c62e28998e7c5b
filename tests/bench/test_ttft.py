"""The comparison runs on the real engine: both modes, stages that sum up, files that really left the page cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from desk_rag.answering.events import Stage, Timings
from desk_rag.bench import ttft
from desk_rag.bench.harness.corpus import Question
from desk_rag.bench.ttft import Cell, Coldness, Condition, Sample
from desk_rag.errors import ConfigError


def sample(question: str, first_text: float = 1.0, **stages: float) -> Sample:
    named = tuple(Stage(name.replace("_", " "), seconds) for name, seconds in stages.items())
    return Sample(Question(question), Timings(named, context_tokens=100), first_text, None)


def test_ratios_are_of_the_same_question_in_the_same_round() -> None:
    cell = Cell(4)
    cell.samples[Condition.FULL] = [sample("a", retrieve=1.0, prefill=9.0), sample("b", retrieve=1.0, prefill=1.0)]
    cell.samples[Condition.DISK] = [sample("a", retrieve=0.5, load=0.5), sample("b", retrieve=0.5, load=1.5)]
    assert cell.ratios(Condition.DISK).scaled(1)[::2] == [1.0, 5.5, 10.0]
    assert cell.ratios(Condition.DISK, after_retrieval=True).median == pytest.approx((9 / 0.5 + 1 / 1.5) / 2)
    assert cell.ratios(Condition.FULL).median == 1.0
    assert cell.stage(Condition.DISK, "load") == 1.0
    assert cell.stage(Condition.DISK, "prefill") == 0.0


def test_the_first_text_has_ratios_of_its_own() -> None:
    cell = Cell(4)
    cell.samples[Condition.FULL] = [sample("a", 3.0, prefill=1.0), sample("b", 8.0, prefill=1.0)]
    cell.samples[Condition.DISK] = [sample("a", 1.0, prefill=1.0), sample("b", 4.0, prefill=1.0)]
    assert cell.first_text(Condition.DISK).median == 2.5
    assert cell.text_ratios(Condition.DISK).scaled(1)[::2] == [2.0, 2.5, 3.0]


def test_dropping_a_file_keeps_its_content_and_time_but_makes_it_new_to_the_checksum(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    file.write_bytes(b"x" * 100_000)
    before = file.stat()
    coldness = Coldness()
    ttft._drop([file], coldness)
    after = file.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert after.st_ctime_ns > before.st_ctime_ns
    assert coldness.dropped + coldness.kept + coldness.unknown == 1
    assert file.read_bytes() == b"x" * 100_000


def test_every_condition_takes_every_place_in_the_order() -> None:
    orders = [ttft._turned(number) for number in range(3)]
    for place in range(3):
        assert {order[place] for order in orders} == set(Condition)


@pytest.mark.slow
def test_the_whole_comparison_on_two_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    for name, code in (("boiler", "F28"), ("garage", "G12")):
        (folder / f"{name}.md").write_text(f"# {name}\n\nThe code of the {name} is {code}. " + "It was checked. " * 60)
    questions = tmp_path / "q.json"
    questions.write_text('[{"question": "What is the code of the boiler?", "answers": ["F28"]}]')
    out = tmp_path / "ttft.jsonl"
    argv = ["--folder", str(folder), "--questions", str(questions), "--chunks", "1,2", "--repeat", "1",
            "--device", "cpu", "--data-dir", str(tmp_path / "data"), "--out", str(out)]  # fmt: skip
    assert ttft.main(argv) == 0
    printed = capsys.readouterr().out
    result = json.loads(printed.splitlines()[-1])
    assert json.loads(out.read_text()) == result
    assert [context["chunks"] for context in result["contexts"]] == [1, 2]
    assert result["contexts"][0]["context_tokens"] < result["contexts"][1]["context_tokens"]
    for context in result["contexts"]:
        for condition in ("full", "disk", "memory"):
            stages = context[condition]["stages_ms"]
            assert sum(stages.values()) == pytest.approx(context[condition]["ttft_ms"][2], abs=0.2)
        assert context["full"]["stages_ms"]["load"] == 0
        assert context["disk"]["stages_ms"]["load"] > 0
        assert context["disk"]["stages_ms"].get("live prefill", 0) == 0
        assert 0 <= context["answers"]["token_f1"] <= 1
        assert context["answers"]["judged"] == 1
    assert result["cold"]["dropped"] + result["cold"]["kept"] + result["cold"]["unknown"] > 0
    assert "cached, from disk" in printed
    again = [*argv[: argv.index("--repeat")], "--repeat", "5", "--minutes", "1e-6", *argv[argv.index("--device") :]]
    assert ttft.main(again) == 0
    ended = capsys.readouterr()
    assert "The time is over: 1 of 5 questions" in ended.err
    assert [context["samples"] for context in json.loads(ended.out.splitlines()[-1])["contexts"]] == [1, 1]


def test_a_folder_without_documents_is_an_error(tmp_path: Path, reader_dir: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="could be indexed"):
        ttft.main(["--folder", str(tmp_path / "empty"), "--device", "cpu", "--data-dir", str(tmp_path / "data")])
