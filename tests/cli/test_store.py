"""The commands about the store: verify, purge, status, doctor."""

from __future__ import annotations

import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest

from desk_rag.cli import doctor
from desk_rag.cli.checks import data_directory as stored
from desk_rag.cli.checks.finding import Finding
from desk_rag.cli.main import main
from desk_rag.config import Settings, StoreSettings
from desk_rag.errors import CatalogLost, full_disk
from desk_rag.store.ownership import stamp_of
from desk_rag.store.store import Store

ROOT = Path(__file__).resolve().parent.parent.parent
CANARY = "quixotryzanzibar"
TRACES = (CANARY.encode(), CANARY[2:14].encode(), b"Marmaduke Featherstonehaugh")
PROMISE = f"Marmaduke Featherstonehaugh keeps the {CANARY} in the cellar.\n"


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Desk:
    documents: Path
    data: Path

    def run(self, *words: str) -> Ran:
        """One command, in this process."""
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main([*words, "--data-dir", str(self.data)])
        return Ran(code, out.getvalue(), err.getvalue())

    def json(self, *words: str) -> dict[str, object]:
        ran = self.run(*words, "--json")
        assert ran.code == 0, ran.err
        return dict(json.loads(ran.out))

    def files_with(self, needle: bytes) -> list[str]:
        """Every file of the data directory that holds it: catalog, its log, index files, KV, records, logs."""
        files = [path for path in self.data.rglob("*") if path.is_file()]
        return [str(path.relative_to(self.data)) for path in files if needle in path.read_bytes()]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    place = tmp_path_factory.mktemp("desk")
    desk = Desk(place / "documents", place / "data")
    for folder in ("secret", "open"):
        (desk.documents / folder).mkdir(parents=True)
    (desk.documents / "secret" / "kept.txt").write_text(PROMISE, encoding="utf-8")
    (desk.documents / "secret" / "gone.txt").write_text(PROMISE.replace("cellar", "attic"), encoding="utf-8")
    for number in range(5):
        text = f"Minutes of meeting {number}. The treasurer of the garden club reported a balance of {number}00 euros. "
        text += " ".join(f"Item {item} was put off until day {item + number} of the month." for item in range(9))
        (desk.documents / "open" / f"{number}.txt").write_text(text, encoding="utf-8")
    (desk.documents / "open" / "blank.txt").write_text(" \n\t\n", encoding="utf-8")
    (desk.documents / "open" / "outside.txt").symlink_to("/etc/passwd")
    (desk.documents / "open" / "inside.txt").symlink_to(desk.documents / "open" / "0.txt")
    indexed = desk.run("index", str(desk.documents))
    assert indexed.code == 0, indexed.err
    assert "The chunk caches would take about" in indexed.err and "all of them fit" in indexed.err
    assert "7 chunks made warm" in indexed.err
    return desk


def test_the_seven_sevenths_are_the_whole(desk: Desk) -> None:
    whole = desk.json("verify")
    parts = [desk.json("verify", "--subset", f"{part}/7") for part in range(1, 8)]
    assert whole["clean"] is True and all(part["clean"] for part in parts)
    assert sum(int(str(part["kv_files"])) for part in parts) == whole["kv_files"] == 7
    assert desk.run("verify", "--subset", "8/7").code == 2


def test_a_flipped_byte_is_found_by_its_seventh_and_by_no_other(desk: Desk) -> None:
    file = sorted(desk.data.glob("kv/*/*/*.safetensors"))[0]
    sound = file.read_bytes()
    file.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    codes = [desk.run("verify", "--subset", f"{part}/7").code for part in range(1, 8)]
    assert sorted(codes) == [0] * 6 + [4]
    file.write_bytes(sound)
    assert desk.run("verify").code == 0


@pytest.mark.slow
def test_doctor_tells_quality_break_even_room_and_what_was_mended(desk: Desk) -> None:
    def findings(*words: str) -> dict[str, dict[str, str]]:
        report = desk.json("doctor", *words)["findings"]
        return {finding["name"]: finding for finding in report}  # type: ignore[attr-defined]

    listed = findings()
    quality = listed["cache quality"]
    assert quality["verdict"] == "ok" and quality["coding"] == "int8*10"
    assert quality["detail"].startswith("embedded: answers from caches do not differ noticeably from those without.")
    assert quality["detail"].endswith("4 of 4 hidden codes found")
    assert float(quality["key_error"]) < 1e-6 and 0 < float(quality["mean_kl_nats"]) < 1e-3
    saved = listed["time saved"]["detail"]
    assert "times sooner (" in saved and " days" in saved
    assert "7 of them warm" in listed["index"]["detail"]
    assert listed["disk"]["verdict"] == "ok" and "may take 20.0 GiB" in listed["disk"]["detail"]
    assert "store" not in listed

    victim = sorted(desk.data.glob("kv/*/*/*.safetensors"))[-1]
    victim.unlink()
    assert desk.run("index", str(desk.documents), "--no-kv").code == 0  # a writer: opening mends
    noted = findings()
    assert noted["store"]["verdict"] == "warn" and "1 row without a file was removed." in noted["store"]["detail"]
    assert "all of them fit" in noted["index"]["detail"], "what is still to be made is foretold"
    planned = desk.json("status")
    assert int(str(planned["planned_bytes"])) > int(str(planned["kv_bytes"]))
    assert "planned " in desk.run("status").out
    assert desk.run("verify", "--repair").code == 0
    assert "store" not in findings()
    assert desk.json("index", str(desk.documents))["warm"] == 1


