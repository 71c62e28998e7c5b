"""List the benchmarks and run one: modules of `desk_rag.bench`, or of its rooms, that have a `main(argv)`."""

from __future__ import annotations

import ast
import importlib
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from desk_rag.errors import ConfigError


def run(name: str, arguments: Sequence[str]) -> int:
    """Run the benchmark `name` with `arguments` and return its exit code. Raises ConfigError for an unknown one."""
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
    suffix = ".__main__" if _files()[chosen].stem == "__main__" else ""
    module = importlib.import_module(f"desk_rag.bench.{chosen.replace('-', '_')}{suffix}")
    return int(module.main(list(arguments)) or 0)


def benchmarks() -> dict[str, str]:
    """Return the summary of every benchmark by name, taken from the docstrings without importing the modules."""
    summaries = {}
    for name, file in _files().items():
        first = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
        summaries[name] = textwrap.shorten(first.split(". ")[0].rstrip("."), 160, placeholder="…")
    return summaries


def _files() -> dict[str, Path]:
    """Return the file of every benchmark by name: modules, and rooms with a `__main__`."""
    folder = Path(__file__).parent.parent
    files = {file.stem: file for file in folder.glob("*.py")}
    files |= {file.parent.name: file for file in folder.glob("*/__main__.py")}
    runnable = (item for item in files.items() if "\ndef main(argv" in item[1].read_text(encoding="utf-8"))
    return {name.replace("_", "-"): file for name, file in sorted(runnable)}
