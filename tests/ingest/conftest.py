"""What the tests of reading folders share."""

from __future__ import annotations

from pathlib import Path

import pytest

from desk_rag.model.prompt import PromptFormat, load_prompt


@pytest.fixture(scope="module")
def prompt(reader_dir: Path) -> PromptFormat:
    return load_prompt(reader_dir)