def verdicts(data: Path) -> list[tuple[str, str, str]]:
    """Name, verdict and detail of every finding about the data directory."""
    settings = Settings(data_dir=data)
    checks = (stored.data_dir, stored.index, stored.chats)
    findings = [finding for check in checks for finding in as_list(check(settings))]
    return [(finding.name, finding.verdict.value, finding.detail) for finding in findings]


def as_list(found: Finding | list[Finding]) -> list[Finding]:
    return found if isinstance(found, list) else [found]


def test_no_green_mark_stands_over_a_fault(tmp_path: Path) -> None:
    documents, data = tmp_path / "documents", tmp_path / "data"
    documents.mkdir()
    for number in range(8):
        (documents / f"{number}.txt").write_text(f"Lamp {number} costs {number} euros.\n", encoding="utf-8")

    def run(*words: str) -> int:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            return main([*words, "--data-dir", str(data)])

    assert run("index", str(documents), "--no-kv") == 0
    assert {verdict for _, verdict, _ in verdicts(data)} == {"ok"}

    (data / "chats.sqlite").write_bytes(b"no database" * 100)
    assert ("chats", "warn") in [row[:2] for row in verdicts(data)]
    (data / "chats.sqlite").unlink()

    for file in documents.iterdir():
        if file.name != "7.txt":
            file.unlink()
    assert run("index", str(documents), "--no-kv") == 0
    (waiting,) = [row for row in verdicts(data) if row[0] == "folders"]
    assert waiting[1] == "warn" and "the files of 7 documents are gone" in waiting[2]

    documents.rename(tmp_path / "elsewhere")
    away = [detail for name, verdict, detail in verdicts(data) if (name, verdict) == ("folders", "warn")]
    assert any("8 documents are kept" in detail for detail in away), away

    with Store.open(data, StoreSettings(), writer=True) as store:
        store.begin_run(documents, "the disk is full")
    cut_off = [row for row in verdicts(data) if row[0] == "index"]
    assert {verdict for _, verdict, _ in cut_off} == {"warn"} and "the disk is full" in cut_off[1][2]

    (data / "catalog.sqlite").unlink()
    with pytest.raises(CatalogLost):
        verdicts(data)
    assert run("doctor") == 1


def test_a_data_directory_that_cannot_be_used_is_no_ok(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"not ours")
    assert verdicts(tmp_path)[0][1] == "fail" and "photo.jpg" in verdicts(tmp_path)[0][2]
    assert verdicts(tmp_path / "photo.jpg")[0][:2] == ("data", "fail")
    assert verdicts(tmp_path / "new")[0][:2] == ("data", "ok")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('[ui.keys]\ncompare = "ctrl+i"', "ui.keys: 'compare' cannot have the key Ctrl+I"),
        ('[index]\nexclude = ["notes/", "a**b*c*d*e"]', "1 of its patterns not obeyed (malformed or too complex)"),
    ],
)
def test_doctor_finds_settings_that_only_the_ui_or_the_indexer_would_meet(
    desk: Desk, tmp_path: Path, line: str, message: str
) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(f"{line}\n")
    looked = desk.run("doctor", "--config", str(settings))
    assert looked.code == 1 and message in looked.out, looked.out


def test_doctor_looks_at_the_adapter(desk: Desk, tmp_path: Path) -> None:
    looked = desk.run("doctor", "--json", "--adapter", str(tmp_path))
    (finding,) = [f for f in json.loads(looked.out)["findings"] if f["name"] == "adapter"]
    assert looked.code == 1 and finding["verdict"] == "fail" and "is no adapter" in finding["detail"]


