"""Ratios and selectors as the command line and the settings file name them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from desk_rag.errors import ConfigError
from desk_rag.kv.recompute.policy import RecomputeChoice, SelectorName


def test_words_become_a_choice() -> None:
    assert RecomputeChoice.parse("0.2", "aux") == RecomputeChoice(0.2, SelectorName.AUX)
    for ratio, selector in [("1.2", "aux"), ("-0.1", "aux"), ("nan", "aux"), ("auto", "aux"), ("0.2", "best")]:
        with pytest.raises(ConfigError, match=ratio if selector == "aux" else selector):
            RecomputeChoice.parse(ratio, selector)


def test_naming_the_choices_loads_no_torch() -> None:
    code = "import sys, desk_rag.kv.recompute.policy; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "False"
