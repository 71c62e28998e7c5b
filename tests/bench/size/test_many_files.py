"""The made-up folder can really be read, whatever the kind of file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from desk_rag.bench.size.__main__ import main
from desk_rag.bench.size.many_files import write_files
from desk_rag.config import IndexSettings
from desk_rag.documents import document as documents


def test_every_file_of_the_mix_but_photos_can_be_read(tmp_path: Path) -> None:
    written = write_files(tmp_path, 150)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sum(written.values()) == len(files) == 150 and min(written.values()) > 0
    for path in files:
        if path.suffix == ".jpg":
            assert not documents.supported(path, IndexSettings())
            continue
        assert documents.parse(path, IndexSettings()).blocks, path


def test_the_same_seed_writes_the_same_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_files(tmp_path / name, 20, seed=3)
    contents = [
        sorted((path.name, path.read_bytes()) for path in (tmp_path / name).rglob("*.*")) for name in ("one", "two")
    ]
    assert contents[0] == contents[1]


@pytest.mark.slow
def test_a_small_run_reports_all_three(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--files", "60", "--rows", "400", "--vectors", "500", "--place", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert '"files": 60' in out and '"rows": 400' in out and '"vectors": 500' in out
    assert main(["--rows", "6000", "--with-vectors", "--place", str(tmp_path)]) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert facts["vector_index_mib"] > 0 and facts["first_vector_search_ms"] > 0 and facts["add_200_passages_ms"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_kept_catalog_is_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept"
    assert main(["--rows", "400", "--keep", str(kept)]) == 0
    assert main(["--rows", "400", "--keep", str(kept)]) == 0
    first, again = (
        json.loads(line)["rows"] for line in capsys.readouterr().out.splitlines() if line.startswith("{")
    )
    assert "fill_seconds" in first and "fill_seconds" not in again
    assert 0 < again["word_search_ms"]["cpu_median"] <= again["word_search_ms"]["cpu_slowest"]