def test_pinning_what_is_not_there_is_refused_unless_it_is_known(desk: Desk, tmp_path: Path) -> None:
    refused = desk.run("pin", str(tmp_path / "nowhere"))
    assert refused.code == 2 and "There is nothing at" in refused.err and "desk-rag status" in refused.err
    assert desk.run("pin", str(tmp_path / "nowhere"), "--remove").code == 2
    assert desk.json("status")["pinned"] == []
    drive = tmp_path / "drive"
    drive.mkdir()
    assert desk.run("pin", str(drive)).code == 0
    drive.rmdir()  # pinned while empty, then unplugged
    assert desk.json("status")["pinned"] == [str(drive.resolve())]
    assert desk.run("pin", str(drive), "--remove").code == 0
    assert desk.json("status")["pinned"] == []
    away = desk.documents / "away"
    (desk.documents / "open").rename(away)
    try:
        assert desk.run("pin", str(desk.documents / "open")).code == 0, "its documents are known"
        assert desk.run("pin", str(desk.documents / "open"), "--remove").code == 0
    finally:
        away.rename(desk.documents / "open")


def test_why_looks_at_a_link_and_not_at_what_it_points_to(desk: Desk) -> None:
    def told(path: Path) -> tuple[object, object]:
        verdict = desk.json("why", str(path))
        assert verdict["path"] == str(path.parent.resolve() / path.name)
        return verdict["state"], verdict["reason"]

    assert told(desk.documents / "open" / "outside.txt") == ("left out", "link to a file outside the folder")
    assert told(desk.documents / "open" / "inside.txt")[0] == "indexed"
    assert told(desk.documents / "open" / "blank.txt") == ("left out", "empty")
    by_way = desk.documents.parent / "by_way"
    by_way.symlink_to(desk.documents)
    verdict = desk.json("why", str(by_way / "open" / "outside.txt"))
    assert verdict["path"] == str(desk.documents / "open" / "outside.txt") and verdict["state"] == "left out"
    assert desk.json("why", str(by_way))["path"] == str(desk.documents)
    by_way.unlink()


def test_a_directory_of_other_files_is_never_a_store(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "one", tmp_path / "precious")
    (desk.data / "kv").mkdir(parents=True)
    desk.documents.mkdir()
    (desk.documents / "a.txt").write_text("The moth likes cedar.", encoding="utf-8")
    (desk.data / "kv" / "x").write_text("mine", encoding="utf-8")
    refused = desk.run("index", "--no-kv", str(desk.documents))
    assert refused.code == 4 and str(desk.data) in refused.err and "to an empty or new directory" in refused.err
    for command in (("status",), ("purge", "--all", "--yes")):
        ran = desk.run(*command)
        assert ran.code == 0 and "holds no index" in ran.out and "empty" not in ran.out
    assert (desk.data / "kv" / "x").read_text(encoding="utf-8") == "mine"
    assert [path.name for path in desk.data.rglob("*")] == ["kv", "x"]


def test_purging_everything_leaves_what_is_not_ours(tmp_path: Path) -> None:
    from desk_rag.config import StoreSettings
    from desk_rag.store.store import Store

    desk = Desk(tmp_path, tmp_path / "data")
    Store.open(desk.data, StoreSettings(), writer=True).close()
    (desk.data / "a.txt").write_text("hi", encoding="utf-8")
    report = desk.json("purge", "--all", "--yes")
    assert report["left"] == [str(desk.data / "a.txt")] and [p.name for p in desk.data.iterdir()] == ["a.txt"]
    assert "holds no index" in desk.run("purge", "--all", "--yes").out
    Store.open(tmp_path / "other", StoreSettings(), writer=True).close()
    ran = Desk(tmp_path, tmp_path / "other").run("purge", "--all", "--yes")
    assert ran.code == 0 and ran.out.startswith(f"Deleted {tmp_path / 'other'} (") and not (tmp_path / "other").exists()


def test_pinning_nothing_makes_no_store(tmp_path: Path) -> None:
    refused = Desk(tmp_path, tmp_path / "data").run("pin", str(tmp_path / "nowhere"))
    assert refused.code == 2 and not (tmp_path / "data").exists()


