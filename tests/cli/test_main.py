"""The command line as a user meets it: messages, remedies, exit codes, JSON, pipes. Real files, store and model."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import Answer, AnswerEvent, AnswerMode, FirstToken, Stage, Timings
from desk_rag.bench.harness.catalogue import benchmarks
from desk_rag.cli import main, output, work
from desk_rag.config import AnswerSettings, Settings
from desk_rag.errors import ConfigError
from tests.tui.terminal import Terminal

ROOT = Path(__file__).resolve().parent.parent.parent
BOILER = "# Boiler\n\n## Warranty\n\nThe warranty of the boiler ends on 14 March 2028.\n"
CLUB = "Minutes of the garden club\n\nThe club met on 4 April. Ruth Adler was elected treasurer.\n"


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Desk:
    """A folder of documents, one of them broken, indexed once for the whole module."""

    documents: Path
    data: Path
    first: Ran

    def run(self, capsys: pytest.CaptureFixture[str], *words: str) -> Ran:
        return run(capsys, "--data-dir", str(self.data), *words)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> Ran:
    """One command in this process; what it does to files and signals is real, only the imports are saved."""
    capsys.readouterr()
    code = main.main(list(words))
    shown = capsys.readouterr()
    return Ran(code, shown.out, shown.err)


def child(*words: str, before: Sequence[str] = ()) -> Ran:
    """One command in a process of its own; `before` is put in front of it."""
    done = subprocess.run(
        [*before, sys.executable, "-m", "desk_rag", *words], cwd=ROOT, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    place = tmp_path_factory.mktemp("desk")
    documents, data = place / "documents", place / "data"
    (documents / "house").mkdir(parents=True)
    (documents / "house" / "boiler.md").write_text(BOILER, encoding="utf-8")
    (documents / "club.txt").write_text(CLUB, encoding="utf-8")
    (documents / "broken.pdf").write_bytes(b"%PDF-1.7\nthis is no PDF")
    (documents / "photo.jpg").write_bytes(b"\xff\xd8\xff\xe0 not text")
    return Desk(documents, data, child("index", str(documents), "--data-dir", str(data)))


def test_first_index_reads_the_rest_and_names_the_broken_file(desk: Desk) -> None:
    assert desk.first.code == 3
    assert "broken.pdf" in desk.first.err
    assert "2 files read (2 chunks)" in desk.first.err
    assert "1 could not be read" in desk.first.err
    assert "2 chunks made warm" in desk.first.err
    assert "Traceback" not in desk.first.err
    assert desk.first.out == ""


def test_second_index_does_nothing(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    again = desk.run(capsys, "index", str(desk.documents), "--json")
    report = json.loads(again.out)
    assert (report["indexed"], report["removed"], report["warm"], report["chunks"]) == (0, 0, 0, 0)
    assert report["unchanged"] == 2


def test_an_index_without_anything_to_do_loads_no_model(desk: Desk) -> None:
    program = (
        "import sys; from desk_rag.cli.main import main\n"
        f"code = main(['index', {str(desk.documents)!r}, '--data-dir', {str(desk.data)!r}])\n"
        "print(code, 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "2 unchanged" in done.stderr
    assert done.stdout.split() == ["3", "False", "False"], "a file stays unreadable"


def test_loading_libraries_is_not_interrupted_to_look_for_cycles() -> None:
    """Each look goes through what was imported before; a thousand of them took a tenth of a command's time."""
    program = "import desk_rag, gc, torch; print(sum(part['collections'] for part in gc.get_stats()))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 200


