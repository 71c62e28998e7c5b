"""List the benchmarks and run one of them: any module of `desk_rag.bench` that has a `main(argv)`."""

from __future__ import annotations

import ast
import importlib
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from desk_rag.errors import ConfigError


def run(name: str, arguments: Sequence[str]) -> int:
    """Run desk_rag.bench.NAME with `arguments`: any module there that has a `main(argv)`."""
    known = benchmarks()
    chosen = name.replace("_", "-")
    if name in ("-h", "--help"):
        sys.stdout.write("Usage: desk-rag bench NAME [OPTIONS]\n\nNAME is one of\n")
        for benchmark, summary in known.items():
            sys.stdout.write(f"  {benchmark:<12} {summary}\n")
        sys.stdout.write("desk-rag bench NAME --help lists the options of a benchmark.\n")
        return 0
    if chosen not in known:
        raise ConfigError(
            f"There is no benchmark '{name}'." if name else "Name a benchmark.",
            remedy=f"Benchmarks: {', '.join(known)}. For example: desk-rag bench ttft",
        )
    module = importlib.import_module(f"desk_rag.bench.{chosen.replace('-', '_')}")
    return int(module.main(list(arguments)) or 0)


def benchmarks() -> dict[str, str]:
    """Return the summary of every benchmark by name, taken from the docstrings without importing the modules."""
    summaries = {}
    for file in sorted(Path(__file__).parent.parent.glob("*.py")):
        source = file.read_text(encoding="utf-8")
        if "\ndef main(argv" in source:
            first = (ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0].split(". ")[0].rstrip(".")
            summaries[file.stem.replace("_", "-")] = textwrap.shorten(first, 160, placeholder="…")
    return summaries