def test_a_drive_with_less_than_the_reserve_is_warned_of_beforehand(desk: Desk, tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text("[store]\nreserve_gib = 100000.0\n", encoding="utf-8")
    before = sorted(desk.data.glob("kv/*/*/*.safetensors"))
    disk = next(f for f in desk.json("doctor", "--config", str(settings))["findings"] if f["name"] == "disk")  # type: ignore[attr-defined]
    assert disk["verdict"] == "warn" and "may take 0 B of 20.0 GiB" in disk["detail"]
    assert "will be given up at the next start" in disk["detail"]
    assert "Free " in disk["remedy"] and "reserve_gib" in disk["remedy"]
    assert sorted(desk.data.glob("kv/*/*/*.safetensors")) == before, "looking changes nothing"


def test_a_deleted_file_and_a_purged_folder_leave_no_trace_in_any_file(desk: Desk) -> None:
    assert all(desk.files_with(needle) for needle in TRACES), "the search itself works"
    (desk.documents / "secret" / "gone.txt").unlink()
    assert desk.json("index", str(desk.documents))["removed"] == 1
    assert desk.files_with(b"attic") == []
    assert desk.files_with(CANARY.encode()), "the other document still says it"
    aside = desk.data / "quarantine" / "catalog.1.sqlite"
    aside.write_bytes(PROMISE.encode())
    aside.rename(aside.with_name(f"catalog.1.{stamp_of(aside.stat())}.sqlite"))  # as a damaged catalog is put aside
    report = desk.run("purge", str(desk.documents / "secret"), "--yes", "--verify")
    assert report.code == 0 and "no trace" in report.out, report.out
    for needle in TRACES:
        assert desk.files_with(needle) == []
    assert (desk.documents / "secret" / "kept.txt").read_text(encoding="utf-8") == PROMISE
    assert desk.json("verify")["kv_files"] == 5
    assert len(sorted(desk.data.glob("kv/*/*/*.safetensors"))) == 5


def test_a_lost_catalog_is_not_called_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents, data = tmp_path / "documents", tmp_path / "data"
    documents.mkdir()
    (documents / "a.txt").write_text(PROMISE, encoding="utf-8")
    here = ("--data-dir", str(data))
    assert main(["index", "--no-kv", str(documents), *here]) == 0
    for lose in (lambda path: path.write_bytes(b""), Path.unlink):
        lose(data / "catalog.sqlite")
        for command in (
            *(("status",), ("search", "cellar", "--words"), ("ask", "What is in the cellar?")),
            *(("verify",), ("verify", "--repair")),
        ):
            capsys.readouterr()
            code = main([*command, *here])
            said = capsys.readouterr().err
            assert (code, "is lost" in said, "desk-rag index FOLDER" in said) == (4, True, True), said
    capsys.readouterr()
    assert main(["index", "--no-kv", str(documents), *here]) == 0
    assert main(["search", "cellar", "--words", *here]) == 0


def test_a_catalog_that_cannot_be_read_is_repaired_by_beginning_it_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents, data = tmp_path / "documents", tmp_path / "data"
    documents.mkdir()
    (documents / "a.txt").write_text(PROMISE, encoding="utf-8")
    here = ("--data-dir", str(data))
    assert main(["index", "--no-kv", str(documents), *here]) == 0
    content = (data / "catalog.sqlite").read_bytes()
    (data / "catalog.sqlite").write_bytes(content[: 2 * 4096] + bytes(len(content) - 2 * 4096))
    capsys.readouterr()
    assert main(["verify", *here]) == 4
    assert "is damaged" in capsys.readouterr().out
    assert main(["verify", "--repair", *here]) == 0
    assert "replaced by an empty one" in capsys.readouterr().out
    assert main(["verify", *here]) == 4
    assert "is lost" in capsys.readouterr().err
    assert main(["search", "cellar", "--words", *here]) == 4
    assert main(["index", "--no-kv", str(documents), *here]) == 0
    capsys.readouterr()
    assert main(["search", "cellar", "--words", *here]) == 0
    heard = capsys.readouterr()
    assert "a.txt" in heard.out and heard.err == ""


def test_a_run_that_a_full_disk_cut_short_is_told_with_every_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    documents, data = tmp_path / "documents", tmp_path / "data"
    documents.mkdir()
    for name in "ab":
        (documents / f"{name}.txt").write_text(f"{PROMISE} {name}", encoding="utf-8")
    here = ("--data-dir", str(data))
    real, calls = Store.put_document, 0

    def full_at_the_second(self: Store, *arguments: object) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise full_disk("catalog.sqlite")
        real(self, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put_document", full_at_the_second)
        assert main(["index", "--no-kv", str(documents), *here]) == 4
    capsys.readouterr()
    assert main(["search", "cellar", "--words", "--json", *here]) == 0
    (notice,) = json.loads(capsys.readouterr().out)["notices"]
    assert "not complete" in notice and "the disk is full" in notice and f"desk-rag index {documents}" in notice
    assert main(["index", "--no-kv", str(documents), *here]) == 0
    capsys.readouterr()
    assert main(["search", "cellar", "--words", "--json", *here]) == 0
    assert json.loads(capsys.readouterr().out)["notices"] == []


def test_a_place_that_may_not_be_used_is_one_finding_and_names_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()

    def forbidden(_settings: Settings) -> doctor.Finding:
        raise PermissionError(13, "Permission denied", str(tmp_path / "data" / "catalog.sqlite"))

    monkeypatch.setattr(stored, "data_dir", forbidden)
    findings = list(doctor.examine(Settings(data_dir=tmp_path / "data")))
    (failed,) = [finding for finding in findings if finding.verdict is doctor.Verdict.FAIL]
    assert "catalog.sqlite may not be used: Permission denied" in failed.detail
    assert f"{tmp_path / 'data'} belongs to '{tmp_path.owner()}'" in failed.remedy
    assert findings[-1].name == "watching", "the other checks were made"
