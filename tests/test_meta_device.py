"""Functions for torch's meta device: left out of its import, and all there for what needs them."""

import subprocess
import sys

import pytest

_REGISTERED = """
import sys, torch
before = "torch._prims" in sys.modules
{then}
names = torch._C._dispatch_get_registrations_for_dispatch_key("Meta")
print(before, "torch._prims" in sys.modules, hash(tuple(sorted(names))))
"""


def _registered(first: str, then: str) -> list[str]:
    code = f"import {first}\n{_REGISTERED.format(then=then)}"
    environment = {"PYTHONHASHSEED": "0", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_functions_are_left_out_until_something_needs_them() -> None:
    before, after, few = _registered("desk_rag", "pass")
    assert (before, after) == ("False", "False")
    assert few != _registered("sys", "pass")[2]


@pytest.mark.parametrize(
    "need", ["import torch._decomp", "import transformers", "from torch._meta_registrations import meta_index_Tensor"]
)
def test_what_needs_them_finds_all_that_torch_alone_has(need: str) -> None:
    before, after, names = _registered("desk_rag", need)
    assert (before, after) == ("False", "True")
    assert names == _registered("sys", need)[2]
