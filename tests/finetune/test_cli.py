"""The command: questions from an indexed folder, a stop that is kept, and what it says when asked for nonsense."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from desk_rag.bench.answer_quality.data.sample import Sample as Judged
from desk_rag.cli.training.finetune import _parser, finetune, train_settings
from desk_rag.cli.training.judging import judged_questions
from desk_rag.config import ModelSettings, Settings
from desk_rag.errors import ConfigError, DeskRagError
from desk_rag.finetune import run as run_module
from desk_rag.finetune.data import QA, Sample, load_samples
from desk_rag.finetune.settings import REPLAY_SHARE
from desk_rag.ingest.pipeline import sync_folder
from desk_rag.store.store import Store
from tests.models import byte_prompt

NOTE = "# Shed\n\nThe red key of the shed hangs behind the mirror in Porto. Aunt Isolde bought the lamp in 1987.\n"


@pytest.fixture
def settings(tiny_dir: Path, tmp_path: Path) -> Settings:
    model = ModelSettings(name=str(tiny_dir), device="cpu", threads=1)
    return Settings(data_dir=tmp_path / "data", model=model)


def test_a_folder_becomes_an_adapter_and_a_stop_is_kept(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = tmp_path / "documents", tmp_path / "out"
    folder.mkdir()
    (folder / "note.md").write_text(NOTE, encoding="utf-8")
    for name in ("one.txt", "same.txt"):  # the same chunk twice, under two names
        (folder / name).write_text("The blue bicycle of Uncle Bertram stands under the 3 elms.\n", encoding="utf-8")
    with Store.open(settings.data_dir, settings.store, writer=True) as store:
        prompt = byte_prompt()
        for _ in sync_folder(store, folder, prompt, prompt.chunk_size, settings.index, lambda: False):
            pass
    words = ["--folder", str(folder), "--out", str(out), "--steps", "4", "--rows", "1", "--row-tokens", "512",
             "--lora", "4", "--held-out", "0", "--refuse", "0"]  # fmt: skip
    real = run_module.train

    def interrupted(*args: object, **kwargs: object) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(run_module, "train", interrupted)
    assert finetune(settings, words) == 130
    assert "--resume goes on" in capsys.readouterr().out
    chunks = " ".join(sample.chunks[0] for sample in load_samples(out / "data.jsonl"))
    assert "mirror" in chunks and "bicycle" in chunks
    monkeypatch.setattr(run_module, "train", real)
    (folder / "note.md").unlink()  # what was made from it is kept with the run
    assert finetune(settings, [*words, "--resume", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["steps"] == 4 and report["stopped"] is False and report["before"]["text"] > 0
    assert (out / "adapter_model.safetensors").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "No training data"),
        (["--data", "a", "--folder", "b"], "No training data"),
        (["--data", "a", "--lora", "8", "--full"], "exclude each other"),
        (["--data", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
        (["--folder", "."], "nothing indexed under"),
        (["--data", "DATA", "--rows", "3", "--rows-at-once", "2"], "cannot be split into batches of 2"),
        (["--data", "DATA", "--full-attention", "1.5"], "'full_share' is 1.5"),
        (["--data", "DATA", "--questions", "0"], "questions must be at least 1"),
        (["--data", "DATA", "--learning-rate", "-1"], "must not be negative"),
    ],
)
def test_nonsense_is_refused_with_a_reason(settings: Settings, tmp_path: Path, words: list[str], message: str) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"passage": "It rained.", "question": "What fell?", "answer": "rain"}\n', encoding="utf-8")
    words = [str(data) if word == "DATA" else word for word in words]
    with pytest.raises(DeskRagError) as caught:
        finetune(settings, [*words, "--out", str(tmp_path / "out")])
    assert message in caught.value.message
    assert isinstance(caught.value, ConfigError) or "index" in caught.value.remedy


def test_the_options_are_told(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        finetune(settings, ["--help"])
    assert done.value.code == 0
    shown = capsys.readouterr().out
    assert all(option in shown for option in ("--data", "--folder", "--lora", "--full", "--resume"))


def test_text_is_replayed_where_there_is_some() -> None:
    def share(*words: str) -> float:
        return train_settings(_parser().parse_args(["--data", "a", "--out", "b", *words])).replay_share

    assert share() == 0.0
    assert share("--replay", "c") == REPLAY_SHARE > 0
    assert share("--replay", "c", "--replay-share", "0.4") == 0.4


def test_held_out_questions_go_to_the_harness_among_other_chunks() -> None:
    samples = [
        Sample((f"House {number} is tone{number}.",), (QA(f"Tone of house {number}?", f"tone{number}"),))
        for number in range(12)
    ]
    samples.append(Sample(("It rained.",), (QA("Who won?", None),)))
    judged = [Judged(**one, task="held out") for one in judged_questions(samples, 3, seed=1)]
    assert [len(one.contexts) for one in judged] == [4] * 13
    for one in judged[:-1]:
        assert one.gold is not None
        ((answer,),) = one.answers
        holding = [number for number, text in enumerate(one.contexts) if f"is {answer}." in text]
        assert holding == list(one.gold)
    assert judged[-1].answers == () and judged[-1].gold is None
    assert len({one.gold for one in judged[:-1]}) == 4, "the right chunk must not always lie at one place"
