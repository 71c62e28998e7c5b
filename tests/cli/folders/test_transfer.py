"""`cache export` and `cache import`: a warm store moves to another machine; what does not fit is refused in words."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from desk_rag.answering import serving_model
from tests.cli.test_store import Desk

QUESTION = "What is the fine for camping in the Norrfell nature park?"
PAGES = {
    "walk/norrfell.md": "# Nine days in Norrfell\n\nCamping is forbidden in the whole of the Norrfell nature park, and "
    "the fine is 200 crowns. We sleep in huts.\n",
    "door.md": "# House\n\nThe kitchen door is painted green. The roofer comes on 14 May.\n",
}


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    place = tmp_path_factory.mktemp("first")
    desk = Desk(place / "documents", place / "data")
    for name, text in PAGES.items():
        (desk.documents / name).parent.mkdir(parents=True, exist_ok=True)
        (desk.documents / name).write_text(text, encoding="utf-8")
    ran = desk.run("index", str(desk.documents))
    assert ran.code == 0 and "2 chunks made warm" in ran.err, ran.err
    return desk


@pytest.fixture(scope="module")
def export(warm: Desk) -> Path:
    place = warm.data.parent / "export"
    ran = warm.run("cache", "export", str(place))
    assert ran.code == 0, ran.err
    assert "2 caches (" in ran.err and "the text of 2 chunks" in ran.err, "the size is told first"
    assert "Copied 2 caches" in ran.out
    return place


def _asked(desk: Desk) -> dict[str, object]:
    return desk.json("ask", "--private", QUESTION)


def test_a_question_is_answered_warm_and_in_the_same_words_on_another_machine(
    warm: Desk, export: Path, tmp_path: Path
) -> None:
    other = Desk(tmp_path / "papers", tmp_path / "data")
    shutil.copytree(warm.documents, other.documents)
    taken = other.json("cache", "import", str(export), "--as", f"{warm.documents}={other.documents}")
    assert (taken["documents"], taken["caches"], taken["warm"], taken["all_chunks"]) == (2, 2, 2, 2)
    before, after = _asked(warm), _asked(other)
    assert (after["warm_chunks"], after["cold_chunks"]) == (2, 0)
    for name in ("answer", "found", "warm_chunks", "loaded_bytes", "context_tokens"):
        assert before[name] == after[name], name
    assert before["answer"] == "200 crowns"
    paths = [str(source["path"]) for source in after["sources"]]  # type: ignore[attr-defined]
    assert all(path.startswith(str(other.documents)) for path in paths)
    assert "0 to be read + 2 unchanged" in other.run("index", "--dry-run", str(other.documents)).out
    assert [folder["path"] for folder in other.json("ls")["folders"]] == [str(other.documents)]  # type: ignore[attr-defined]


def test_an_export_of_another_model_is_refused_in_words(warm: Desk, export: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "export"
    shutil.copytree(export, foreign)
    (record_file,) = (foreign / "models").glob("*.safetensors")
    record = serving_model._read(record_file)
    assert record is not None

    def refused() -> str:
        ran = warm.run("cache", "import", str(foreign))
        assert ran.code == 4 and "does not fit this machine's model" in ran.err
        return ran.err

    probe = type(record.probe)(record.probe.keys * 1.5, record.probe.values)
    serving_model._write(record_file, replace(record, probe=probe))
    assert "computes other numbers with 'embedded'" in refused()
    record_file.rename(record_file.with_name(f"{'a' * 32}.safetensors"))
    assert "made by 'embedded'; the model here is 'embedded', or differs" in refused()


def test_a_directory_with_something_else_is_no_place_for_an_export(warm: Desk, tmp_path: Path) -> None:
    def refused(place: Path) -> str:
        before = sorted(tmp_path.rglob("*"))
        ran = warm.run("cache", "export", str(place))
        assert ran.code == 2 and sorted(tmp_path.rglob("*")) == before
        return ran.err

    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "letter.txt").write_text("mine", encoding="utf-8")
    assert "holds other files, such as 'letter.txt'" in refused(precious)
    assert "is not a directory" in refused(precious / "letter.txt")
    assert "must lie apart" in refused(warm.data)
    assert "must lie apart" in refused(warm.data / "kv" / "x")
    assert "must lie apart" in refused(warm.data.parent)
    assert (precious / "letter.txt").read_text(encoding="utf-8") == "mine"


def test_a_data_directory_in_use_is_no_export(warm: Desk, tmp_path: Path) -> None:
    used = Desk(tmp_path / "papers", tmp_path / "data")
    shutil.copytree(warm.documents, used.documents)
    assert used.run("index", "--no-kv", str(used.documents)).code == 0
    ran = warm.run("cache", "export", str(used.data))
    assert ran.code == 2 and "is a data directory in use" in ran.err
    ran = warm.run("cache", "import", str(tmp_path / "papers"))
    assert ran.code == 2 and "is not an export" in ran.err


def test_wrong_words_are_refused(warm: Desk, export: Path) -> None:
    for words, why in (
        (("import", str(export), "--as", "here"), "not of the form OLD=NEW"),
        (("import", str(export), "--folder", "x"), "--folder belongs to"),
        (("export", str(export), "--as", "/a=/b"), "--as belongs to"),
        (("export", str(export), "--folder", "/nowhere"), "Nothing was indexed from /nowhere"),
        (("import", str(warm.data)), "is the data directory itself"),
    ):
        ran = warm.run("cache", *words)
        assert ran.code == 2 and why in ran.err, (words, ran.err)


def test_damage_in_an_export_is_named_and_the_rest_is_copied(warm: Desk, export: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "export"
    shutil.copytree(export, damaged)
    file = sorted(damaged.glob("kv/*/*/*.safetensors"))[0]
    file.write_bytes(file.read_bytes()[:-1] + b"\x00")
    other = Desk(warm.documents, tmp_path / "data")
    ran = other.run("cache", "import", str(damaged), "--json")
    report = json.loads(ran.out)
    assert ran.code == 4 and report["caches"] == 1 and len(report["damaged"]) == 1
    assert file.stem in report["damaged"][0]