def test_nothing_indexed_is_said_before_a_model_is_loaded(
    desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(settings: Settings) -> NoReturn:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr(work, "_load_engine", never)
    answer = run(capsys, "ask", "Anything?", "--data-dir", str(tmp_path / "data"))
    assert answer.code == 1 and "Nothing is indexed yet" in answer.err and "desk-rag ask" in answer.err
    named = tmp_path / "config.toml"
    named.write_text(f"folders = [{str(desk.documents)!r}]\n")
    answer = run(capsys, "ask", "Anything?", "--data-dir", str(tmp_path / "data"), "--config", str(named))
    assert "`desk-rag index` reads the folders that your settings name" in answer.err
    empty = tmp_path / "empty"
    empty.mkdir()
    under = desk.run(capsys, "ask", "Anything?", "--no-index", "--folder", str(empty))
    assert under.code == 1 and "nothing indexed under" in under.err
    hits = run(capsys, "search", "anything", "--data-dir", str(tmp_path / "data"))
    assert hits.code == 1 and "desk-rag index FOLDER" in hits.err and "desk-rag ask" not in hits.err


def test_an_answer_that_is_interrupted_claims_nothing(
    desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl+C at the first token, when only the mark of a quote is there."""
    real = AnswerEngine.ask

    def interrupted(engine: AnswerEngine, question: str, **options: Any) -> Iterator[AnswerEvent]:
        for event in real(engine, question, **options):
            if isinstance(event, FirstToken):
                signal.raise_signal(signal.SIGINT)
            yield event

    monkeypatch.setattr(AnswerEngine, "ask", interrupted)
    question = "Who was elected treasurer of the garden club?"
    answer = desk.run(capsys, "ask", question)
    assert answer.code == 130
    footer = r"-- \d+ of \d+ passages? from \d+ files?; first word after [\d.]+ s\n"
    assert answer.out == "(stopped)\n" and re.fullmatch(footer, answer.err), answer
    report = json.loads(desk.run(capsys, "ask", question, "--json").out)
    parts = [report[name] for name in ("stopped", "answer", "dropped_quotes", "citations")]
    assert parts == [True, "", [], []]


def test_that_a_question_was_cut_is_told(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    question = "Who was elected treasurer of the garden club? " + "And why? " * 400
    report = json.loads(desk.run(capsys, "ask", question, "--json").out)
    assert 200 < report["question_cut_at"] < 256
    shown = desk.run(capsys, "ask", question).out
    assert f"(The question is longer than {report['question_cut_at']} tokens; its end was left out)" in shown
    assert json.loads(desk.run(capsys, "ask", "Who was elected?", "--json").out)["question_cut_at"] is None


def test_a_drive_without_room_for_chunk_kv_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "club.txt").write_text(CLUB, encoding="utf-8")
    (tmp_path / "full.toml").write_text("[store]\nreserve_gib = 1000000\n", encoding="utf-8")
    where = ("--data-dir", str(tmp_path / "data"), "--config", str(tmp_path / "full.toml"))
    indexed = run(capsys, "index", str(tmp_path / "docs"), *where)
    assert indexed.code == 4 and "1 file read" in indexed.err
    assert "reserve_gib" in indexed.err and "stay free" in indexed.err
    assert json.loads(run(capsys, "index", str(tmp_path / "docs"), "--json", *where).out)["disk_full"] is True


def test_ask_streams_the_answer_with_its_citation(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    answer = desk.run(capsys, "ask", "Who was elected treasurer of the garden club?")
    assert answer.code == 0
    assert "[1] " in answer.out and "club.txt" in answer.out and "“" in answer.out
    assert "Ruth" in answer.out
    assert "passages from" not in answer.out and "-- 2 of 2 passages from 2 files; first word after" in answer.err


def test_ask_json_has_the_documented_keys(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    answer = desk.run(capsys, "ask", "Who was elected treasurer?", "--json", "--folder", str(desk.documents))
    report = json.loads(answer.out)
    guide = (ROOT / "assets" / "guides" / "json.md").read_text(encoding="utf-8")
    for key in (*report, *report["sources"][0], *report["citations"][0]):
        assert f"`{key}`" in guide, f"{key} is not documented"
    assert report["found"] is True
    assert report["warm_chunks"] == 2 and report["cold_chunks"] == 0
    assert sum(report["stages"].values()) == pytest.approx(report["ttft_seconds"])
    assert report["citations"][0]["path"] == str((desk.documents / "club.txt").resolve())


def test_full_mode_answers_from_the_same_chunks(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    question = "When does the warranty of the boiler end?"
    cached, full = (
        json.loads(desk.run(capsys, "ask", question, "--json", "--mode", mode).out) for mode in ("cached", "full")
    )
    assert [s["path"] for s in cached["sources"]] == [s["path"] for s in full["sources"]]
    assert cached["context_tokens"] == full["context_tokens"]
    assert "load" in cached["stages"] and "load" not in full["stages"]


def test_ask_indexes_a_new_folder_first(desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tap.md").write_text("# Garden\n\nThe garden tap is shut off in November.\n", encoding="utf-8")
    refused = desk.run(capsys, "ask", "When is the tap shut off?", "--folder", str(tmp_path), "--no-index")
    assert refused.code == 1 and "nothing indexed" in refused.err
    answer = desk.run(capsys, "ask", "When is the tap shut off?", "--folder", str(tmp_path))
    assert answer.code == 0
    assert "1 file read" in answer.err
    assert "November" in answer.out


def test_nothing_but_the_answer_is_printed(desk: Desk) -> None:
    """Standard output is a pipe here: what an answer was made from, and its time, are told on standard error."""
    where = ("--data-dir", str(desk.data))
    answer = child("ask", "Who was elected treasurer of the garden club?", *where)
    hits = child("search", "treasurer", *where)
    assert answer.code == 0 and "Ruth" in answer.out and "--" not in answer.out
    assert re.fullmatch(r"-- \d+ of \d+ passages from \d+ files; first word after [\d.]+ s\n", answer.err)
    assert (hits.code, hits.err) == (0, "") and "club.txt" in hits.out


def test_what_is_asked_for_on_the_command_line_goes_before_the_file() -> None:
    kept = Settings(answer=AnswerSettings(attention="lazy", recompute=0.3, selector="aux", top_k=5))
    assert work.with_answer_options(kept, None, None, None) == kept
    changed = work.with_answer_options(kept, "materialize", "0.5", "aux-strict").answer
    assert changed == AnswerSettings(attention="materialize", recompute=0.5, selector="aux-strict", top_k=5)
    assert work.with_answer_options(kept, None, "0", None).answer.recompute == 0.0
    assert kept.answer.recompute == 0.3


def test_the_options_of_an_answer_reach_the_engine(
    desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[AnswerSettings] = []

    def noted(settings: Settings, _say: object) -> NoReturn:
        seen.append(settings.answer)
        raise ConfigError("enough was seen")

    monkeypatch.setattr(work, "_load_engine", noted)
    words = ("--attention", "lazy", "--recompute", "0.2", "--selector", "aux")
    assert "enough was seen" in desk.run(capsys, "ask", "why?", *words).err
    assert seen == [AnswerSettings(attention="lazy", recompute=0.2, selector="aux")]


def test_the_share_that_was_recomputed_is_told() -> None:
    plain = Timings((Stage("prefill", 0.1),), 700)
    recomputed = Timings((Stage("choose", 0.02), Stage("prefill", 0.1)), 700, recompute_ratio=0.2)
    lines = [output.footer(answer_with(timings)) for timings in (plain, recomputed)]
    assert "recomputed" not in lines[0]
    assert "20% of the passages' tokens recomputed" in lines[1]
    shares = [output.answer_json(answer_with(timings))["recompute_ratio"] for timings in (plain, recomputed)]
    assert shares == [0.0, 0.2]


def answer_with(timings: Timings) -> Answer:
    return Answer("q", "a", True, (), (), (), timings, 2, 0, AnswerMode.CACHED, "embedded", "a")


def test_search_by_words_and_by_meaning(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    words = json.loads(desk.run(capsys, "search", "treasurer", "--words", "--json").out)["results"]
    assert [Path(result["path"]).name for result in words] == ["club.txt"]
    assert words[0]["vector_rank"] is None
    meaning = json.loads(desk.run(capsys, "search", "heating guarantee", "--json").out)["results"]
    assert Path(meaning[0]["path"]).name == "boiler.md"


def test_status_why_and_verify_tell_what_happened(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    status = json.loads(desk.run(capsys, "status", "--json").out)
    assert status["failed"] == 1 and status["files"] >= 2 and status["kv_bytes"] > 0
    assert status["unreadable"][0]["path"].endswith("broken.pdf")
    assert "failed" in desk.run(capsys, "why", str(desk.documents / "broken.pdf")).out
    assert "indexed; 1 chunk" in desk.run(capsys, "why", str(desk.documents / "club.txt")).out
    assert "left out" in desk.run(capsys, "why", str(desk.documents / "photo.jpg")).out
    checked = desk.run(capsys, "verify", "--json")
    assert checked.code == 0 and json.loads(checked.out)["clean"] is True


def test_verify_finds_a_damaged_byte_and_repairs(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    file = next(desk.data.glob("kv/*/*/*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    outcome = desk.run(capsys, "verify")
    assert outcome.code == 4 and "wrong: " in outcome.out
    assert desk.run(capsys, "verify", "--repair").code == 0
    assert desk.run(capsys, "verify").code == 0
    mended = desk.run(capsys, "index", str(desk.documents), "--json")
    assert json.loads(mended.out)["warm"] == 1


def test_doctor_finds_nothing_broken(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    looked = desk.run(capsys, "doctor", "--json")
    report = json.loads(looked.out)
    assert looked.code == 0 and report["ok"] is True
    assert {"torch", "model", "embedder", "word search", "index"} <= {finding["name"] for finding in report["findings"]}
    assert "hnswlib" not in looked.out and "FTS5" not in looked.out, "names of parts, which say nothing to people"
    assert all(finding["remedy"] for finding in report["findings"] if finding["verdict"] != "ok")
    guide = (ROOT / "assets" / "guides" / "json.md").read_text(encoding="utf-8")
    keys = {key for finding in report["findings"] for key in finding}
    assert "mean_kl_nats" in keys and all(f"`{key}`" in guide for key in keys)


def test_purge_asks_first_and_leaves_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents, data = tmp_path / "documents", tmp_path / "data"
    documents.mkdir()
    secret = documents / "quartermaster.txt"  # a name with "secret" in it would not be read
    secret.write_text("The quartermaster hides zanzibarbarossa beneath the staircase.\n", encoding="utf-8")
    where = ("--data-dir", str(data))
    assert run(capsys, "index", str(documents), "--no-kv", *where).code == 0
    refused = run(capsys, "purge", str(documents), *where)
    assert refused.code == 2 and "--yes" in refused.err
    purged = run(capsys, "purge", str(documents), "--yes", "--verify", *where)
    assert purged.code == 0 and "no trace" in purged.out
    assert secret.is_file(), "the user's own file must stay"
    assert not any(b"zanzibarbarossa" in file.read_bytes() for file in data.rglob("*") if file.is_file())
    assert run(capsys, "purge", "--all", "--yes", *where).code == 0
    assert not data.exists()


# Files that were not read -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def partly_read(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Ran]:
    """A folder with one note and many files that cannot be read, its data directory, and what `index` printed."""
    documents = tmp_path_factory.mktemp("partly") / "documents"
    documents.mkdir()
    (documents / "club.txt").write_text(CLUB, encoding="utf-8")
    for number in range(22):
        (documents / f"photo-{number:02}.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    for name in ("old.doc", "films.zip", "setup.exe", "debug.log", ".env"):
        (documents / name).write_text("something\n", encoding="utf-8")
    (documents / "broken.pdf").write_bytes(b"%PDF-1.7\nthis is no PDF")
    (documents / ".deskragignore").write_text("*.log\n", encoding="utf-8")
    data = documents.parent / "data"
    return documents, data, child("index", str(documents), "--no-kv", "--data-dir", str(data))


def test_index_and_status_count_unread_files_by_kind(
    partly_read: tuple[Path, Path, Ran], capsys: pytest.CaptureFixture[str]
) -> None:
    documents, data, indexed = partly_read
    where = ("--data-dir", str(data))
    groups = {
        "22 images", "1 old Office or iWork file", "1 archive", "1 program", "1 by your rules",
        "1 that may hold secrets",
    }  # fmt: skip
    assert indexed.code == 3
    status = run(capsys, "status", *where).out
    for shown in (indexed.err.splitlines()[-1], next(line for line in status.splitlines() if "left out" in line)):
        counted = re.search(r"27 files left out: (.*) \(desk-rag why FOLDER lists them\)", shown)
        assert counted and set(counted[1].split(", ")) == groups and counted[1].startswith("22 images")
    report = json.loads(run(capsys, "index", str(documents), "--no-kv", "--json", *where).out)["not_read"]
    assert report["files"] == 27 and report["kinds"]["images"] == 22


def test_a_refusal_counts_every_file_that_was_not_read(
    partly_read: tuple[Path, Path, Ran], capsys: pytest.CaptureFixture[str]
) -> None:
    documents, data, _ = partly_read
    question = ("ask", "What is the atomic weight of caesium?", "--data-dir", str(data))
    answer = json.loads(run(capsys, *question, "--json").out)
    assert answer["found"] is False
    assert answer["not_read"] == {
        "files": 28,
        "kinds": {
            "images": 22, "old Office and iWork files": 1, "by your rules": 1, "that may hold secrets": 1,
            "that could not be read": 1, "archives": 1, "programs": 1,
        },
        "folders": {},
    }  # fmt: skip
    assert "(28 files not read: 22 images, " in run(capsys, *question).out
    one_file = json.loads(run(capsys, *question, "--folder", str(documents / "club.txt"), "--json").out)
    assert one_file["found"] is False and one_file["not_read"] is None
    reply = json.loads(run(capsys, "ask", "Who was elected treasurer?", "--json", "--data-dir", str(data)).out)
    assert reply["found"] is True and reply["not_read"] is None


def test_why_groups_the_files_of_a_folder_by_reason(
    partly_read: tuple[Path, Path, Ran], capsys: pytest.CaptureFixture[str]
) -> None:
    documents, data, _ = partly_read
    where = ("--data-dir", str(data))
    shown = run(capsys, "why", str(documents), *where).out.splitlines()
    begins = "22 left out: images, not a kind of file that desk-rag reads"
    first = next(number for number, line in enumerate(shown) if line.startswith(begins))
    assert 'the extra "ocr"' in shown[first], "the remedy"
    assert shown[first + 1 : first + 21] == [f"  photo-{number:02}.jpg" for number in range(20)]
    assert shown[first + 21] == "  … and 2 more; --json lists every file"
    assert shown[shown.index("1 left out: .deskragignore: *.log") + 1] == "  debug.log"
    assert len([line for line in shown if line.startswith("1 failed: ")]) == 1
    report = json.loads(run(capsys, "why", str(documents), "--json", *where).out)
    assert report["states"] == {"indexed": 1, "skipped": 27, "failed": 1}
    rows = {Path(row["path"]).name: row for row in report["files"]}
    assert len(rows) == 29 and rows["photo-21.jpg"]["state"] == "skipped" and rows["club.txt"]["chunks"] == 1
    assert "damaged" in rows["broken.pdf"]["reason"]


def test_why_of_a_missing_file_fails(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    for options in ((), ("--json",)):
        refused = desk.run(capsys, "why", str(desk.documents / "nowhere.md"), *options)
        assert refused.code == 2 and refused.out == ""
        assert "There is no file or folder" in refused.err and "nowhere.md" in refused.err


def test_ask_answers_from_one_file(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    question = ("ask", "Who was elected treasurer of the garden club?", "--folder")
    assert "Ruth" in desk.run(capsys, *question, str(desk.documents / "club.txt")).out
    elsewhere = json.loads(desk.run(capsys, *question, str(desk.documents / "house" / "boiler.md"), "--json").out)
    assert {Path(source["path"]).name for source in elsewhere["sources"]} == {"boiler.md"}
    refused = desk.run(capsys, *question, str(desk.documents / "photo.jpg"))
    assert refused.code == 1 and "photo.jpg is not indexed" in refused.err
    assert f"desk-rag why {desk.documents / 'photo.jpg'} says whether the file can be read" in refused.err


def test_internal_error_asks_for_a_report(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(settings: Settings, *, as_json: bool) -> int:
        raise ZeroDivisionError("a slip")

    monkeypatch.setattr("desk_rag.cli.store.status", broken)
    monkeypatch.setenv("DESK_RAG_TRACEBACK", "0")
    ran = run(capsys, "status")
    assert ran.code == 1 and ran.out == ""
    assert "Internal error: ZeroDivisionError: a slip" in ran.err
    assert "bug in desk-rag" in ran.err and "DESK_RAG_TRACEBACK=1" in ran.err and "Traceback" not in ran.err


# Bad input ----------------------------------------------------------------------------------------------------------


def test_unknown_setting_names_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[answer]\ntopk = 3\n", encoding="utf-8")
    refused = run(capsys, "--config", str(file), "status")
    assert refused.code == 2
    assert "did you mean 'top_k'" in refused.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["index", "/no/such/folder"], 2, "There is no folder /no/such/folder"),
        (["index"], 2, "Name a folder."),
        (["watch", __file__], 2, "is a file, not a folder"),
        (["ask", "why?", "--top-k", "0"], 2, "--top-k"),
        (["ask", "why?", "--top-k", "65"], 2, "--top-k"),
        (["ask", "why?", "--top-k", "three"], 2, "--top-k"),
        (["search", " "], 2, "The query is empty"),
        (["idnex"], 2, "Did you mean: desk-rag index"),
        (["--model"], 2, "desk-rag: --model needs a value"),
        (["ask", "why?", "--rungs"], 2, "desk-rag: --rungs needs a value"),
        (["--embedder", "--device", "cpu", "status"], 2, "desk-rag: --embedder needs a value"),
        (["watch"], 2, "desk-rag: No folder to watch"),
        (["ask", "why?", "--mode", "magic"], 2, "magic"),
        (["ask", "  "], 2, "The question is empty"),
        (["ask", "why?", "--recompute", "1.5"], 2, "'1.5' is no share"),
        (["ask", "why?", "--recompute", "some"], 2, "Give a number from 0 to 1."),
        (["ask", "why?", "--selector", "luck"], 2, "Known: aux"),
        (["ask", "why?", "--attention", "magic"], 2, "magic"),
        ([".", "--recompute", "-1"], 2, "'-1' is no share"),
        (["ask", "why?", "--adapter", "/no/such/adapter"], 5, "/no/such/adapter is no adapter"),
        (["finetune", "--out", "x"], 2, "No training data is named"),
        (["finetune", "--data", "/no/such.jsonl", "--out", "x"], 2, "/no/such.jsonl cannot be read"),
        (["verify", "--subset", "8/7"], 2, "not a part"),
        (["purge"], 2, "Name a folder to purge, or use --all."),
        (["bench", "nothing"], 2, "no benchmark"),
        (["--config", "/no/such/file", "status"], 2, "No settings file"),
        (["ask", "why?", "--model", "org/absent"], 5, "--download"),
        (["ask", "why?", "--model", "/no/such/model"], 5, "neither a model directory"),
    ],
)
def test_a_wrong_word_gets_a_message_a_remedy_and_a_code(
    words: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = run(capsys, "--data-dir", str(tmp_path / "data"), *words)
    assert ran.code == code
    assert message in ran.err
    assert "Traceback" not in ran.err and ran.out == ""


def test_device_without_a_gpu(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    refused = desk.run(capsys, "ask", "Who?", "--device", "cuda")
    assert refused.code == 2 and "--device cpu" in refused.err


def test_finetune_has_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "finetune", "--help")
    assert shown.code == 0 and "--lora RANK" in shown.out and "--data FILE" in shown.out
    assert run(capsys, "finetune", "--no-such-option").code == 2
    assert "finetune" in run(capsys, "--help").out


def test_bench_help_lists_what_can_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "bench", "--help")
    assert shown.code == 0 and "\n  ttft         Time to first token and first text: " in shown.out
    assert {"load", "llama-cpp", "quality"} <= set(benchmarks())
    assert "clock" not in benchmarks(), "a module without main(argv) is none"


def test_data_directory_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    occupied = tmp_path / "occupied"
    occupied.write_text("mine\n", encoding="utf-8")
    refused = run(capsys, "ask", "Anything?", "--data-dir", str(occupied))
    assert refused.code == 4 and "occupied cannot be used" in refused.err and "data_dir" in refused.err
    assert occupied.read_text(encoding="utf-8") == "mine\n"


def test_every_kind_of_bad_file_has_its_reason_and_the_rest_goes_on(tmp_path: Path) -> None:
    from pypdf import PdfWriter

    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "club.txt").write_text(CLUB, encoding="utf-8")
    (documents / "empty.txt").touch()
    (documents / "noise.md").write_bytes(bytes(range(256)) * 8)
    (documents / "noise.docx").write_bytes(bytes(range(256)))
    (documents / "cut.pdf").write_bytes(b"%PDF-1.7\ncut")
    for name, password in (("scan.pdf", ""), ("secret.pdf", "open sesame")):
        writer = PdfWriter()
        writer.add_blank_page(200, 200)
        if password:
            writer.encrypt(password, algorithm="RC4-128")
        writer.write(documents / name)
    indexed = child("index", str(documents), "--no-kv", "--data-dir", str(tmp_path / "data"))
    assert indexed.code == 3
    said = {line.split(":")[1].strip(): line for line in indexed.err.splitlines() if "  not read: " in line}
    assert set(said) == {"noise.md", "noise.docx", "cut.pdf", "scan.pdf", "secret.pdf"}
    assert "binary" in said["noise.md"] and "not a docx" in said["noise.docx"] and "damaged" in said["cut.pdf"]
    assert "no text layer" in said["scan.pdf"] and "password" in said["secret.pdf"]
    assert "1 file read (1 chunk), 5 could not be read" in indexed.err
    assert "\n1 file left out: 1 empty (desk-rag why FOLDER lists it).\n" in indexed.err
    assert "Traceback" not in indexed.err


def test_empty_folder_is_said_to_be_empty(desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    where = ("--data-dir", str(tmp_path / "data"))
    indexed = run(capsys, "index", str(empty), "--no-kv", *where)
    assert indexed.code == 0 and "holds no files" in indexed.err
    answer = desk.run(capsys, "ask", "Anything?", "--folder", str(empty))
    assert answer.code == 1 and "nothing indexed" in answer.err


def _ordinary_user(locked: Path) -> list[str]:
    """The words before a command that may not open `locked`, also if these tests run as root."""
    if not os.access(locked, os.R_OK):
        return []
    if not shutil.which("setpriv"):
        pytest.skip("this user may read everything")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner", "--inh-caps=-all"]


def test_unreadable_file_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    documents = tmp_path / "documents"
    documents.mkdir()
    locked = documents / "locked.md"
    locked.write_text("# Locked\n", encoding="utf-8")
    locked.chmod(0)
    ordinary = _ordinary_user(locked)
    (documents / "club.txt").write_text(CLUB, encoding="utf-8")
    where = ("--data-dir", str(tmp_path / "data"))
    indexed = child("index", str(documents), "--no-kv", *where, before=ordinary)
    assert indexed.code == 3
    assert "locked.md: could not be read: Permission denied" in indexed.err and "1 file read" in indexed.err
    report = child("why", str(locked), *where, before=ordinary)
    assert report.code == 0 and "Permission denied" in report.out
    planned = child("index", str(documents), "--dry-run", *where, before=ordinary)
    assert "0 to be read + 1 unchanged" in planned.out and "1 left out" in planned.out, planned.out


def test_what_a_locked_folder_holds_is_said_to_be_hidden(tmp_path: Path) -> None:
    private = tmp_path / "documents" / "private"
    private.mkdir(parents=True)
    (private / "key.txt").write_text("The key is in the drawer.\n", encoding="utf-8")
    (tmp_path / "documents" / "club.txt").write_text(CLUB, encoding="utf-8")
    private.chmod(0)
    ordinary = _ordinary_user(private)
    where = ("--data-dir", str(tmp_path / "data"))
    try:
        child("index", str(tmp_path / "documents"), "--no-kv", *where, before=ordinary)
        status = child("status", *where, before=ordinary)
        assert "private: permission denied" in status.out, status.out
        report = child("why", str(private / "key.txt"), *where, before=ordinary)
        assert report.code == 0 and "the folder private may not be opened" in report.out, report.out + report.err
    finally:
        private.chmod(0o700)


def test_unreadable_root_is_refused(tmp_path: Path) -> None:
    documents = tmp_path / "documents"
    documents.mkdir()
    documents.chmod(0)
    ordinary = _ordinary_user(documents)
    where = ("--data-dir", str(tmp_path / "data"))
    refused = child("index", str(documents), "--no-kv", *where, before=ordinary)
    documents.chmod(0o700)
    assert refused.code in (2, 3) and "cannot be listed" in refused.err and "permissions" in refused.err


def test_model_without_weights(tmp_path: Path, desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    refused = desk.run(capsys, "index", str(desk.documents), "--model", str(tmp_path))
    assert refused.code == 5
    assert "no safetensors weights" in refused.err and "Download" in refused.err


def test_model_without_rope(tmp_path: Path, desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    from tests.models import VOCABULARY, byte_tokenizer

    config = GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=VOCABULARY, n_positions=128)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    refused = desk.run(capsys, "ask", "Who was elected?", "--model", str(tmp_path))
    assert refused.code == 5
    assert "gpt2" in refused.err and "no RoPE" in refused.err and "desk-rag help models" in refused.err


def test_quantization_without_a_gpu(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    refused = desk.run(capsys, "ask", "Who?", "--quantization", "nf4")
    assert refused.code == 2 and "NVIDIA" in refused.err


def test_second_writer_is_told_who_writes(
    desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from desk_rag.cli import store_access
    from desk_rag.config import StoreSettings
    from desk_rag.store.store import Store

    monkeypatch.setattr(store_access, "LOCK_SECONDS", 0.3)  # for which it waits for a command that ends soon
    with Store.open(desk.data, StoreSettings(), writer=True):
        refused = desk.run(capsys, "index", str(desk.documents), "--no-kv")
        assert refused.code == 4 and str(os.getpid()) in refused.err
        assert desk.run(capsys, "ask", "Who was elected treasurer?").code == 0, "answering needs no lock"


# The terminal -------------------------------------------------------------------------------------------------------


def test_a_pipe_gets_no_escape_sequence(desk: Desk, tmp_path: Path) -> None:
    hostile = tmp_path / "evil\x1b]0;title\x07.txt"
    hostile.write_text("The \x1b[31mred\x1b[0m lantern\x1b]52;c;Zm9v\x07 hangs in the hall.\n", encoding="utf-8")
    where = ("--data-dir", str(desk.data), "--folder", str(tmp_path))
    answer = child("ask", "Where does the lantern hang?", *where)
    hits = child("search", "lantern", "--words", *where)
    assert answer.code == 0 and "hall" in answer.out
    assert "red lantern" in hits.out and "evil" in hits.out
    assert not {"\x1b", "\x07", "\r"} & set(answer.out + answer.err + hits.out + hits.err)


@pytest.mark.parametrize(
    "words", [("status", "--json"), ("search", "treasurer", "--words"), ("--help",), ("ask", "--help")]
)
def test_a_reader_that_leaves_is_no_fault(desk: Desk, words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "desk_rag", "--data-dir", str(desk.data), *words]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [("status",), ("help",), ("search", "treasurer", "--words", "--json")])
def test_an_output_without_room_is_not_taken_for_a_full_drive_of_ours(desk: Desk, words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "desk_rag", "--data-dir", str(desk.data), *words]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command, cwd=ROOT, env=buffered, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == 1 and "The output could not be written" in done.stderr
    assert "purge" not in done.stderr and "Traceback" not in done.stderr


def test_interrupt_ends_with_130_and_loses_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a process of its own and once it has said something: where a signal falls is not left to chance."""
    data, documents = tmp_path / "data", tmp_path / "documents"
    documents.mkdir()
    for number in range(40):
        (documents / f"{number}.md").write_text(f"# Note {number}\n\nThe key of room {number} hangs on a hook.\n")
    command = [sys.executable, "-m", "desk_rag", "index", str(documents), "--data-dir", str(data)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    first = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in first + rest
    after = run(capsys, "index", str(documents), "--no-kv", "--data-dir", str(data))
    assert after.code == 0
    report = json.loads(run(capsys, "status", "--json", "--data-dir", str(data)).out)
    assert report["files"] == 40


def test_without_a_terminal_the_ui_says_so(desk: Desk) -> None:
    refused = child(str(desk.documents), "--data-dir", str(desk.data))
    assert refused.code == 2 and "needs a terminal" in refused.err


def test_a_terminal_that_cannot_draw_is_told(tmp_path: Path) -> None:
    terminal = Terminal(["-m", "desk_rag", str(tmp_path), "--data-dir", str(tmp_path)], env={"TERM": "dumb"})
    try:
        assert terminal.wait() == 2
        assert b"This terminal (TERM=dumb) cannot show the UI." in terminal.raw and b"\x1b[?1049h" not in terminal.raw
    finally:
        terminal.close()


# Arguments and figures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ([], ["open"]),
        (["--model", "x"], ["--model", "x", "open"]),
        (["status", "--data-dir", "d"], ["--data-dir", "d", "status"]),
        (["ask", "why?", "--model=x", "--json"], ["--model=x", "ask", "why?", "--json"]),
        (["bench", "ttft", "--model", "x"], ["bench", "ttft", "--model", "x"]),
        (["ask", "why?", "--adapter", "a"], ["--adapter", "a", "ask", "why?"]),
        (["finetune", "--data", "d", "--model", "m"], ["--model", "m", "finetune", "--data", "d"]),
        ([".", "--recompute", "0.5"], ["open", ".", "--recompute", "0.5"]),
        (["ask", "--", "--model"], ["ask", "--", "--model"]),
        (["--help"], ["--help"]),
        (["."], ["open", "."]),
    ],
)
def test_global_options_may_stand_anywhere(typed: list[str], meant: list[str]) -> None:
    assert main.route(typed) == meant


def test_mistyped_command_is_not_taken_for_a_folder() -> None:
    with pytest.raises(ConfigError, match="'stauts' is not a command or a folder"):
        main.route(["stauts"])


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.19, "0.19 s"), (59.6, "1 min 0 s"), (80, "1 min 20 s"), (18720, "5 h 12 min")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert output.duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 1024**3, "3.0 GiB")])
def test_sizes_read_well(count: int, text: str) -> None:
    assert output.size(count) == text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("ask", "x", "--mode", "turbo"), "--mode cannot be 'turbo'. It may be one of: cached, full."),
        (("ask", "x", "--top-k", "0"), "--top-k must be at least 1."),
        (("ask", "x", "--top-k", "many"), "--top-k must be a whole number."),
        (("ask", "x", "--device", "gpu"), "--device cannot be 'gpu'. It may be one of: auto, cpu, cuda."),
        (("ask", "--mode"), "--mode needs a value."),
        (("models", "eat"), "ACTION cannot be 'eat'. It may be one of: list, fit, use, download."),
        (("status", "--jsno"), "desk-rag status has no option --jsno.\n  Did you mean --json?"),
        (("why",), "desk-rag why needs a FILE."),
        (("why", "a", "b"), "desk-rag why does not know what to do with 'b'."),
        (("search", "x", "--limit", "5000"), "--limit must be at most 1000."),
    ],
)
def test_wrong_arguments_are_told_with_what_is_possible(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    ran = run(capsys, *words)
    assert (ran.code, ran.out) == (2, "") and ran.err.startswith(f"desk-rag: {told}"), ran.err
    assert "--help` lists what it takes." in ran.err and "Value error" not in ran.err and "Usage:" not in ran.err
