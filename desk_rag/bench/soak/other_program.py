"""Another program that takes memory of a device and gives it back, as a process that obeys commands.

Run as a module it reads one command a line and answers each with the bytes that it has taken:
  keep BYTES    take memory for good until BYTES are free
  leave BYTES   take more, to be given back, until BYTES are free
  give          give that back
"""

from __future__ import annotations

import subprocess
import sys

import torch

_STEP = 32 << 20
"""Smallest piece that is taken."""
_LARGEST = 4 << 30
_WITHOUT_GPU = 64 << 20
"""Bytes of host memory taken where there is no GPU; how much is free there is no concern of this benchmark."""


class OtherProgram:
    """The process, as seen from the one that commands it; a context manager."""

    def __init__(self, device: torch.device) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "desk_rag.bench.soak.other_program", device.type],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.taken = self._answer()

    def __enter__(self) -> OtherProgram:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def keep(self, free: int) -> None:
        """Take memory for good until `free` bytes are left."""
        self._command(f"keep {free}")

    def leave(self, free: int) -> None:
        """Take memory until `free` bytes are left."""
        self._command(f"leave {free}")

    def give(self) -> None:
        """Give back what `leave` took."""
        self._command("give")

    def _command(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        self.taken = self._answer()

    def _answer(self) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the other program has ended with code {self._process.wait(timeout=60)}")
        return int(line)


def take_until(free: int, device: torch.device) -> list[torch.Tensor]:
    """Allocate until at most `free` bytes and one step are left."""
    if device.type != "cuda":
        return [torch.ones(_WITHOUT_GPU, dtype=torch.uint8)]
    blocks: list[torch.Tensor] = []
    size = _LARGEST
    while (surplus := torch.cuda.mem_get_info(device)[0] - free) >= _STEP and size >= _STEP:
        try:
            blocks.append(torch.empty(min(size, surplus) // _STEP * _STEP, dtype=torch.uint8, device=device))
        except torch.OutOfMemoryError:
            size //= 2
    return blocks


def _obey(device: torch.device) -> None:
    kept: list[torch.Tensor] = []
    taken: list[torch.Tensor] = []
    if device.type == "cuda":
        torch.zeros(1, device=device)  # creates the context
    print(0, flush=True)
    for line in sys.stdin:
        name, _, number = line.strip().partition(" ")
        if name == "keep":
            kept += take_until(int(number), device)
        elif name == "leave":
            taken += take_until(int(number), device)
        elif name == "give":
            taken.clear()
            if device.type == "cuda":
                torch.cuda.empty_cache()
        else:
            raise SystemExit(f"unknown command {line!r}")
        print(sum(block.nbytes for block in kept + taken), flush=True)


if __name__ == "__main__":
    _obey(torch.device(sys.argv[1]))
