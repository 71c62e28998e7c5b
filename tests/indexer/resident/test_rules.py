"""Rules of the settings file as it is now, wherever settings outlive a reading of the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from desk_rag.config import IndexSettings, Settings
from desk_rag.indexer.resident.answers import Resident
from desk_rag.indexer.resident.exclusion import FollowedRules
from desk_rag.tui.management.session import Session


@pytest.fixture
def old(tmp_path: Path) -> Settings:
    """Settings as they were read before somebody changed the file."""
    return Settings(data_dir=tmp_path / "data", index=IndexSettings(exclude=("*.bak",), max_text_mib=3))


def test_a_process_that_only_answers_reads_by_the_file_as_it_is(old: Settings, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    rules = FollowedRules(file, old.index.exclude)
    resident = Resident(old, lambda: None, lambda: None, lambda: False, tuple, rules=rules)  # type: ignore[arg-type,return-value]
    assert resident._index_settings() == old.index, "there is no file"
    file.write_text('[index]\nexclude = ["*.bak", "private/"]\n')
    now = resident._index_settings()
    assert now.exclude == ("*.bak", "private/") and now.max_text_mib == 3
    file.write_text("[index\n")
    assert resident._index_settings() == now, "a file that is no settings file changes nothing"
    file.unlink()
    assert resident._index_settings().exclude == () and rules.lifted == {"*.bak", "private/"}


def test_a_ui_works_with_the_rules_of_the_file_as_it_is(old: Settings, tmp_path: Path) -> None:
    session = Session(old, [], tmp_path / "config.toml")
    assert session.settings is old
    session.file.write({("index", "exclude"): ["private/"]})
    assert session.settings.index.exclude == ("private/",)
    session.settings = old.model_copy(update={"data_dir": tmp_path / "other"})
    assert session.settings.index.exclude == ("private/",) and session.settings.data_dir == tmp_path / "other"
