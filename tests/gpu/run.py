"""One call for a machine with a GPU: `python -m tests.gpu.run OUT` runs tests and benchmarks, the most vital first.

Each part has its own time limit and its own log file, so that a part that hangs or fails costs nothing but itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

_TESTS = ["tests/gpu", *(f"tests/kv/{room}" for room in ("kernels", "forward", "lazy", "loading"))]


def _bench(name: str, *options: str) -> list[str]:
    start = f"import sys; from desk_rag.bench.{name} import main; sys.exit(main(sys.argv[1:]))"
    return ["-c", start, *options]


PARTS = (
    ("tests", 150, ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--maxfail=20", *_TESTS]),
    ("kernels", 90, _bench("kernels", "--shapes", "qwen2-7b,llama-3.2-1b")),
    ("load", 100, _bench("load", "--dir", "{out}")),
    ("sweep-a", 60, _bench("kernels", "--shapes", "qwen2-7b", "--only", "a", "--sweep")),
    ("kernel-b", 170, ["-m", "tests.gpu.kernel_b", "{out}/kernel_b.json"]),
)  # fmt: skip
"""570 seconds at most."""


def main(out: Path) -> int:
    """Run all parts; 0 if all succeeded. Prints one line per part and the end of each log."""
    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name, limit, command in PARTS:
        began = time.perf_counter()
        log = out / f"{name}.log"
        words = [sys.executable, *(word.replace("{out}", str(out / "files")) for word in command)]
        with log.open("w", encoding="utf-8") as file:
            try:
                code: int | str = subprocess.run(words, stdout=file, stderr=file, timeout=limit, check=False).returncode
            except subprocess.TimeoutExpired:
                code = "timeout"
        failed += code != 0
        print(json.dumps({"part": name, "exit": code, "seconds": round(time.perf_counter() - began, 1)}), flush=True)
        print("\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:]), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
