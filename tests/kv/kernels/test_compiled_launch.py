"""What is compiled once is launched without Triton's own look at its arguments, and only where it is right."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from desk_rag.kv.kernels import fused_ops_triton, sparse_queries_triton
from desk_rag.kv.kernels.compiled_launch import CompiledLaunch, alike
from desk_rag.kv.kernels.fused_inputs import Pairing


class Kernel:
    """Notes how it is launched; what it compiles to are numbered forms that note it too."""

    def __init__(self) -> None:
        self.launches: list[tuple[object, ...]] = []
        self.forms = 0

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., object]:
        def run(*arguments: object, **constants: object) -> Form:
            self.launches.append((grid, arguments, constants))
            self.forms += 1
            return Form(self, self.forms)

        return run


class Form:
    """As Triton's compiled kernels: takes constants by their place."""

    def __init__(self, kernel: Kernel, number: int) -> None:
        self._kernel, self._number = kernel, number

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        return lambda *arguments: self._kernel.launches.append((self._number, grid, arguments))


def test_later_launches_name_no_constant_and_hand_over_addresses() -> None:
    kernel, memory = Kernel(), torch.zeros(64)
    launch = CompiledLaunch(kernel, {"A": 1, "B": 2}, {"num_warps": 4})
    launch((1, 2, 3), (memory, memory[16:]), 0.5)
    launch((3, 2, 1), (memory[32:], memory), 7)
    first, second = kernel.launches
    assert first[0] == (1, 2, 3) and first[2] == {"A": 1, "B": 2, "num_warps": 4}
    assert second == (1, (3, 2, 1), (memory.data_ptr() + 128, memory.data_ptr(), 7, 1, 2))


def test_what_begins_elsewhere_goes_tritons_own_way() -> None:
    kernel, memory = Kernel(), torch.zeros(64)
    launch = CompiledLaunch(kernel, {}, {})
    launch((1, 1, 1), (memory, memory[1:]))
    assert not launch.forms, "compiled for memory that may begin anywhere"
    launch((1, 1, 1), (memory, memory[4:]))
    launch((1, 1, 1), (memory, memory[1:]))
    launch((1, 1, 1), (memory, memory[8:]))
    assert kernel.forms == 3 and kernel.launches[3][0] == 2


def test_an_interpreter_compiles_nothing() -> None:
    calls: list[object] = []

    class Interpreted:
        def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
            return lambda *arguments, **constants: calls.append(arguments)

    memory = torch.zeros(4)
    launch = CompiledLaunch(Interpreted(), {"A": 1}, {})
    for number in (3, 4):
        launch((1, 1, 1), (memory,), number)
    assert calls == [(memory, 3), (memory, 4)] and not launch.forms


def test_strides_that_are_compiled_in() -> None:
    assert alike(128, 3584, 16)
    assert not alike(128, 3584, 8) and not alike(1, 16) and not alike(16, 2**31)


def test_constants_are_told_in_the_kernels_order() -> None:
    """The compiled form takes everything by its place."""
    launches = [
        fused_ops_triton._norm_launch(torch.float16, torch.float16, 96, True, 0.5),
        fused_ops_triton._rotation_launch((torch.float16,) * 3, 4, 2, 32, False, Pairing(16)),
        fused_ops_triton._gated_launch(torch.float16, 96, False),
        sparse_queries_triton._launch((2, 4, 32, 64, 32), torch.float16, True, 4, 2),
    ]
    for launch in launches:
        assert list(launch.kernel.arg_names[-len(launch.constants) :]) == list(launch.constants)
    assert sparse_queries_triton._known((2, 4, 32, 64, 32), torch.float16, True, 4, 2) is sparse_queries_triton._known(
        (2, 4, 32, 64, 32), torch.float16, True, 4, 2
    )
